"""Fit fused attention to measured kernels, into the files of `benchmarks/fit_products.py`.

``python benchmarks/fit_attention.py PREFILL.csv CHARTS.csv CHIP [LIBRARY ...]`` (named libraries only; the others of
the file stay). The first table has forward kernels as
ai-dynamo/aiconfigurator publishes them (system, backend, kernel_source, attn_dtype, kv_cache_dtype, batch_size, isl,
num_heads, num_key_value_heads, head_dim, latency [ms]); three of four, by a hash of the shape, are calibration. The
second has kernels of several sources (source, chip, op, impl, b, seq, heads, kv_heads, head_dim, head_dim_v, causal,
time_us): forward and backward together, or each; every second shape is calibration. The others are scored.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import sys
from dataclasses import asdict, fields, replace
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any, Literal

from fit_products import silicon

from clusim.base.files import write_text
from clusim.hardware.kernels.fused import Fused, FusedForm, fused_s
from clusim.hardware.kernels.products import Silicon

Row = tuple[Fused, float]
"""A kernel and its time [s].

For a chart of both passes together: the forward kernel and the time of both.
"""

FORWARD = {
    "a100-sxm4-80gb": {"flash2": ("a100_sxm", "vllm_flash_attn")},
    "h100-sxm5": {"flash3": ("h100_sxm", "vllm_flash_attn_fa3")},
    "b200-sxm": {"flashinfer": ("b200_sxm", "vllm_flashinfer_trtllmprefill")},
}
"""Libraries with a table of forward kernels: system, kernel_source."""

CHARTS = {
    "a100-sxm4-80gb": {
        "flash2": ("A100 80GB SXM4", "FlashAttention-2"),
        "flash1": ("A100 80GB SXM4", "FlashAttention"),
        "flash-triton": ("A100 80GB SXM4", "FlashAttention Triton"),
    },
    "h100-sxm5": {
        "flash1": ("H100 80GB SXM5", "FlashAttention"),
        "flash2": ("H100 80GB SXM5", "FlashAttention-2"),
        "flash3": ("H100 80GB SXM5", "FlashAttention-3"),
        "cudnn": ("H100 80GB SXM5", "cuDNN"),
    },
    "b200-sxm": {
        "cudnn": ("B200 SXM", "TransformerEngine attention (flash or cuDNN)")
    },
}
"""Libraries in charts and listings: chip, impl."""

WINDOWED = 0.95
"""Minimum rate, relative to the largest products, that implies a sliding window.

The table has no column for windows.
"""

LONG = {("b200-sxm", "cudnn")}
"""Libraries that were measured in long loops."""

TOGETHER = ("flash1", "flash-triton")
"""Libraries that charts have with both passes in one time only: both have one form."""

TAKEN = {"h100-sxm5": {"flash-triton": ("a100-sxm4-80gb", "flash2")}}
"""Libraries that were not measured on a chip, and the chip whose form they use.

