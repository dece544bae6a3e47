"""Compare training steps with published measurements: ``docs/accuracy-training.md``.

``python benchmarks/training.py docs/accuracy-training.md`` writes the page; with ``--only TEXT`` it prints the rows
whose names contain TEXT.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from contention import Streams, contention

import clusim
from clusim.base.files import write_text
from clusim.hardware import CHIPS
from clusim.training.estimate import estimate
from clusim.validation.measured import made_at
from clusim.validation.steps.validate import HEADING
from clusim.workload import PRECISIONS, Workload, chip_of

SEQUENCE, VOCABULARY, GPUS_PER_NODE = 2048, 51200, 8
COARSE = 64 << 10

HEAD = """# How far to trust simulated training steps

Last written on {date}, at commit {commit}, by `python benchmarks/training.py docs/accuracy-training.md`; a test
simulates the rows of the third table again. Steps are those of `clusim train --estimate`, on all GPUs. All rows use
one set of parameters: matrix products measured on an A100 (`clusim.hardware.kernels`), the largest at {gemm} of the
peak, and the ratio of long runs to short benchmarks, {sustained:.2f}. This ratio was fitted to the four rows of 22 and
175 billion parameters in the first table, so their mean error is small by construction. The other rows were not
fitted.
"""

HEAD_SC21 = """
## Megatron-LM, SC21 (arXiv 2104.04473, table 1)

TFLOP/s per GPU by the formula of the paper, which counts full recomputation. Microbatches, chunks and the kind of
data parallelism are from the scripts published with it (`examples/sc21`). Sequences of 2,048 tokens, A100 80
GB, DGX A100.

| model | GPUs | tensor x pipeline x data | microbatch | measured | estimated | error |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Case:
    """A model on a mesh."""

    model: str
    layers: int
    hidden: int
    heads: int
    tensor: int
    pipeline: int
    micro: int
    microbatches: int
    chunks: int = 1
    full: bool = True
    data: int = 1
    kind: str = "naive"
    bits: int = 32

    def workload(self) -> Workload:
        """Return the workload of the complete step."""
        interleaved = self.chunks > 1
        return Workload.model_validate(
            {
                "name": self.model,
                "model": {"base": "megatron-22b", "layers": self.layers, "hidden": self.hidden,
                          "heads": self.heads, "intermediate": 4 * self.hidden},
                "sequence": SEQUENCE,
                "batch": {"global": self.micro * self.microbatches * self.data, "micro": self.micro},
                "precision": "fp16",
                "gradient_bits": self.bits,
                "attention": "plain",
                "recompute": "full" if self.full else "selective",
                "parallel": {"tensor": self.tensor, "pipeline": self.pipeline, "data": self.data},
                "tensor": {"sequence_parallel": not self.full},
                "pipeline": {"schedule": "interleaved", "chunks": self.chunks} if interleaved
                else {"schedule": "1f1b"},
                "data": {"kind": self.kind},
            }
        )  # fmt: skip


@cache
def machine(nodes: int) -> Any:
    """Return a system of `nodes` DGX A100."""
    return clusim.load("dgx-a100", nodes=nodes)


