"""CTAs beside each other: when each of a kernel starts, how they share a GPU's memory, how many warps ask for data.

**Hardware** A kernel of NCCL has a thread block for every channel that is used, numbered without gaps, and they start
one after the other. Loads of many CTAs wait longer in L2 and memory than those of one, so that each copies more
slowly: a CTA of sends and receives moves 21 GB/s where 4 are at work and 18.9 where 16 are (8 H100).
**Model** CTAs start `cta_skew` apart in the order of their channels. A byte costs a CTA ``1 + crowding x (CTAs -
1) x rate / memory rate`` times what it costs one that is alone, with the rate of a CTA that sends.
**Not modelled** That CTAs come and go in a kernel; what else uses the memory; copies of a rank to itself.
**Parameters** ``crowding`` of a protocol.
"""

from __future__ import annotations

from clusim.schedule.ir import ABSENT, CTA_WARPS, Schedule
from clusim.topology.model import Protocol

CROWD_ONE = 1024
"""The cost of a byte, against that of a CTA alone, where no other CTA is in its way."""


def start_order(schedule: Schedule) -> list[int]:
    """Return, per instance, how many CTAs of its kernel start before its own."""
    used: dict[int, set[int]] = {}
    for item in schedule.instances:
        used.setdefault(item.task, set()).add(item.channel)
    order = {task: {c: i for i, c in enumerate(sorted(own))} for task, own in used.items()}
    return [order[item.task][item.channel] for item in schedule.instances]


def exchanging(schedule: Schedule) -> dict[int, int]:
    """Return, per task, how many CTAs exchange data with other ranks."""
    moves = [
        any(prim.send != ABSENT or prim.recv != ABSENT for prim in template.prims)
        for template in schedule.templates
    ]
    used: dict[int, set[int]] = {}
    for item in schedule.instances:
        if moves[item.template]:
            used.setdefault(item.task, set()).add(item.channel)
    return {task: len(own) for task, own in used.items()}


def crowd_1024(protocol: Protocol, ctas: int, memory_Bps: float) -> int:
    """Return the cost of a byte for one of several CTAs, in 1/1024 of its cost for one alone.

    Parameters
    ----------
    memory_Bps : float
        Rate of the GPU's memory [B/s].
    """
    if not protocol.crowding or memory_Bps <= 0:
        return CROWD_ONE
    load = max(0, ctas - 1) * protocol.rate_Bps("send") / memory_Bps
    return round(CROWD_ONE * (1 + protocol.crowding * load))


def asking_warps(schedule: Schedule) -> list[float]:
    """Return, per connection, how many of a CTA's warps work at its receiver, which asks for data that are pulled."""
    warps: list[float] = [CTA_WARPS] * len(schedule.connections)
    for item in schedule.instances:
        if item.warps < CTA_WARPS:
            for number in item.connections:
                if schedule.connections[number].dst == item.rank:
                    warps[number] = item.warps
    return warps
