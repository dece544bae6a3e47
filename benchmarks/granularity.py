"""Measure accuracy and speed of bursts: the table of ``docs/accuracy-approximations.md``.

Every case runs with exact packets and with bursts; the error is that of the completion time against
exact packets. ``python benchmarks/granularity.py docs/accuracy-approximations.md`` writes the table of the page;
with sizes (``1MiB 16MiB``) only those sizes, with presets (``a100-pcie-x8``) their tables instead.
``--shares`` prints the errors of NCCL's plans with bursts of several fractions of a slice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import clusim
from clusim.base.files import write_text
from clusim.base.units import format_size, parse_size
from clusim.lowering.grain import RULES, SLICE_SHARE, GrainRule
from clusim.simulation.api import result_of
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup

Case = tuple[str, str | None]


@dataclass(frozen=True)
class Machine:
    """A system with its table: cases, sizes [bytes], bursts."""

    name: str
    cases: tuple[Case, ...]
    sizes: tuple[int, ...]
    grains: tuple[str | int, ...]


RING, TREE, ALL = ("allreduce", "ring"), ("allreduce", "tree"), ("alltoall", None)
MIB = 1 << 20
ON_PCIE = (
    (RING, TREE, ALL, ("sendrecv", None)),
    (MIB, 4 * MIB, 16 * MIB),
    (16 << 10,),
)
MACHINES = (
    Machine(
        "dgx-h100",
        (RING, TREE, ALL, ("allreduce", "nvls")),
        (16 * MIB, 256 * MIB, 1 << 30),
        ("auto", 4 << 10, 16 << 10, 64 << 10),
    ),
    Machine("a100-pcie-x8", *ON_PCIE),
    Machine("rtx4090x8-pcie", *ON_PCIE),
)  # fmt: skip

ON_PAGE = ("dgx-h100",)
"""Presets with tables on the page."""

TABLES = "| dgx-h100 | size |"
"""Start of the first table of the page; the text above it is written by hand."""

SHARES = (24, 6)
"""Parts of a slice that bursts are at most, in the table of ``--shares``."""

LEAST_ERROR = 0.03
"""Cases of ``--shares`` with smaller errors are only counted."""

NCCL_CASES = (
    *(
        ("dgx-h100", None, "allreduce", "Ring", "Simple", size)
        for size in (4, 16, 64)
    ),
    *(("dgx-h100", None, "allreduce", "Ring", "LL128", size) for size in (4, 16)),
    *(("dgx-h100", None, "allreduce", "NVLS", "Simple", size) for size in (16, 32)),
    *(("dgx-h100", None, "allreduce", "Tree", "Simple", size) for size in (16, 64)),
    ("dgx-h100", None, "alltoall", "", "", 64),
    ("dgx-h100", 2, "alltoall", "", "", 16),
    ("dgx-h100", 2, "alltoall", "", "", 64),
    ("dgx-h100", 2, "broadcast", "Ring", "Simple", 32),
    ("dgx-h100", 4, "allreduce", "Ring", "Simple", 16),
    ("dgx-h100", 4, "allreduce", "Ring", "Simple", 64),
    ("dgx-h100", 4, "allreduce", "Ring", "LL128", 16),
    ("dgx-h100", 4, "allgather", "Ring", "Simple", 64),
    ("dgx-h100", 4, "reducescatter", "Ring", "Simple", 64),
    ("dgx-h100", 4, "allreduce", "Tree", "Simple", 16),
    ("dgx-h100", 4, "allreduce", "NVLSTree", "Simple", 4),
    ("dgx-h100", 4, "allreduce", "NVLSTree", "Simple", 16),
    ("dgx-h100", 8, "allreduce", "Ring", "Simple", 64),
    ("dgx-h100", 8, "allreduce", "NVLSTree", "Simple", 8),
    ("dgx-h100", 8, "allreduce", "NVLSTree", "Simple", 32),
    ("dgx-a100", 2, "allreduce", "Ring", "Simple", 32),
    ("dgx-a100", 2, "allreduce", "Tree", "Simple", 32),
    ("dgx-a100", 8, "allreduce", "Tree", "Simple", 8),
    ("mi300x", None, "allreduce", "Ring", "Simple", 32),
    ("a100-pcie-x8", None, "allreduce", "Ring", "Simple", 8),
    ("rtx4090x8-pcie", None, "allreduce", "Ring", "Simple", 4),
)
"""Preset, node count, operation, NCCL algorithm and protocol, size [MiB]."""


def shares(
    cases: Sequence[tuple[str, int | None, str, str, str, int]] = NCCL_CASES,
) -> None:
    """Print the errors of NCCL's plans with bursts of two fractions of a slice.

    Needs a quarter of an hour. Errors below `LEAST_ERROR` are on stderr.
    """
    smaller = 0
    for share in SHARES:
        factor = (SLICE_SHARE // share,)
        RULES[f"1/{share}"] = GrainRule(0, 0, sys.maxsize, factor, None)
    words = [f"1/{share}" for share in SHARES]
    print(f"| nodes | collective | MiB | exact | {' | '.join(words)} |")
    print(f"|---|---|---:|---:|{'---:|' * len(words)}")
    for machine, nodes, operation, algorithm, protocol, size in cases:
        env = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol} if algorithm else {}
        setup = Setup(machine, nodes, env=tuple(env.items()))
        times = [
            result_of(
                Request(setup, operation, size * MIB, granularity=word)
            ).time_ps
            for word in ("packet", *words)
        ]
        errors = [time_ps / times[0] - 1 for time_ps in times[1:]]
        small = max(map(abs, errors)) < LEAST_ERROR
        smaller += small
        cells = " | ".join(f"{error:+.1%}" for error in errors)
        what = f"{operation} {algorithm} {protocol}".strip()
        print(
            f"| {nodes or 1} {machine} | {what} | {size} | {times[0] / 1e6:.0f} us | {cells} |",
            file=sys.stderr if small else sys.stdout,
            flush=True,
        )
    print(f"\n{smaller} other cases have smaller errors.")


def rows(machine: Machine, sizes: Sequence[int]) -> list[str]:
    """Return the lines of a table, printing progress on stderr."""
    fabric = clusim.load(machine.name)
    names = [g if isinstance(g, str) else format_size(g) for g in machine.grains]
    lines = [
        f"| {machine.name} | size | packet | {' | '.join(names)} |",
        f"|---|---|---:|{'---:|' * len(names)}",
    ]
    for operation, algorithm in machine.cases:
        for size_bytes in sizes or machine.sizes:
            schedule = clusim.collectives.build(
                fabric, operation, algorithm, size_bytes
            )
            exact = clusim.simulate(fabric, schedule, granularity="packet")
            cells = [f"{exact.time_ps / 1e6:.1f} us"]
            for grain in machine.grains:
                result = clusim.simulate(fabric, schedule, granularity=grain)
                error = result.time_ps / exact.time_ps - 1
                faster = exact.wall_s / max(result.wall_s, 1e-9)
                burst = result.provenance.burst_packets
                cells.append(
                    "exact" if burst == 1 else f"{error:+.1%} ({faster:.0f}x)"
                )
            name = f"{algorithm or operation} | {format_size(size_bytes)}"
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr)
    return lines


def main(arguments: list[str]) -> None:
    """Write the tables into the page named by the first argument, or print them."""
    if arguments == ["--shares"]:
        shares()
        return
    known = {machine.name for machine in MACHINES}
    wanted = [text for text in arguments[1:] if text in known]
    sizes = [parse_size(text) for text in arguments[1:] if text not in known]
    tables = [
        "\n".join(rows(machine, sizes))
        for machine in MACHINES
        if machine.name in (wanted or ON_PAGE)
    ]
    result = "\n\n".join(tables) + "\n"
    if arguments:
        text, _, _ = Path(arguments[0]).read_text(encoding="utf-8").partition(TABLES)
        write_text(arguments[0], text + result)
    else:
        print(result)


if __name__ == "__main__":
    main(sys.argv[1:])
