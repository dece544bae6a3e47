"""Runs of several jobs: programs with messages, and bursts that do not depend on the number of jobs.

Storage and synthetic traffic are messages, without SMs.

**Model** Programs are lowered as always, messages as those of synthetic traffic, and both images are joined: flows of
both share wires, queues, memory and slots of endpoints (contract, sections 5 and 10). Buffers have room for the larger
bursts of the two. Bursts are chosen by the size of a run; a run of some jobs has the bursts and buffers of
the run of all, so that jobs without a common wire have equal times in both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from clusim.base.arrays import Array
from clusim.engine.abi import NONE
from clusim.engine.image import Image, Senders
from clusim.lowering import Grain, Lowered
from clusim.policies.choice import BoundSender
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusim.simulation.request import FlowMessages, PartOfRun


def add_messages(
    fabric: Fabric, lowered: Lowered, messages: FlowMessages, granularity: str | int
) -> Lowered:
    """Return a lowered schedule with messages, in bursts by the granularity.

    Raises
    ------
    InputError
        An endpoint sends more flows than it has slots, or a message has too many packets.
    """
    # Few runs have messages.
    from clusim.simulation.flows import check_slots
    from clusim.simulation.traffic_image import grain_of, to_image

    arrays = arrays_of(fabric)
    check_slots(arrays, messages.traffic.flows)
    grain = grain_of(arrays, messages.traffic, messages.plan.messages, granularity)
    image = to_image(fabric, messages.traffic, messages.plan, grain.burst)
    return replace(
        lowered,
        image=_join_images(lowered.image, image),
        grain=_join_grains(lowered.grain, grain),
    )


def as_part(lowered: Lowered, part: PartOfRun) -> Lowered:
    """Return a lowered part of a run, written in packets, with the bursts and the buffers of the full run."""
    full, image = part.full, lowered.image
    row_of = {key: row for row, key in enumerate(_ordinals(full.owner))}
    rows = [
        row_of[part.connections[owner], ordinal]
        for owner, ordinal in _ordinals(lowered.owner)
    ]
    conns, sources = image.conns.copy(), image.sources.copy()
    conns["burst"] = full.image.conns["burst"][rows]
    sources["burst"] = full.image.sources["burst"].max(initial=1)
    return replace(
        lowered,
        image=replace(
            image,
            conns=conns,
            sources=sources,
            wires=full.image.wires,
            units=full.image.units,
        ),
        grain=replace(full.grain, packet_hops=lowered.grain.packet_hops),
    )


def _ordinals(owners: Sequence[int]) -> list[tuple[int, int]]:
    """Return the owner of each connection, and its number among the connections of the owner."""
    counts: Counter[int] = Counter()
    result = []
    for owner in owners:
        result.append((owner, counts[owner]))
        counts[owner] += 1
    return result


def _join_images(programs: Image, messages: Image) -> Image:
    """Return the image of programs with the sources and messages of another one of the same topology."""
    first_control, first_spread = len(programs.controls), len(programs.spreads)
    sources = messages.sources.copy()
    for name, first in (("control", first_control), ("spread", first_spread)):
        sources[name][sources[name] != NONE] += first
    controls = messages.controls.copy()
    controls["receiver"][controls["receiver"] > 0] += first_control
    return replace(
        programs,
        nvc=max(programs.nvc, messages.nvc),
        wires=_join_wires(programs.wires, messages.wires),
        controls=np.concatenate((programs.controls, controls)),
        senders=_join_senders(programs, messages, controls),
        spreads=np.concatenate((programs.spreads, messages.spreads)),
        sources=sources,
        messages=messages.messages,
    )


def _join_wires(one: Array, other: Array) -> Array:
    """Return wires with the room of both; with the policies and schedules of the first."""
    result = one.copy()
    for name in result.dtype.names or ():
        if name not in ("policy", "schedule"):
            result[name] = np.maximum(one[name], other[name])
    return result


def _join_senders(programs: Image, messages: Image, controls: Array) -> Senders:
    """Return the policies by row of the joined rate controls; empty without any."""
    if not programs.senders and not messages.senders:
        return ()
    names = controls.dtype.names or ()
    of_messages: list[BoundSender | None] = [None] * len(controls)
    for row, sender in enumerate(messages.senders):
        if sender is not None:
            values = tuple(int(controls[row][name]) for name in names)
            of_messages[row] = replace(
                sender, rates=tuple(zip(names, values, strict=True))
            )
    of_programs = programs.senders or (None,) * len(programs.controls)
    return (*of_programs, *of_messages)


def _join_grains(one: Grain, other: Grain) -> Grain:
    """Return the granularity of a run of both."""
    return Grain(
        one.requested,
        max(one.burst, other.burst),
        (
            min(one.burst_bytes[0] or other.burst_bytes[0], other.burst_bytes[0]),
            max(one.burst_bytes[1], other.burst_bytes[1]),
        ),
        one.packet_hops + other.packet_hops,
        one.grant_hops + other.grant_hops,
        one.least_hops + other.least_hops,
        max(one.buffer_growth, other.buffer_growth),
    )