Its rates are scaled by the ratio between the two chips of another library with the same instructions
(those of Ampere) and the same parallelism along the sequence.
"""

ORDER = ("cudnn", "flash2", "flash3", "flashinfer", *TOGETHER)
USUAL = {"a100-sxm4-80gb": "flash2", "h100-sxm5": "flash3", "b200-sxm": "cudnn"}

FIRST = FusedForm(5.0, 0.8, 20.0, 1.0, 0.8, 2.0, 0.5)
LEAST = FusedForm(1.0, 0.1, 0.0, 0.0, 0.2, 1.0, 0.0)
MOST = FusedForm(30.0, 1.6, 2000.0, 20.0, 1.0, 12.0, 1.0)

SOURCES = (
    "forward: ai-dynamo/aiconfigurator 095f58a5 (Apache-2.0), three of four shapes by sha256('batch,tokens,heads,"
    "kv_heads,head_dim') modulo 4 not 0; charts of Dao-AILab/flash-attention 0251105a (BSD-3) and lists of"
    " MooreThreads/SimuMax 4dcaae51 (Apache-2.0), every second shape by the same hash modulo 2; flash1 and"
    " flash-triton: 512, 2048 and 8192 tokens"
)


FOLDER = Path(__file__).parents[1] / "pysim/clusim/hardware/kernels/measured"


def _hash(*shape: Any) -> int:
    return int(
        hashlib.sha256(",".join(map(str, shape)).encode()).hexdigest()[:8], 16
    )


def prefill(
    path: str, peak: float, system: str, source: str
) -> tuple[list[Row], list[Row]]:
    """Return calibration and scored rows of a table of forward kernels.

    Only 16-bit kernels with complete blocks and without windows are included.
    """
    known: list[Row] = []
    scored: list[Row] = []
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
        for row in csv.DictReader(file):
            if (
                row["system"] != system
                or row["kernel_source"] != source
                or row["step"] != "0"
            ):
                continue
            if (
                row["attn_dtype"] != "bfloat16"
                or row["kv_cache_dtype"] != "bfloat16"
            ):
                continue
            batch, tokens, heads, kv, size = (
                int(row[name])
                for name in (
                    "batch_size",
                    "isl",
                    "num_heads",
                    "num_key_value_heads",
                    "head_dim",
                )
            )
            if tokens < 128 or size > 256:
                continue
            fused = Fused(batch, heads, kv, tokens, tokens, size, size, causal=True)
            seconds = float(row["latency"]) * 1e-3
            if 2 * batch * heads * tokens**2 * size / seconds > WINDOWED * peak:
                continue
            found = fused, seconds
            (known if _hash(batch, tokens, heads, kv, size) % 4 else scored).append(
                found
            )
    return known, scored


def charts(
    path: str, chip: str, library: str
) -> tuple[list[Row], list[Row], list[Row]]:
    """Return forward, backward and joint rows of a table of several sources."""
    found: dict[str, list[Row]] = {
        "attention_fwd": [],
        "attention_bwd": [],
        "attention_fwd_bwd": [],
    }
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (
                row["chip"] != chip
                or row["impl"] != library
                or row["op"] not in found
            ):
                continue
            batch, seq, heads = int(row["b"]), int(row["seq"]), int(row["heads"])
            fused = Fused(
                batch, heads, int(row["kv_heads"] or heads), seq, seq, int(row["head_dim"]),
                int(row["head_dim_v"]), row["causal"] == "yes", row["op"] == "attention_bwd",
            )  # fmt: skip
            found[row["op"]].append((fused, float(row["time_us"]) * 1e-6))
    return found["attention_fwd"], found["attention_bwd"], found["attention_fwd_bwd"]


def halves(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return calibration and scored rows."""
    known: list[Row] = []
    scored: list[Row] = []
    for row in rows:
        fused = row[0]
        shape = fused.batch, fused.rows, fused.heads, fused.kv_heads, fused.query
        (known if _hash(*shape) % 2 else scored).append(row)
    return known, scored


def errors(
    form: FusedForm,
    chip: Silicon,
    rows: list[Row],
    before: FusedForm | Literal["same"] | None,
) -> list[float]:
    """Return logarithms of computed / measured; `before` is the form of the forward pass of joint rows."""
    found = []
    if before == "same":
        before = form
    for fused, seconds in rows:
        if before is None:
            took = fused_s(form, chip, fused)
        else:
            took = fused_s(before, chip, fused) + fused_s(
                form, chip, replace(fused, backward=True)
            )
        found.append(log(took / seconds))
    return found


def fit(
    chip: Silicon, rows: list[Row], before: FusedForm | Literal["same"] | None = None
) -> FusedForm:
    """Return the form with the least mean error, by a random walk."""
    random = Random(1)
    if len(rows) > 500:
        rows = random.sample(rows, 500)

    def loss(form: FusedForm) -> float:
        apart = errors(form, chip, rows, before)
        fused_s.cache_clear()
        return sum(map(abs, apart)) / len(apart) + 0.5 * abs(sum(apart)) / len(apart)

    names = [field.name for field in fields(FusedForm)]
    width = dict.fromkeys(names, 0.4)
    best, least = FIRST, loss(FIRST)
    for step in range(1200):
        chosen = (
            [names[step % len(names)]]
            if random.random() < 0.6
            else random.sample(names, 3)
        )
        changed = {}
        for name in chosen:
            moved = (getattr(best, name) + 1e-3) * exp(random.gauss(0, width[name]))
            changed[name] = min(
                getattr(MOST, name), max(getattr(LEAST, name), moved)
            )
        tried = replace(best, **changed)
        found = loss(tried)
        if len(chosen) == 1:
            factor = 1.5 if found < least else 0.93
            width[chosen[0]] = min(0.6, max(0.02, width[chosen[0]] * factor))
        if found < least:
            best, least = tried, found
    return replace(
        best, **{name: float(f"{getattr(best, name):.4g}") for name in names}
    )


