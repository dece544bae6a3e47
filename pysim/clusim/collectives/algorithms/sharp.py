"""SHARP: all-reduce by the switches between nodes, with the reduction inside nodes before and after.

**Hardware**: NCCL's CollNet algorithms with the SHARP plugin (``src/device/all_reduce.h``): every GPU is the head of
one chunk per loop. The node's data for a chunk are reduced at its head, by NVSwitches that support it (NVLS),
otherwise by direct exchange. The head's NIC sends the sum to the aggregation tree of its rail and receives the sum
of all nodes, which the head stores to all GPUs of its node. Each NIC carries the vector's share once in each
direction, half of a ring's traffic. **Model**: per rank and channel programs for these stages, synchronised by
flags; the host's proxy of the NIC runs the aggregating program. Chunks of a channel are sequential: the next
is aggregated when the previous result is back, so several channels keep a NIC busy. **Not modelled**: the plugin's
chunks of several channels in one request. **Parameters**: `Shape`, as of NVLS or with chunks of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from clusim.base.errors import InputError
from clusim.collectives.algorithms.hierarchical import Local
from clusim.collectives.algorithms.nvls import (
    SwitchFlags,
    by_switches,
    copies,
    takes,
)
from clusim.collectives.machines import Layout, even_layout
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import Buffer, CollectiveCall, Prim
from clusim.schedule.shapes import Shape, shape_of
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric

KIB = 1024


def uses_switches(fabric: Fabric | None, ranks: tuple[int, ...]) -> bool:
    """Return True if all ranks hang on switches with a reduction unit, so that nodes reduce with them."""
    if fabric is None:
        return False
    arrays = arrays_of(fabric)
    return all(arrays.unit_wires(rank) for rank in ranks)


def sharp_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return chunks of 256 KiB, smaller for sizes that would not fill the pipeline."""
    heads = max(1, even_layout(fabric, call.ranks).local_size)
    chunk = min(
        256 * KIB,
        shape_of(
            "simple", protocols=fabric.protocols if fabric else None
        ).chunk_bytes,
    )
    while chunk > 16 * KIB and call.bytes < 8 * call.channels * heads * chunk:
        chunk //= 2
    return Shape(chunk // 16 * 16)


def _check(fabric: Fabric, layout: Layout) -> None:
    if len(layout.machines) < 2:
        raise InputError(
            f"sharp: all ranks are in one node of {fabric.name}; it reduces between nodes, use ring or nvls"
        )
    if not any(node.unit is not None and node.zone < 0 for node in fabric.nodes):
        raise InputError(
            f"sharp: {fabric.name} lacks reduction units in the switches between its nodes; use ring or tree,"
            " or a network of InfiniBand switches"
        )


@by_switches("allreduce", "sharp", sharp_shape)
def write_allreduce(
    writer: CollectiveWriter, fabric: Fabric | None, *, switches: bool = True
) -> None:
    """Write the programs of every rank and channel; with `switches`, NVSwitches reduce if they can."""
    layout = even_layout(fabric, writer.call.ranks)
    if fabric is not None:
        _check(fabric, layout)
    size = layout.even("sharp")
    inside = switches and size > 1 and uses_switches(fabric, writer.call.ranks)
    for part in writer.parts():
        groups = [_group(writer, layout, part, index) for index in range(size)]
        for machine, positions in enumerate(layout.machines):
            local = Local(writer, part, positions, 1, [0])
            nets = [groups[index][machine] for index in range(size)]
            if inside:
                _reduce_by_switches(writer, local, nets)
            else:
                _reduce_directly(local, nets)


def _group(
    writer: CollectiveWriter, layout: Layout, part: Part, index: int
) -> list[int]:
    """Return the aggregation connection of every node's rank number `index`."""
    positions = [node_positions[index] for node_positions in layout.machines]
    members = tuple(writer.call.ranks[position] for position in positions)
    key = writer.builder.new_group()
    return [
        writer.connect(
            position,
            position,
            part.channel,
            kind="aggregation",
            members=members,
            key=key,
        )
        for position in positions
    ]


def _aggregate(local: Local, index: int, pipes: list[int], where: Buffer) -> None:
    """Write the proxy's program: wait for the node's sum, aggregate it in place, signal the head."""
    prims = [
        Prim("waitSignal", recv=0, coef=1),
        Prim("aggregate", send=1, coef=1, src=where, dst=where),
        Prim("signal", send=2, coef=1),
    ]
    template = local.share_template(f"sharp/aggregate {where}", lambda: prims)
    local.program(index, template, pipes, "sharp/aggregate")


def _reduce_directly(local: Local, nets: list[int]) -> None:
    first, second = local.connect(), local.connect()
    ready = [local.flag(index) for index in range(local.size)]
    done = [local.flag(index) for index in range(local.size)]
    local.scatter(first, ready, "sharp")
    for index, net in enumerate(nets):
        _aggregate(local, index, [ready[index], net, done[index]], "output")
    local.spread(second, done, "sharp")


def _reduce_by_switches(
    writer: CollectiveWriter, local: Local, nets: list[int]
) -> None:
    """Write NVLS reduction to the heads, aggregation and multicast of its result."""
    size, channel = local.size, local.part.channel

    pipes = SwitchFlags.connect(writer, channel, local.positions)
    members = tuple(writer.call.ranks[position] for position in local.positions)
    for index, net in enumerate(nets):
        local_positions = local.positions[index]
        heads = [(index + hop) % size for hop in range(size)]
        before, after = local.flag(index), local.flag(index)
        load, store = (
            writer.connect(
                local_positions,
                local_positions,
                channel,
                kind="multimem",
                members=members,
            )
            for _ in range(2)
        )
        ready = [pipes.ready[index, head] for head in heads]
        local.program(
            index,
            _share_template(local, "sharp/copy", copies),
            ready,
            "sharp/scatter",
            sm=1,
        )
        into = [pipes.ready[member, index] for member in range(size)]
        _head(
            local,
            index,
            _share_template(local, "sharp/reduce", _reduce),
            [*into, load, before],
        )
        _aggregate(local, index, [before, net, after], "scratch")
        out = [pipes.done[index, member] for member in range(size)]
        _head(
            local,
            index,
            _share_template(local, "sharp/spread", _spread),
            [*out, store, after],
        )
        done = [pipes.done[head, index] for head in heads]
        local.program(
            index,
            _share_template(local, "sharp/gather", takes),
            done,
            "sharp/gather",
        )


def _share_template(
    local: Local, name: str, make: Callable[[int], Sequence[Prim]]
) -> int:
    """Return the template that `make` returns for nodes of this size; ranks and channels share it."""
    key = ("by switches", name, local.size)
    return local.writer.builder.shared_template(
        key, name, partial(make, local.size), local.size
    )


def _reduce(size: int) -> list[Prim]:
    wait = [Prim("waitSignal", recv=slot, coef=1) for slot in range(size)]
    fetch = Prim("reduceLoad", send=size, coef=1, src="scratch", dst="scratch")
    return [*wait, fetch, Prim("signal", send=size + 1, coef=1)]


def _spread(size: int) -> list[Prim]:
    store = Prim("multicastStore", send=size, coef=1, src="scratch", dst="scratch")
    tell = [Prim("signal", send=slot, coef=1) for slot in range(size)]
    return [Prim("waitSignal", recv=size + 1, coef=1), store, *tell]


def _head(local: Local, index: int, template: int, pipes: list[int]) -> None:
    """Write a program of a head; the flags of all members share one fixed cost."""
    local.writer.program(
        local.positions[index],
        local.part,
        template,
        pipes,
        rotation=index,
        sm=0,
        fixed_div=local.size + 2,
    )
