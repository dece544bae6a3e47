"""Fit the tables of matrix products that `clusim.compute` has to a measured table.

``python benchmarks/fit_products.py TABLE.csv CHIP [KIND/LIBRARY ...]`` reads rows (system, backend, gemm_dtype, m, n,
k, latency [ms]; may be gzipped) as ai-dynamo/aiconfigurator publishes them, and writes
``pysim/clusim/compute/measured/CHIP.json``, or only the named tables in it. Three of four rows, by a hash of what they
are, are calibration; the others are scored, and the scores are written into the file.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.compute.measured_tables import FORMAT, ProductTable
from clusim.compute.products import Form, Product, Silicon, form_s
from clusim.compute.ratios import Ratios, pack
from clusim.files import write_text
from clusim.hardware import CHIPS

Reals = NDArray[np.float64]

SYSTEMS = {"a100_sxm": "a100-sxm4-80gb", "h100_sxm": "h100-sxm5", "b200_sxm": "b200-sxm"}
KINDS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}
LIBRARIES = {"fp8-block": ("trtllm", "vllm")}
USUAL = ("vllm", "trtllm")
"""The usual one first: vLLM's are of torch.nn.functional.linear in bf16, TensorRT-LLM's of DeepGEMM in blocks."""

HOSTS = {("fp8", "trtllm"), ("fp8-block", "vllm")}
"""Tables whose least times (12 us and more) are those of a host that launches several kernels for each product."""

PEAKS = {"bf16": ("bf16", 1.0), "fp8": ("f8", 1.0), "fp8-block": ("f8", 1.0), "nvfp4": ("f8", 2.0)}
SIZES = {"bf16": (2.0, 2.0), "fp8": (1.0, 2.0), "fp8-block": (1.0, 2.0), "nvfp4": (0.5625, 2.0)}
"""Element of an operand and of the output [bytes]; nvfp4 has a scale of a byte for 16 elements."""

SOURCE = {
    "source": "ai-dynamo/aiconfigurator, measured products (gemm_perf.txt), commit 095f58a5",
    "licence": "Apache-2.0",
    "mark": "calibrated",
    "rows": "sha256('m,n,k') of which the first 8 hexadecimal digits modulo 4 are not 0;"
    " the others are scored",
}

_SIDE = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288,
         16384, 51200, 65536)  # fmt: skip
KNOTS = {
    "m": (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
          16384, 32768),
    "n": _SIDE,
    "k": _SIDE,
}  # fmt: skip
"""Where ratios are stored: the sizes that were measured, of m without those beside them."""

MOST = 4000
"""Rows that a Gaussian process is given at most."""

FIRST = Form(2.5, 1.0, 0.9, 1.0, 5.0, 0.8, 2.0, 4.0, 0.9, 1.5, 50.0)
LEAST = Form(0.5, 0.2, 0.1, 0.05, 0.5, 0.05, 0.05, 1.0, 0.0, 0.0, 4.0)
MOST_OF = {"memory": 1.15, "spread": 1.0, "whole": 1.0, "sharp": 12.0, "l2": 40.0}
"""Where the walk may begin, and where it must stay."""


@dataclass(frozen=True)
class Rows:
    """Measured products: rows of 1, m, n, k, 1; seconds; which are scored."""

    shapes: Reals
    seconds: Reals
    scored: NDArray[np.bool_]

    def part(self, chosen: NDArray[Any]) -> Rows:
        """Return some of them."""
        return Rows(self.shapes[chosen], self.seconds[chosen], self.scored[chosen])


def read(path: str) -> dict[tuple[str, str, str], Rows]:
    """Return the rows of a table by chip, element type and library."""
    found = defaultdict(list)
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["gemm_dtype"] not in KINDS or row["system"] not in SYSTEMS:
                continue
            shape = row["m"], row["n"], row["k"]
            digest = int(hashlib.sha256(",".join(shape).encode()).hexdigest()[:8], 16)
            key = SYSTEMS[row["system"]], KINDS[row["gemm_dtype"]], row["backend"]
            if key[1:] in HOSTS:
                continue
            found[key].append((*map(float, shape), float(row["latency"]) * 1e-3, digest % 4 == 0))
    return {key: _rows(np.array(rows, float)) for key, rows in found.items()}


def _rows(table: Reals) -> Rows:
    one = np.ones(len(table))
    shapes = np.column_stack([one, table[:, :3], one])
    return Rows(shapes, table[:, 3], table[:, 4] > 0)


def silicon(chip: str, kind: str) -> Silicon:
    """Return what a chip's figures say."""
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


def fit(chip: Silicon, rows: Rows, sizes: tuple[float, float], steps: int = 1800) -> Form:
    """Return the form with the least mean error of the logarithms, by a random walk from `FIRST`."""
    rng = np.random.default_rng(1)
    own = rows.part(rng.permutation(len(rows.seconds))[:1000])
    wanted = np.log(own.seconds)

    def loss(form: Form) -> float:
        apart = np.log(form_s(form, chip, own.shapes, sizes)) - wanted
        return float(np.abs(apart).mean() + 0.5 * abs(apart.mean()))

    names = [field.name for field in fields(Form)]
    width = dict.fromkeys(names, 0.3)
    best, least = FIRST, loss(FIRST)
    for step in range(steps):
        chosen = [names[step % len(names)]] if rng.random() < 0.6 else rng.choice(names, 3, False)
        changed = {}
        for name in chosen:
            moved = getattr(best, name) * np.exp(rng.normal() * width[name])
            changed[name] = float(max(getattr(LEAST, name), moved))
        held = {name: min(MOST_OF[name], changed[name]) for name in changed if name in MOST_OF}
        tried = replace(best, **changed | held)
        found = loss(tried)
        better = found < least
        if better:
            best, least = tried, found
        if len(chosen) == 1:
            name = chosen[0]
            width[name] = min(0.6, width[name] * 1.5) if better else max(0.02, width[name] * 0.93)
    return best


