"""Fit the matrix product tables of `clusim.hardware.kernels` to a measured table.

``python benchmarks/fit_products.py TABLE.csv CHIP [KIND/LIBRARY ...]`` reads rows (system, backend,
gemm_dtype, m, n, k, latency [ms]; may be gzipped) as ai-dynamo/aiconfigurator publishes them, and writes
``pysim/clusim/hardware/kernels/measured/CHIP.json``, or only the named tables in it. Three of four rows,
by a hash of their keys, are calibration; the others are scored, and the scores are written into the
file.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.files import write_text
from clusim.hardware import CHIPS
from clusim.hardware.kernels.calibrate.fit import (
    KNOTS,
    ProductRows,
    fit_form,
    fit_ratios,
)
from clusim.hardware.kernels.measured_tables import FORMAT, ProductTable, Ratios
from clusim.hardware.kernels.products import Product, Silicon, form_s

Reals = NDArray[np.float64]

SYSTEMS = {
    "a100_sxm": "a100-sxm4-80gb",
    "h100_sxm": "h100-sxm5",
    "b200_sxm": "b200-sxm",
}
KINDS = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4": "nvfp4",
}
LIBRARIES = {"fp8-block": ("trtllm", "vllm")}
USUAL = ("vllm", "trtllm")
"""The usual one first: vLLM's are of torch.nn.functional.linear in bf16, TensorRT-LLM's of DeepGEMM in blocks."""

HOSTS = {("fp8", "trtllm"), ("fp8-block", "vllm")}
"""Tables whose minimum times (12 us and more) are host time of several kernels per product."""

PEAKS = {
    "bf16": ("bf16", 1.0),
    "fp8": ("f8", 1.0),
    "fp8-block": ("f8", 1.0),
    "nvfp4": ("f8", 2.0),
}
SIZES = {
    "bf16": (2.0, 2.0),
    "fp8": (1.0, 2.0),
    "fp8-block": (1.0, 2.0),
    "nvfp4": (0.5625, 2.0),
}
"""Element of an operand and of the output [bytes]; nvfp4 has a scale of a byte for 16 elements."""

SOURCE = {
    "source": "ai-dynamo/aiconfigurator, measured products (gemm_perf.txt), commit 095f58a5",
    "licence": "Apache-2.0",
    "mark": "calibrated",
    "rows": "sha256('m,n,k') of which the first 8 hexadecimal digits modulo 4 are not 0;"
    " the others are scored",
}


@dataclass(frozen=True)
class Table:
    """Measured products, and the mask of scored ones."""

    rows: ProductRows
    scored: NDArray[np.bool_]

    def part(self, scored: bool) -> ProductRows:
        """Return the scored or the calibration products."""
        chosen = self.scored == scored
        return ProductRows(
            self.rows.shapes[chosen], self.rows.seconds[chosen], self.rows.sizes
        )


def read(path: str) -> dict[tuple[str, str, str], Table]:
    """Return the rows of a table by chip, element type and library."""
    result = defaultdict(list)
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["gemm_dtype"] not in KINDS or row["system"] not in SYSTEMS:
                continue
            shape = row["m"], row["n"], row["k"]
            digest = int(
                hashlib.sha256(",".join(shape).encode()).hexdigest()[:8], 16
            )
            key = SYSTEMS[row["system"]], KINDS[row["gemm_dtype"]], row["backend"]
            if key[1:] in HOSTS:
                continue
            result[key].append(
                (*map(float, shape), float(row["latency"]) * 1e-3, digest % 4 == 0)
            )
    return {
        key: _table(np.array(rows, float), key[1]) for key, rows in result.items()
    }


def _table(table: Reals, kind: str) -> Table:
    one = np.ones(len(table))
    shapes = np.column_stack([one, table[:, :3], one])
    return Table(ProductRows(shapes, table[:, 3], SIZES[kind]), table[:, 4] > 0)


def silicon(chip: str, kind: str) -> Silicon:
    """Return the product parameters from a chip's figures."""
    preset = CHIPS[chip]
    peaks: Any = preset["peak_flops"].value
    key, times = PEAKS[kind]
    rate = float(str(preset["memory_rate"].value).split()[0])
    rate *= {"GB/s": 1e9, "TB/s": 1e12}[str(preset["memory_rate"].value).split()[1]]
    return Silicon(
        int(str(preset["sms"].value)),
        float(peaks[key]) * times * float(str(preset["gemm_fraction"].value)),
        rate * float(str(preset["memory_efficiency"].value)),
    )


def score(table: ProductTable, chip: Silicon, rows: ProductRows) -> dict[str, float]:
    """Return the errors on some rows."""
    sizes = SIZES[table.kind]
    formed = form_s(table.form, chip, rows.shapes, sizes) / rows.seconds - 1
    result = [
        table.time_s(chip, Product(*map(int, shape[:4])), sizes) / seconds - 1
        for shape, seconds in zip(rows.shapes, rows.seconds, strict=True)
    ]
    return {
        "n": len(result),
        "mean_abs_pct": round(100 * float(np.abs(result).mean()), 2),
        "median_abs_pct": round(100 * float(np.median(np.abs(result))), 2),
        "bias_pct": round(100 * float(np.mean(result)), 2),
        "form_mean_abs_pct": round(100 * float(np.abs(formed).mean()), 2),
    }


def table_of(
    name: tuple[str, str, str], own: Table, others: list[Table]
) -> dict[str, Any]:
    """Return a fitted table as a file has it: of a chip, an element type and a library."""
    chip, kind, library = name
    metal, known = silicon(chip, kind), own.part(False)
    form = fit_form(metal, known)
    packed = fit_ratios(
        form, metal, [known, *(other.part(False) for other in others)]
    )
    knots = tuple(KNOTS[axis] for axis in "mnk")
    architecture = str(CHIPS[chip]["architecture"].value)
    made = ProductTable(
        chip, architecture, kind, library, form, Ratios(knots, packed)
    )
    return {
        "kind": kind,
        "library": library,
        "form": asdict(form),
        "left_out": score(made, metal, own.part(True)),
        "ratios": packed,
    }


def main(arguments: list[str]) -> None:
    """Fit the tables of a chip."""
    path, chip, *only = arguments
    target = (
        Path(__file__).parents[1]
        / f"pysim/clusim/hardware/kernels/measured/{chip}.json"
    )
    old = json.loads(target.read_text()) if target.exists() else {"products": []}
    tables = {(row["kind"], row["library"]): row for row in old["products"]}
    table = read(path)
    for (where, kind, library), rows in table.items():
        if where != chip or (only and f"{kind}/{library}" not in only):
            continue
        # Only bf16 uses the same kernels (cuBLAS) in all libraries.
        others = [
            rows
            for key, rows in table.items()
            if key[:2] == (chip, "bf16") and key[2] != library
        ]
        row = table_of((chip, kind, library), rows, others if kind == "bf16" else [])
        tables[kind, library] = row
        print(kind, library, row["left_out"], row["form"], flush=True)
    order = [
        (kind, library) for kind in SIZES for library in LIBRARIES.get(kind, USUAL)
    ]
    data = {
        **old,
        "format": FORMAT,
        "chip": chip,
        "architecture": str(CHIPS[chip]["architecture"].value),
        **SOURCE,
        "knots": {axis: list(values) for axis, values in KNOTS.items()},
        "products": [tables[key] for key in order if key in tables],
    }
    write_text(str(target), json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
