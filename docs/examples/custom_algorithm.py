"""An all-reduce of one's own: reduce along a chain of ranks, then hand the result back along it.

Run it with ``python docs/examples/custom_algorithm.py``.
"""

from __future__ import annotations

import clusim
from clusim.schedule import CollectiveWriter, Prim, Schedule


def chain_allreduce(ranks: int, size_bytes: int, channels: int = 8) -> Schedule:
    """Return an all-reduce over a chain: up from the last rank to the first, and down again."""
    writer = CollectiveWriter.create(
        "allreduce", size_bytes, ranks=ranks, channels=channels, algorithm="chain"
    )
    for part in writer.parts():
        up = [writer.connect(r + 1, r, part.channel) for r in range(ranks - 1)]
        down = [writer.connect(r, r + 1, part.channel) for r in range(ranks - 1)]
        turn = [Prim("recvReduceCopySend", recv=0, send=1)]
        writer.program(0, part, turn, [up[0], down[0]])
        for r in range(1, ranks - 1):
            writer.program(r, part, [Prim("recvReduceSend", recv=0, send=1)], [up[r], up[r - 1]])
            writer.program(r, part, [Prim("recvCopySend", recv=0, send=1)], [down[r - 1], down[r]])
        writer.program(ranks - 1, part, [Prim("send", send=0)], [up[-1]])
        writer.program(ranks - 1, part, [Prim("recv", recv=0)], [down[-1]])
    return writer.schedule()


def main() -> None:
    """Compare the chain with a ring on a DGX A100; the data are real and checked."""
    fabric = clusim.load("dgx-a100")
    size_bytes = 4 << 20
    for schedule in (
        chain_allreduce(8, size_bytes),
        clusim.collectives.build(fabric, "allreduce", "ring", size_bytes, channels=8),
    ):
        result = clusim.simulate(fabric, schedule, verify=True)
        rate = size_bytes / result.time_ps * 1000
        print(
            f"{schedule.name}: {result.time_ps / 1e6:.1f} us, {rate:.1f} GB/s, {result.verified=}"
        )


if __name__ == "__main__":
    main()
