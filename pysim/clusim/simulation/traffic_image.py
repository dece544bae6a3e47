"""Image of synthetic traffic: granularity, packets and messages of its flows."""

from __future__ import annotations

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.base.units import format_size
from clusim.engine.abi import Policy
from clusim.engine.image import Image, empty
from clusim.engine.ranges import packets_refused
from clusim.lowering import Grain
from clusim.lowering.buffers import Packets, growth, roomy_wires, unblocked_burst
from clusim.lowering.controls import put_policies
from clusim.lowering.forwarding import flow_hash
from clusim.lowering.grain import automatic, check_granularity, power_below
from clusim.lowering.spreads import Spreading
from clusim.results.result import Messages
from clusim.simulation.sources import Sources, nics_crossed
from clusim.simulation.traffic import Traffic, TrafficPlan
from clusim.topology import Fabric, FabricArrays
from clusim.topology.arrays import arrays_of
from clusim.topology.rows import class_vcs

MESSAGE_SHARE = 64
"""``auto`` limits a burst to this fraction of a message."""

PATHS = 256
"""Maximum sample of messages for the estimate of packet-hops."""


def grain_of(
    arrays: FabricArrays,
    traffic: Traffic,
    messages: Messages,
    granularity: str | int,
) -> Grain:
    """Return the granularity of messages.

    ``auto`` and ``quick`` limit a burst to 1/64 of a message, and all names by the thresholds to pause and to mark.
    """
    packets = -(-traffic.message_bytes // traffic.packet_bytes)
    hops = round(packets * len(messages.source) * _mean_hops(arrays, messages))
    burst, word = 1, check_granularity(granularity)
    if isinstance(word, int):
        burst = max(1, min(word // traffic.packet_bytes, packets))
    elif word != "packet":
        every = range(len(arrays.formats))
        burst_limit = unblocked_burst(arrays, every, traffic.packet_bytes) or packets
        burst = automatic(
            [hops],
            lambda factor: [
                min(burst_limit, power_below(packets * factor // MESSAGE_SHARE))
            ],
            word,
        )[0]
    size = min(burst * traffic.packet_bytes, traffic.message_bytes)
    grown = growth(_wires(arrays, traffic, burst), _wires(arrays, traffic, 1))
    return Grain(
        str(granularity),
        burst,
        (size, size),
        hops,
        -(-hops // burst),
        buffer_growth=grown,
    )


def _wires(arrays: FabricArrays, traffic: Traffic, burst: int) -> Array:
    """Return the wires with buffers for bursts of `burst` packets."""
    every = frozenset(range(len(arrays.formats)))
    return roomy_wires(
        arrays, arrays.wires.copy(), [Packets(traffic.packet_bytes, burst, every)]
    )


def _mean_hops(arrays: FabricArrays, messages: Messages) -> float:
    """Return the mean number of wires that a message crosses, over an even sample of all."""
    count = len(messages.source)
    if not count:
        return 0.0
    sampled = np.unique(
        np.linspace(0, count - 1, min(count, PATHS)).round().astype(np.int64)
    )
    pairs = np.stack(
        (messages.source[sampled], messages.destination[sampled]), axis=1
    )
    return float(np.mean([len(arrays.path(a, b)) for a, b in pairs.tolist()]))


def _continue_keys(
    keys: Array, messages: Messages, burst_bytes: int, policy: Array
) -> None:
    """Continue, in each part of a flow with striped packets, the turn of the part before."""
    turns = (policy == Policy.STRIPE)[messages.flow]
    packets = -(-messages.size_bytes // burst_bytes)
    before = np.cumsum(packets) - packets
    earlier = before - before[np.searchsorted(messages.flow, messages.flow)]
    keys[turns] += earlier.astype(np.uint32)[turns]


def to_image(
    fabric: Fabric, traffic: Traffic, plan: TrafficPlan, burst: int = 1
) -> Image:
    """Return the image of `plan` on `fabric`, in bursts of `burst` packets."""
    arrays, messages = arrays_of(fabric), plan.messages
    why = packets_refused(traffic.message_bytes, traffic.packet_bytes * burst)
    if why:
        raise InputError(f"message {format_size(traffic.message_bytes)}: {why}")
    wires = _wires(arrays, traffic, burst)
    sources = empty("sources", len(plan.first))
    sources["endpoint"] = arrays.rank_endpoint[messages.source[plan.first]]
    sources["msg_lo"] = plan.first
    sources["msg_hi"] = plan.end
    sources["packet_bytes"] = traffic.packet_bytes
    sources["burst"] = burst
    vias = nics_crossed(arrays, messages)
    spreading = Spreading(traffic.routing, traffic.gap_ps)
    paths = Sources.of_first(messages, plan.first, vias).choices(
        arrays, spreading, traffic.reorder
    )
    for name in ("policy", "spread", "control", "vc"):
        sources[name] = getattr(paths, name)
    for row, number in (
        enumerate(messages.flow[plan.first].tolist()) if traffic.flows else ()
    ):
        chosen = traffic.flows[number].traffic_class
        if chosen is not None:
            sources["vc"][row] = class_vcs(fabric, np.array(chosen))
    table = empty("messages", len(messages.source))
    table["start_ps"] = messages.start_ps
    table["bytes"] = messages.size_bytes
    table["dst"] = arrays.rank_endpoint[messages.destination]
    labels = messages.flow if plan.labels is None else plan.labels
    table["key"] = flow_hash(
        messages.source, messages.destination, labels, traffic.seed
    )
    table["via_first"], table["via_last"] = vias[:, 0], vias[:, 1]
    if traffic.flows:
        _continue_keys(
            table["key"], messages, traffic.packet_bytes * burst, paths.policy
        )
    return Image(
        nvc=paths.num_vcs,
        seed=traffic.seed,
        endpoints=arrays.endpoints,
        formats=arrays.formats,
        wires=wires,
        targets=arrays.targets,
        routes=arrays.routes,
        group_off=arrays.group_off,
        group_wires=arrays.group_wires,
        units=arrays.units,
        **put_policies(arrays, wires, paths.controls),
        spreads=paths.spreads,
        sources=sources,
        messages=table,
    )