def score(
    form: FusedForm,
    chip: Silicon,
    rows: list[Row],
    before: FusedForm | Literal["same"] | None,
) -> dict[str, Any]:
    """Return the errors on some rows."""
    found = [100 * (exp(error) - 1) for error in errors(form, chip, rows, before)]
    if not found:
        return {"n": 0}
    mean = sum(map(abs, found)) / len(found)
    return {"n": len(found), "mean_abs_pct": round(mean, 2), "bias_pct": round(sum(found) / len(found), 2)}  # fmt: skip


def table_of(chip: str, library: str, prefills: str, listed: str) -> dict[str, Any]:
    """Return the fitted forms of a library as a file has them."""
    own = silicon(chip, "bf16")
    if library in TAKEN.get(chip, {}):
        return taken(chip, library)
    ahead: list[Row] = []
    back: list[Row] = []
    both: list[Row] = []
    if library in CHARTS[chip]:
        ahead, back, both = charts(listed, *CHARTS[chip][library])
    forward, left = (
        prefill(prefills, own.flops, *FORWARD[chip][library])
        if library in FORWARD[chip]
        else halves(ahead)
    )
    if library in TOGETHER:
        # Half of the lengths, which are powers of two; a hash would keep too few of these few shapes.
        known = [row for row in both if row[0].rows.bit_length() % 2 == 0]
        left = [row for row in both if row[0].rows.bit_length() % 2]
        form = fit(own, known, "same")
        apart = score(form, own, left, "same")
        return {
            "library": library,
            "forward": asdict(form),
            "left_out_together": apart,
        }
    form = fit(own, forward)
    row: dict[str, Any] = {
        "library": library,
        **({"long": True} if (chip, library) in LONG else {}),
        "forward": asdict(form),
        "left_out_forward": score(form, own, left, None),
    }
    if back or both:
        before = None if back else form
        known, left = halves(back or both)
        after = fit(own, known, before)
        row["backward"] = asdict(after)
        row["left_out_backward"] = score(after, own, left, before)
    return row


def taken(chip: str, library: str) -> dict[str, Any]:
    """Return the form of a library that was measured on another chip."""
    place, like = TAKEN[chip][library]
    there, other, here = forms(place, library), forms(place, like), forms(chip, like)
    ratio = here.rate / other.rate
    form = replace(there, rate=float(f"{there.rate * ratio:.4g}"))
    return {
        "library": library,
        "forward": asdict(form),
        "taken": f"{library} of {place}, at the rate of {like}",
    }


def forms(chip: str, library: str) -> FusedForm:
    """Return the form that the file of a chip has of a library."""
    data = json.loads((FOLDER / f"{chip}.json").read_text(encoding="utf-8"))
    return FusedForm.of(
        next(row for row in data["attention"] if row["library"] == library)[
            "forward"
        ]
    )


def main(arguments: list[str]) -> None:
    """Fit the libraries of a chip."""
    prefills, listed, chip, *named = arguments
    target = FOLDER / f"{chip}.json"
    data = json.loads(target.read_text(encoding="utf-8"))
    libraries = sorted(
        {*FORWARD[chip], *CHARTS[chip], *TAKEN.get(chip, ())},
        key=lambda name: (name != USUAL[chip], ORDER.index(name)),
    )
    there = {row["library"]: row for row in data["attention"]}
    for library in named or libraries:
        there[library] = table_of(chip, library, prefills, listed)
        print(chip, there[library], flush=True)
    data["attention"] = [there[library] for library in libraries if library in there]
    data["attention_source"] = SOURCES
    write_text(str(target), json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