SHARES = (0.5, 0.3, 0.2)
"""What the form leaves, by how many sizes it depends on: all three, two, one."""

NOISE, OTHER = 0.4, 0.2
"""Noise against the spread of what is left; further noise of another library's rows of the same element type."""


def _falls(apart: Reals) -> Reals:
    """Return how alike values at a distance are (Matern 3/2)."""
    found: Reals = (1 + np.sqrt(3) * apart) * np.exp(-np.sqrt(3) * apart)
    return found


def _near(one: Reals, two: Reals) -> Reals:
    """Return how alike what the form leaves is at two sets of shapes, in octaves of m, n and k."""
    m, n, k = (np.abs(one[:, None, axis] - two[None, :, axis]) for axis in range(3))
    all_three = _falls(np.sqrt(m * m + n * n + k * k) / 3)
    pairs = _falls(np.hypot(m, n)) + _falls(np.hypot(m, k)) + _falls(np.hypot(n, k))
    single = _falls(m) + _falls(n) + _falls(k)
    found: Reals = SHARES[0] * all_three + SHARES[1] / 3 * pairs + SHARES[2] / 3 * single
    return found


def smoothed(places: Reals, left: Reals, noise: Reals, wanted: Reals) -> Reals:
    """Return the most likely values at `wanted` (log2 shapes) of a Gaussian process through known ones."""
    matrix = _near(places, places)
    matrix[np.diag_indices_from(matrix)] += noise**2
    weights = np.linalg.solve(matrix, left)
    parts = np.array_split(wanted, max(1, len(wanted) // 500))
    return np.concatenate([_near(part, places) @ weights for part in parts])


def score(table: ProductTable, chip: Silicon, rows: Rows) -> dict[str, float]:
    """Return the errors on some rows."""
    sizes = SIZES[table.kind]
    formed = form_s(table.form, chip, rows.shapes, sizes) / rows.seconds - 1
    found = [
        table.time_s(chip, Product(*map(int, shape[:4])), sizes) / seconds - 1
        for shape, seconds in zip(rows.shapes, rows.seconds, strict=True)
    ]
    return {
        "n": len(found),
        "mean_abs_pct": round(100 * float(np.abs(found).mean()), 2),
        "median_abs_pct": round(100 * float(np.median(np.abs(found))), 2),
        "bias_pct": round(100 * float(np.mean(found)), 2),
        "form_mean_abs_pct": round(100 * float(np.abs(formed).mean()), 2),
    }


def ratios_of(form: Form, own: Silicon, kind: str, known: list[Rows]) -> str:
    """Return what the form leaves on the grid: of rows of one library, with those of others as weaker evidence."""
    left, noise = [], []
    for index, rows in enumerate(known):
        left.append(np.log(rows.seconds / form_s(form, own, rows.shapes, SIZES[kind])))
        noise.append(np.full(len(left[-1]), np.hypot(NOISE, OTHER if index else 0.0)))
    places = np.log2(np.concatenate([rows.shapes[:, 1:4] for rows in known]))
    grid = np.stack(np.meshgrid(*(np.log2(KNOTS[axis]) for axis in "mnk"), indexing="ij"), -1)
    values = np.concatenate(left)[:MOST], np.concatenate(noise)[:MOST]
    found = smoothed(places[:MOST], *values, grid.reshape(-1, 3))
    return pack(found.reshape(grid.shape[:3]))


def table_of(name: tuple[str, str, str], rows: Rows, others: list[Rows]) -> dict[str, Any]:
    """Return a fitted table as a file has it: of a chip, an element type and a library."""
    chip, kind, library = name
    own, sizes = silicon(chip, kind), SIZES[kind]
    known = rows.part(~rows.scored)
    form = fit(own, known, sizes)
    form = replace(form, **{name: float(f"{value:.4g}") for name, value in asdict(form).items()})
    packed = ratios_of(form, own, kind, [known, *(other.part(~other.scored) for other in others)])
    knots = tuple(KNOTS[axis] for axis in "mnk")
    architecture = str(CHIPS[chip]["architecture"].value)
    made = ProductTable(chip, architecture, kind, library, form, Ratios(knots, packed))
    return {
        "kind": kind,
        "library": library,
        "form": asdict(form),
        "left_out": score(made, own, rows.part(rows.scored)),
        "ratios": packed,
    }


def main(arguments: list[str]) -> None:
    """Fit the tables of a chip."""
    path, chip, *only = arguments
    target = Path(__file__).parents[1] / f"pysim/clusim/compute/measured/{chip}.json"
    old = json.loads(target.read_text()) if target.exists() else {"products": []}
    tables = {(row["kind"], row["library"]): row for row in old["products"]}
    table = read(path)
    for (where, kind, library), rows in table.items():
        if where != chip or (only and f"{kind}/{library}" not in only):
            continue
        # Only bf16 is the same kernels, cuBLAS's, in all of them.
        others = [
            rows for key, rows in table.items() if key[:2] == (chip, "bf16") and key[2] != library
        ]
        row = table_of((chip, kind, library), rows, others if kind == "bf16" else [])
        tables[kind, library] = row
        print(kind, library, row["left_out"], row["form"], flush=True)
    order = [(kind, library) for kind in SIZES for library in LIBRARIES.get(kind, USUAL)]
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
