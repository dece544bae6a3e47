"""Measure what bursts cost and gain: the table of ``docs/granularity.md``.

Every case runs with exact packets and with bursts; the error is that of the completion time against
exact packets. ``python benchmarks/granularity.py docs/granularity.md`` writes the page; with sizes
(``1MiB 16MiB``) only those.
"""

from __future__ import annotations

import sys

import clusim
from clusim.files import write_text
from clusim.units import format_size, parse_size

TOPOLOGY = "dgx-h100"
CASES = (("allreduce", "ring"), ("allreduce", "tree"), ("alltoall", None), ("allreduce", "nvls"))
SIZES = (1 << 20, 16 << 20, 256 << 20, 1 << 30)
GRAINS: tuple[str | int, ...] = ("auto", 1 << 10, 4 << 10, 16 << 10, 64 << 10)

HEAD = """# Granularity: what bursts cost and gain

A *burst* stands for several consecutive packets of one message: the same bytes on the wire, the same
control bytes, fewer events. `--granularity packet` is the exact machine, `--granularity SIZE` makes
bursts of about that size. `auto`, the default, is exact up to 32 million packet-hops; above that it takes
the smallest bursts that bring the run to 16 million, none larger than 1/24 of a slice. The output of every
run says which was used.

The error below is that of the completion time against exact packets. With `auto` it stays below 0.3% for
rings and all-to-all. Trees and NVLS are more sensitive: there bursts come out up to 2.3% and 3.2% *faster*,
and even bursts of two packets differ by 1% at 256 MiB. Exact runs of these two move as much by themselves: at
64 MiB, starting the CTAs 50, 200 or 400 ns apart instead of 100 changes a tree by -1.7% to +0.7% and NVLS by
-1.3% to +0.1%. So part of the error is the sensitivity of a perfectly regular machine to phase; run what must
be exact with `--granularity packet`.

Wall time is the engine's, on one core. Written by `python benchmarks/granularity.py`; times depend on the
machine, errors do not.
"""


def rows(sizes: tuple[int, ...]) -> list[str]:
    """Return the lines of the table, printing progress on stderr."""
    fabric = clusim.load(TOPOLOGY)
    lines = [
        f"| {TOPOLOGY} | size | granularity | burst | time | wall | speed-up | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for operation, algorithm in CASES:
        for size_bytes in sizes:
            schedule = clusim.collectives.build(fabric, operation, algorithm, size_bytes)
            exact = clusim.simulate(fabric, schedule, granularity="packet")
            for grain in ("packet", *GRAINS):
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
    sizes = tuple(parse_size(text) for text in arguments[1:]) or SIZES
    page = "\n".join([HEAD, *rows(sizes), ""])
    if arguments:
        write_text(arguments[0], page)
    else:
        print(page)


if __name__ == "__main__":
    main(sys.argv[1:])
