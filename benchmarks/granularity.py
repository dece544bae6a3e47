"""Measure what bursts cost and gain: the table of ``docs/granularity.md``.

Every case runs with exact packets and with bursts; the error is that of the completion time against
exact packets. ``python benchmarks/granularity.py docs/granularity.md`` writes the page; with sizes
(``1MiB 16MiB``) only those, with machines (``a100-pcie-x8``) only their tables.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import clusim
from clusim.files import write_text
from clusim.units import format_size, parse_size

Case = tuple[str, str | None]


@dataclass(frozen=True)
class Machine:
    """A machine with its table: cases, sizes [bytes], bursts."""

    name: str
    cases: tuple[Case, ...]
    sizes: tuple[int, ...]
    grains: tuple[str | int, ...]


RING, TREE, ALL = ("allreduce", "ring"), ("allreduce", "tree"), ("alltoall", None)
MIB = 1 << 20
ON_PCIE = (RING, TREE, ALL, ("sendrecv", None)), (MIB, 4 * MIB, 16 * MIB), (16 << 10,)
MACHINES = (
    Machine(
        "dgx-h100",
        (RING, TREE, ALL, ("allreduce", "nvls")),
        (MIB, 16 * MIB, 256 * MIB, 1 << 30),
        ("auto", 1 << 10, 4 << 10, 16 << 10, 64 << 10),
    ),
    Machine("a100-pcie-x8", *ON_PCIE),
    Machine("rtx4090x8-pcie", *ON_PCIE),
)  # fmt: skip

HEAD = """# Granularity: what bursts cost and gain

A *burst* stands for several consecutive packets of one message: the same bytes on the wire, the same
control bytes, fewer events. `--granularity packet` is the exact machine, `--granularity SIZE` makes
bursts of about that size. `auto`, the default, means the same in every command and for every kind of run: it is
exact up to 32 million packet-hops; above that it takes the smallest bursts that bring the run to 16 million, none
larger than 1/24 of a slice (1/64 of a message of synthetic traffic). The output of every run says which was used,
in text and JSON.

`quick` is the same rule with 2 million for both numbers, and bursts of up to 1/6 of a slice where that leaves more than
4 million, for many runs at once: `clusim validate` uses it. 14 kernels of 16 to 256 MiB on DGX A100, DGX H100, HGX B200
took 3.4% less to 3.6% more than with `auto`, 1.9% in the median, at a tenth of the work; no bound is known.

**Bound.** With bursts that `auto` chose, no time was found further than 6.7% from that of exact packets (a ring of
33 MiB on `rtx3090x8-edr56`); outputs name 8% as the bound (`error_bound` in JSON: 0 is exact, null is a size that was
asked for, for which none is known). Permutations on fat trees and meshes are off by 0.001%, an all-to-all of
messages on a fat tree by 1.4% (40 to 54 million packet-hops).

The error below is that of the completion time against exact packets. On `dgx-h100` with `auto` it stays below
0.3% for rings and all-to-all. Trees and NVLS are more sensitive: there bursts come out up to 2.3% and 3.2% *faster*,
and even bursts of two packets differ by 1% at 256 MiB. Exact runs of these two move as much by themselves: at
64 MiB, starting the CTAs 50, 200 or 400 ns apart instead of 100 changes a tree by -1.7% to +0.7% and NVLS by
-1.3% to +0.1%. So part of the error is the sensitivity of a perfectly regular machine to phase; run what must
be exact with `--granularity packet`.

Where data are staged in host memory (PCIe without peer to peer, between sockets), requests to read them queue
behind writes. A buffer that grew with bursts would be a longer queue, and a window of a few bursts would stand
still; so there bursts are limited, whatever is asked for, to a 32nd of the buffer: 4 packets of 128 B on 16 lanes,
exact packets on 4. (Runs of more than 150 million of those may take bursts up to 4 times as large.) Rings,
all-to-all and messages then stay within 1.1% from 4 to 16 MiB. Below, and for trees and long runs, bursts change
when CTAs fall out of step, and that counts for more: on `rtx4090x8-pcie` an exact ring of 1 MiB takes 244 us if its
CTAs start at once and 209 us if they start 1 us apart, and in bursts it is 3.1% off; a ring of 64 MiB on
`rtx3090x8-edr56` is 5.6% off, or 2.2% if they start 1 us apart; one of
32 MiB is 6.6% off, and 0.04% in bursts of half the size.

Wall time is the engine's, on one core. Written by `python benchmarks/granularity.py`; times depend on the
machine, errors do not.
"""


def rows(machine: Machine, sizes: Sequence[int]) -> list[str]:
    """Return the lines of a table, printing progress on stderr."""
    fabric = clusim.load(machine.name)
    lines = [
        f"| {machine.name} | size | granularity | burst | time | wall | speed-up | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for operation, algorithm in machine.cases:
        for size_bytes in sizes or machine.sizes:
            schedule = clusim.collectives.build(fabric, operation, algorithm, size_bytes)
            exact = clusim.simulate(fabric, schedule, granularity="packet")
            for grain in ("packet", *machine.grains):
                result = exact
                if grain != "packet":
                    result = clusim.simulate(fabric, schedule, granularity=grain)
                name = grain if isinstance(grain, str) else format_size(grain)
                error = result.time_ps / exact.time_ps - 1
                lines.append(
                    f"| {algorithm or operation} | {format_size(size_bytes)} | {name} "
                    f"| {result.provenance.burst_packets} | {result.time_ps / 1e6:.2f} us "
                    f"| {result.wall_s:.3f} s | {exact.wall_s / max(result.wall_s, 1e-9):.1f} | {error:+.3%} |"
                )
                print(lines[-1], file=sys.stderr)
    return lines


def main(arguments: list[str]) -> None:
    """Write the page named by the first argument, or print it."""
    known = {machine.name for machine in MACHINES}
    wanted = [text for text in arguments[1:] if text in known]
    sizes = [parse_size(text) for text in arguments[1:] if text not in known]
    tables = [
        "\n".join(rows(machine, sizes))
        for machine in MACHINES
        if not wanted or machine.name in wanted
    ]
    page = "\n".join([HEAD, "\n\n".join(tables), ""])
    if arguments:
        write_text(arguments[0], page)
    else:
        print(page)


if __name__ == "__main__":
    main(sys.argv[1:])
