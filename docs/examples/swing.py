"""Swing: a bandwidth-optimal all-reduce that shortens the paths of recursive halving on square tori.

D. De Sensi et al., "Swing: Short-cutting rings for higher bandwidth allreduce", NSDI 2024: in step s ranks exchange
blocks over a distance of (1 - (-2)^(k+1)) / 3 along a dimension, k = s // 2. Dimensions alternate. Each of the four
ports of a router carries a quarter of the data; two ports begin with the other dimension, and two are mirrored.

Run it with ``python docs/examples/swing.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import clusim
from clusim.schedule import CollectiveWriter, Prim, Schedule

AHEAD = 4
"""Blocks that a rank sends before it waits for the first: a step is one message of many blocks."""


def distance(step: int) -> int:
    """Return the distance of the exchange in a step, with its sign for even places."""
    return (1 - (-2) ** (step // 2 + 1)) // 3


def peer(rank: int, step: int, side: int, port: int) -> int:
    """Return the peer of a rank in a step of a port."""
    place = list(divmod(rank, side))
    axis, mirror = (step + port) % 2, port // 2
    moved = distance(step) * (-1 if mirror else 1)
    place[axis] = (place[axis] + (-moved if place[axis] % 2 else moved)) % side
    return place[0] * side + place[1]


def pipelined(
    sent: Sequence[int], received: Sequence[int]
) -> Iterator[tuple[int | None, int | None]]:
    """Yield the next block to receive and the next to send, `AHEAD` blocks of which precede."""
    yield from ((None, block) for block in sent[:AHEAD])
    for number, block in enumerate(received):
        later = number + AHEAD
        yield block, sent[later] if later < len(sent) else None


def swing(side: int, size_bytes: int) -> Schedule:
    """Return the all-reduce on a torus of `side` x `side` ranks, a power of two."""
    ranks = side * side
    writer = CollectiveWriter.create(
        "allreduce", size_bytes, ranks=ranks, channels=4, algorithm="swing"
    )
    for part in writer.parts():
        steps = range((ranks - 1).bit_length())
        peers = [[peer(rank, step, side, part.channel) for rank in range(ranks)] for step in steps]
        blocks = [[{rank} for rank in range(ranks)]]  # that a rank reduces from a step on
        for others in reversed(peers):
            blocks.insert(0, [blocks[0][rank] | blocks[0][others[rank]] for rank in range(ranks)])
        pipes = [
            [writer.connect(rank, other, part.channel) for rank, other in enumerate(others)]
            for others in (*peers, *reversed(peers))
        ]
        for rank in range(ranks):
            prims: list[Prim] = []
            used = []
            for number, step in enumerate((*steps, *reversed(steps))):
                other, gathers = peers[step][rank], number >= len(steps)
                used += [pipes[number][rank], pipes[number][other]]
                mine, theirs = (sorted(blocks[step + 1][r]) for r in (rank, other))
                sent, received = (mine, theirs) if gathers else (theirs, mine)
                source = "output" if number else "input"
                for arriving, leaving in pipelined(sent, received):
                    if arriving is not None and gathers:
                        prims.append(Prim("recv", recv=2 * number + 1, base=arriving))
                    elif arriving is not None:
                        prims.append(
                            Prim("recvReduceCopy", recv=2 * number + 1, base=arriving, src=source)
                        )
                    if leaving is not None:
                        prims.append(Prim("send", send=2 * number, base=leaving, src=source))
            writer.program(rank, part, prims, used, nchunks=ranks)
    return writer.schedule()


def torus(side: int) -> str:
    """Return the torus of the paper: 400 Gb/s, 100 ns a link, 300 ns a router."""
    options = "rate=50GB/s,latency=100ns,switch_latency=300ns,host_rate=400GB/s,host_latency=1ns"
    return f"torus:{side}x{side},{options}"


def main() -> None:
    """Verify Swing with real data, and print its share of the peak of two ports in each direction."""
    fabric = clusim.load(torus(8))
    print(clusim.simulate(fabric, swing(8, 1 << 20), verify=True).verify_note)
    size_bytes = 128 << 20
    result = clusim.simulate(fabric, swing(8, size_bytes))
    print(f"8x8, 128 MiB: {size_bytes / (result.time_ps / 1e12) / 100e9:.1%} of the peak")


if __name__ == "__main__":
    main()