def step_s(case: Case) -> float:
    """Return the estimated time of a step [s]."""
    gpus = case.tensor * case.pipeline * case.data
    result = estimate(
        case.workload(), machine(-(-gpus // GPUS_PER_NODE)), steps=1, confirm=False
    )
    say(
        f"  {case.model}: {gpus} GPUs: {result.step_time_s:.3f} s in {result.wall_s:.0f} s"
    )
    return result.step_time_s


TABLE5 = (
    ("22B", (48, 6144, 64, 8, 1, 4, 1, 1), 1.42, 1.10),
    ("175B", (96, 12288, 96, 8, 8, 1, 64, 3), 18.13, 13.75),
    ("530B", (105, 20480, 128, 8, 35, 1, 280, 3), 49.05, 37.83),
    ("1T", (128, 25600, 160, 8, 64, 1, 512, 1), 94.42, 71.49),
)
"""Name, dimensions of `Case`, seconds with full and with selective recomputation."""

SC21 = (
    ("1.7B", (24, 2304, 24, 1, 1, 16, 1, 1), 32, 137),
    ("3.6B", (30, 3072, 32, 2, 1, 16, 1, 1), 32, 138),
    ("7.5B", (36, 4096, 32, 4, 1, 16, 1, 1), 32, 142),
    ("18.4B", (40, 6144, 48, 8, 1, 8, 4, 1), 32, 135),
    ("39.1B", (48, 8192, 64, 8, 2, 4, 12, 1), 32, 138),
    ("76.1B", (60, 10240, 80, 8, 4, 2, 28, 3), 32, 140),
    ("145.6B", (80, 12288, 96, 8, 8, 2, 48, 2), 24, 148),
    ("310.1B", (96, 16384, 128, 8, 16, 1, 144, 2), 15, 155),
    ("529.6B", (105, 20480, 128, 8, 35, 1, 280, 3), 9, 163),
    ("1008B", (128, 25600, 160, 8, 64, 1, 512, 1), 6, 163),
)
"""Name, dimensions, replicas, TFLOP/s per GPU."""


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def table5(only: str) -> list[str]:
    """Return the rows of the first table."""
    lines = []
    for name, shape, *measured in TABLE5:
        for full, published_s in zip((True, False), measured, strict=True):
            case = Case(name, *shape, full=full)
            label = "full" if full else "selective, sequence parallel"
            if only not in f"{name} {label}":
                continue
            result = step_s(case)
            lines.append(
                f"| {name} | {case.tensor * case.pipeline} | {label} | {published_s:.2f} s |"
                f" {result:.2f} s | {result / published_s - 1:+.1%} |"
            )
    return lines


def sc21(only: str) -> list[str]:
    """Return the rows of the second table."""
    lines = []
    for name, shape, replicas, published in SC21:
        if only not in f"SC21 {name}":
            continue
        case = Case(name, *shape, bits=16, data=replicas)
        batch = case.micro * case.microbatches * replicas
        gpus = case.tensor * case.pipeline * replicas
        size = case.layers * case.hidden
        work = 96.0 * batch * SEQUENCE * size * case.hidden
        work *= 1 + SEQUENCE / (6 * case.hidden) + VOCABULARY / (16 * size)
        result = work / step_s(case) / gpus / 1e12
        lines.append(
            f"| {name} | {gpus} | {case.tensor} x {case.pipeline} x {replicas} | {case.micro} |"
            f" {published} | {result:.0f} | {result / published - 1:+.1%} |"
        )
    return lines


def beside() -> list[str]:
    """Return the rows of the third table."""
    edge = 8192
    result = contention(
        clusim.load("a100x4-mesh"), Streams("allreduce", 256 << 20, 3_716_000_000, 3 * 2 * edge**2),
        granularity=COARSE,
    )  # fmt: skip
    rows = (
        ("all-reduce in isolation", "1944 us", f"{result.collective_alone_ps / 1e6:.0f} us",
         result.collective_alone_ps / 1944e6),
        ("all-reduce beside", "x1.48", f"x{result.collective_slowdown:.2f}", result.collective_slowdown / 1.4815),
        ("matrix product beside", "x1.16", f"x{result.kernel_slowdown:.2f}", result.kernel_slowdown / 1.1609),
    )  # fmt: skip
    return [
        f"| {name} | {was} | {now} | {ratio - 1:+.1%} |"
        for name, was, now, ratio in rows
    ]


def page() -> str:
    """Return the complete page."""
    parts = [
        HEAD.format(
            **made_at(),
            gemm=CHIPS["a100-sxm4-80gb"]["gemm_fraction"].value,
            sustained=chip_of(machine(1), PRECISIONS["fp16"]).sustained,
        )
    ]
    parts.append(HEAD_TABLE5 + "\n".join(table5("")) + "\n")
    parts.append(HEAD_SC21.lstrip("\n") + "\n".join(sc21("")) + "\n")
    parts.append(WRONG)
    parts.append(HEAD_BESIDE + "\n".join(beside()) + "\n" + MECHANISM)
    return "\n".join(part.strip("\n") + "\n" for part in parts)


HEAD_TABLE5 = """
## Megatron-LM (arXiv 2205.05198, table 5)

Time of an iteration on A100 80 GB. Full recomputation has tensor parallelism only; selective recomputation repeats
the attention core and has sequence parallelism. Plain attention, as at that time; fp16, 32-bit gradients.

| model | GPUs | recompute | measured | estimated | error |
|---|---|---|---|---|---|
"""

HEAD_BESIDE = """## An all-reduce beside matrix products

Four A100, four NVLinks between every two (`a100x4-mesh`), twenty all-reduces of 256 MiB on one stream and eight
products of 8192 x 8192 in bf16 on another; measured in the published A100 envelope of openfabric-systems/simllm
(`a100_hardware_envelope_v1`). The time of a product in isolation, 3716 us, is an input.

| | measured | simulated | error |
|---|---|---|---|
"""

WRONG = """## Causes of the errors

The aim is 5% in the first table, which all rows meet, and 7% in the second, which four rows miss by up to 2.6%.

- Nearly all rows of the second table are too fast, and the first table's rows with full recomputation too slow. No
  single set of parameters fits both: the same model, 530B on 8 x 35 GPUs with full recomputation, needed 49.05 s for
  280 sequences in the first, and in the second, a year earlier, 163 TFLOP/s or 54.1 s; the all-reduce between 9
  replicas explains half a second.
- *76.1B* is too fast by more than that. It measured no more than the models before and after it in the table;
  the model does not explain this.
- *1T* is too slow in the first table. It has the only pipeline there without interleaving: messages block, and are
  exposed for every microbatch.

In the second table gradients are reduced after the last backward pass, in the two-node rows too (those used DDP, which
hides a part). [accuracy-causes.md](accuracy-causes.md) lists the known causes for other published steps.
"""

MECHANISM = """
Most of the slowdown of the all-reduce is waiting: blocks are assigned to SMs in the order of launches, so an all-reduce
that is issued while a large product has blocks waiting starts when the product ends, and each product lets one
all-reduce pass. While it runs it holds 24 of 108 SMs, which slows the next product. `benchmarks/contention.py`
does this; `clusim train` does not: it starts a collective when its data are ready, because the many kernels
between two collectives are one task. So a real collective may start up to one kernel later than a simulated one.
"""


def main(arguments: list[str]) -> None:
    """Write the page, or print some rows."""
    if arguments[:1] == ["--only"]:
        only = arguments[1]
        print(
            "\n".join(
                table5(only) + sc21(only) + (beside() if only in "beside" else [])
            )
        )
        return
    text = page()
    if arguments:
        page_file = Path(arguments[0])
        before = page_file.read_text(encoding="utf-8") if page_file.exists() else ""
        # Text that `clusim validate` appended is kept.
        _, heading, rest = before.partition(HEADING)
        write_text(page_file, text + (f"\n{heading}{rest}" if heading else ""))
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
