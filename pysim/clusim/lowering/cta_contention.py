"""Start times of the CTAs of a kernel, memory contention, rounds of threads, and warps that issue reads.

**Hardware** A kernel of NCCL has a thread block for every used channel, numbered without gaps, and they start
one after the other. Loads of many CTAs wait longer in L2 and memory than loads of a single CTA, so that each copies
more slowly: a CTA of sends and receives moves 21 GB/s with 4 active CTAs and 18.9 GB/s with 16 (8 H100).
**Model** CTAs start `cta_skew` apart in the order of their channels. The cost of a byte grows by the factor
``1 + crowding x (CTAs - 1) x rate / memory rate``, with the rate of a CTA that sends.
A step of LL lasts a first round by its bytes, and `round` for every further one. Collectives without reduction are
kernels of int8 (``src/collectives.cc``): they store each byte of a line of LL separately (``storeData`` of
``src/device/prims_ll.h``), and a first round is longer; stores of later rounds overlap their loads.
**Not modelled** CTAs that start and end within a kernel; other users of the memory; copies of a rank to itself.
**Parameters** ``crowding``, ``round``, ``grid_start`` and the throughput ``storeBytes`` of a protocol.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusim.base.terms.operations import REDUCING
from clusim.schedule.ir import ABSENT, CTA_WARPS, Instance, Schedule
from clusim.topology.packets import STORE_BYTES, Protocol

ROUND_BYTES = 4096
"""Data of a round of all threads of LL [bytes]: 512 lines."""

CROWD_ONE = 1024
"""Cost factor of a byte without contention by other CTAs, in 1/1024."""


def start_order(schedule: Schedule) -> list[int]:
    """Return, per instance, the number of CTAs of its kernel that start earlier."""
    used = _channels(schedule.instances)
    order = {
        task: {c: i for i, c in enumerate(sorted(ctas))}
        for task, ctas in used.items()
    }
    return [order[item.task][item.channel] for item in schedule.instances]


def start_ps(protocol: Protocol, earlier: int, cta_skew_ps: int) -> int:
    """Return the start of a CTA after `earlier` ones of its kernel [ps]."""
    return earlier * cta_skew_ps + (protocol.grid_start_ps if earlier else 0)


def exchanging(schedule: Schedule) -> dict[int, int]:
    """Return, per task, the number of CTAs that exchange data with other ranks."""
    moves = [
        any(prim.send != ABSENT or prim.recv != ABSENT for prim in template.prims)
        for template in schedule.templates
    ]
    used = _channels(item for item in schedule.instances if moves[item.template])
    return {task: len(ctas) for task, ctas in used.items()}


def _channels(instances: Iterable[Instance]) -> dict[int, set[int]]:
    used: dict[int, set[int]] = {}
    for item in instances:
        used.setdefault(item.task, set()).add(item.channel)
    return used


def crowd_1024(protocol: Protocol, ctas: int, memory_Bps: float) -> int:
    """Return the cost of a byte for one of `ctas` CTAs, in 1/1024 of a single CTA's.

    Parameters
    ----------
    memory_Bps : float
        Rate of the GPU's memory [B/s].
    """
    if not protocol.crowding or memory_Bps <= 0:
        return CROWD_ONE
    load = max(0, ctas - 1) * protocol.rate_Bps("send") / memory_Bps
    return round(CROWD_ONE * (1 + protocol.crowding * load))


def stores_bytes(schedule: Schedule, item: Instance) -> bool:
    """Return True if a program of LL stores data in its user's buffer byte by byte."""
    call = schedule.tasks[item.task].call
    if (
        item.protocol != "ll"
        or call == ABSENT
        or schedule.calls[call].operation in REDUCING
    ):
        return False
    return any(prim.op != "send" for prim in schedule.templates[item.template].prims)


def rounds_1024(
    protocol: Protocol, chunk_bytes: int, *, by_bytes: bool = False
) -> int:
    """Return the cost of a byte of a chunk of several rounds of threads, in 1/1024 of a first round's.

    The fixed cost of a slice is added to every round, and is part of `round`.

    Parameters
    ----------
    chunk_bytes : int
        Data of the chunk [bytes].
    by_bytes : bool
        True if they are stored byte by byte (`stores_bytes`).
    """
    extra_rounds = -(-chunk_bytes // ROUND_BYTES) - 1
    per_byte_ps = protocol.expand_120 / 120 * 1e12 / protocol.rate_Bps("send")
    linear_ps = time_ps = chunk_bytes * per_byte_ps
    if not linear_ps:
        return CROWD_ONE
    if protocol.round_ps and extra_rounds > 0:
        more_ps = max(0, protocol.round_ps - protocol.fixed_ps)
        time_ps = ROUND_BYTES * per_byte_ps + extra_rounds * more_ps
    if by_bytes and STORE_BYTES in protocol.op_Bps:
        stored = min(chunk_bytes, ROUND_BYTES) * protocol.expand_120 / 120
        time_ps += stored * 1e12 / protocol.op_Bps[STORE_BYTES]
    return round(CROWD_ONE * time_ps / linear_ps)


def asking_warps(schedule: Schedule) -> list[float]:
    """Return, per connection, the warps of the receiver's CTA, which request read data."""
    warps: list[float] = [CTA_WARPS] * len(schedule.connections)
    for item in schedule.instances:
        if item.warps < CTA_WARPS:
            for number in item.connections:
                if schedule.connections[number].dst == item.rank:
                    warps[number] = item.warps
    return warps
