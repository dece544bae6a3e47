"""NVLSTree and CollNetChain: reduction inside nodes by switches or chains, between nodes by trees or aggregation.

**Hardware** NVLSTree: every head reduces its chunk of its node through the switch, adds the data of its children in
the tree over nodes, sends the sum to its parent, and on the way back stores the result to its node by
multicast and sends it to its children; even channels follow the first of two binary trees, odd ones the second.
CollNetChain: a chain in every node up to the GPU at the channel's NIC, the network's aggregation, the chain down
(``src/device/all_reduce.h``, ``src/graph/connect.cc``). **Model** The same, as programs synchronised by flags; the
host's proxy of the NIC runs the aggregation. A head adds its switch's sum and its children in one pass, and
stores a result to all below in one. **Not modelled** How warps share the throughput of a CTA of CollNetChain; the
single pass of the root of NVLSTree, and its other division of warps; registered buffers. **Parameters** The heads,
channels and chunks that were found.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.collectives.algorithms.nvls import (
    check_units,
    copies,
    copies_per_cost,
    takes,
)
from clusim.collectives.entry import hop_fields
from clusim.collectives.rings_and_trees import Hop
from clusim.nccl.connect import nvls_trees
from clusim.schedule.collective_writer import Part
from clusim.schedule.ir import ABSENT, Prim
from clusim.schedule.shapes import nvls_warps

if TYPE_CHECKING:
    from clusim.nccl.programs.context import Context

KEPT = 64
"""Number of program kinds whose primitives are cached."""

_WORK = {"up": "reduce", "down": "broadcast"}

Pairs = dict[tuple[int, int], int]
Relatives = dict[int, tuple[int, tuple[int, ...]]]


# ---------------------------------------------------------------------------- NVLSTree


@dataclass(frozen=True, slots=True)
class _Machine:
    """One node on one channel: positions, heads (positions), flags of head number and position, ways of trees."""

    context: Context
    part: Part
    own: tuple[int, ...]
    heads: tuple[int, ...]
    ready: Pairs
    done: Pairs

    def program(
        self,
        position: int,
        name: str,
        prims: tuple[Prim, ...],
        pipes: list[int],
        turn: int,
    ) -> None:
        """Add a program to a rank; its chunks are the heads' numbers, counted from `turn`."""
        copies_heads = name in ("scatter", "gather")
        warps = nvls_warps(self.context.comm.group.num_ranks, sends_up=True)
        self.context.writer.program(
            position,
            self.part,
            prims,
            pipes,
            rotation=turn,
            nchunks=len(self.heads),
            sm=int(name == "scatter"),
            fixed_div=copies_per_cost(name) if copies_heads else len(prims),
            warps=warps.senders(_WORK.get(name, name)),
            name=f"nvlstree/{name}",
        )


def write_nvls_tree(context: Context) -> None:
    """Write NVLSTree all-reduce on every channel."""
    comm, writer = context.comm, context.writer
    heads = comm.nvls_heads
    if comm.group.num_nodes < 2 or not heads:
        raise InputError(
            f"nvlstree: {comm.name} lacks heads in several nodes; use ring or tree"
        )
    for machine in comm.machines:
        check_units(
            context.fabric, tuple(comm.ranks[p] for p in machine.ranks), "nvlstree"
        )
    trees = nvls_trees(heads, comm.group.num_nodes)
    for part in context.parts:
        relatives = trees[part.channel % 2]
        up, down = (
            _tree_pipes(context, part, relatives, down=d) for d in (False, True)
        )
        for number, machine in enumerate(comm.machines):
            members, tops = machine.ranks, tuple(ranks[number] for ranks in heads)
            flags = [
                {
                    (h, p): writer.flag(
                        *((p, top) if into else (top, p)), part.channel
                    )
                    for h, top in enumerate(tops)
                    for p in members
                }
                for into in (True, False)
            ]
            local = _Machine(context, part, members, tops, *flags)
            for index, position in enumerate(members):
                _copies(local, index % len(tops), position)
            for head in range(len(tops)):
                _head(local, head, relatives[head][tops[head]], up, down)


def _tree_pipes(
    context: Context, part: Part, trees: list[Relatives], *, down: bool
) -> Pairs:
    """Return the connection between every (head number, position) and its parent."""
    pipes = {}
    for head, table in enumerate(trees):
        for child, (parent, _) in table.items():
            if parent < 0:
                continue
            ends = (parent, child) if down else (child, parent)
            out, into = (_head_rail(context, head, p, part.channel) for p in ends)
            fields = hop_fields(Hop(rail_out=out, rail_in=into))
            pipes[head, child] = context.writer.connect(
                *ends, part.channel, **fields
            )
    return pipes


def _head_rail(context: Context, head: int, position: int, channel: int) -> int:
    adapters = context.comm.machines[context.comm.machine_of[position]].nvls.adapters
    if len(adapters) <= head:
        return ABSENT
    return context.head_rail(position, adapters[head][0], channel)


def _copies(local: _Machine, turn: int, position: int) -> None:
    """Write scatter and gather of a rank: between the user's buffers and the multicast buffer."""
    count = len(local.heads)
    order = [(turn + hop) % count for hop in range(count)]
    pipes = [local.ready[head, position] for head in order]
    local.program(position, "scatter", copies(count), pipes, turn)
    pipes = [local.done[head, position] for head in order]
    local.program(position, "gather", takes(count), pipes, turn)


def _head(
    local: _Machine,
    head: int,
    relatives: tuple[int, tuple[int, ...]],
    up: Pairs,
    down: Pairs,
) -> None:
    """Write a head's two programs: switch and children into the sum for the parent; the result to all below."""
    parent, children = relatives
    writer, channel = local.context.writer, local.part.channel
    position, count = local.heads[head], len(local.own)
    members = tuple(writer.call.ranks[p] for p in local.own)
    load, store = (
        writer.connect(position, position, channel, kind="multimem", members=members)
        for _ in range(2)
    )
    turn = (
        writer.connect(position, position, channel, kind="flag")
        if parent < 0
        else ABSENT
    )
    pipes = [local.ready[head, p] for p in local.own]
    pipes += [load, *(up[head, child] for child in children)]
    pipes.append(turn if parent < 0 else up[head, position])
    up_prims, down_prims = _summing(count, len(children), parent >= 0)
    local.program(position, "up", up_prims, pipes, head)

    pipes = [local.done[head, p] for p in local.own]
    pipes += [store, *(down[head, child] for child in children)]
    pipes.append(turn if parent < 0 else down[head, position])
    local.program(position, "down", down_prims, pipes, head)


@lru_cache(KEPT)
def _summing(
    count: int, children: int, upward: bool
) -> tuple[tuple[Prim, ...], tuple[Prim, ...]]:
    """Return the primitives of a head's two programs, for `count` ranks of its node and `children`."""
    wait = [Prim("waitSignal", recv=slot, coef=1) for slot in range(count)]
    sums = [Prim("reduceLoad", send=count, coef=1, src="scratch", dst="scratch")]
    sums += _add_children(children, count + 1, upward)
    last = count + 1 + children
    if not upward:
        sums.append(Prim("signal", send=last, coef=1))
    begin = Prim("waitSignal", recv=last, coef=1)
    sends = range(count + 1, last)
    if upward:
        begin = Prim("recv", recv=last, coef=1, dst="scratch")
    spread = [Prim("sendMore", send=slot, coef=1, src="scratch") for slot in sends]
    spread.append(
        Prim("multicastStore", send=count, coef=1, src="scratch", dst="scratch")
    )
    tell = [Prim("signal", send=slot, coef=1) for slot in range(count)]
    return (*wait, *sums), (begin, *spread, *tell)


def _add_children(count: int, first: int, upward: bool) -> list[Prim]:
    """Return primitives that add the data of `count` children and send the sum to the parent, if any.

    With the switch's sum, which is loaded before, children and parent are the sources and the target of one pass.
    """
    prims = [
        Prim(
            "recvReduceMore",
            recv=first + child,
            coef=1,
            src="scratch",
            dst="scratch",
        )
        for child in range(count)
    ]
    if upward:
        prims.append(Prim("sendMore", send=first + count, coef=1, src="scratch"))
    return prims


# ---------------------------------------------------------------------------- CollNetChain


def write_collnet_chain(context: Context) -> None:
    """Write CollNetChain all-reduce on every channel."""
    if context.comm.group.num_nodes < 2:
        raise InputError(
            "collnetchain: all ranks are in one node; use ring, tree or nvls"
        )
    writer = context.writer
    for part in context.parts:
        chains = [
            _chain(context, part.channel, m)
            for m in range(len(context.comm.machines))
        ]
        heads = [chain[0] for chain in chains]
        members = tuple(writer.call.ranks[head] for head in heads)
        key = writer.builder.new_group()
        for chain in chains:
            fields = {"kind": "aggregation", "members": members, "key": key}
            net = writer.connect(chain[0], chain[0], part.channel, **fields)
            _write_chain(context, part, chain, net)


def _chain(context: Context, channel: int, machine: int) -> list[int]:
    """Return the positions of a node along a channel's tree, from the NIC on."""
    parents = context.channel(channel).parent
    members = set(context.comm.machines[machine].ranks)
    below = {parents[p]: p for p in members if parents[p] in members}
    chain = [p for p in members if parents[p] not in members]
    while chain[-1] in below:
        chain.append(below[chain[-1]])
    return chain


def _write_chain(context: Context, part: Part, chain: list[int], net: int) -> None:
    writer, channel = context.writer, part.channel
    head = chain[0]
    before, after = (
        writer.connect(head, head, channel, kind="flag") for _ in range(2)
    )
    up = [writer.connect(b, a, channel) for a, b in pairwise(chain)]
    down = [writer.connect(a, b, channel) for a, b in pairwise(chain)]

    def program(
        position: int, prims: list[Prim], pipes: list[int], name: str, sm: int = 0
    ) -> None:
        writer.program(
            position, part, prims, pipes, name=f"collnetchain/{name}", sm=sm
        )

    first = Prim("recvReduceCopy", recv=1) if up else Prim("copy")
    program(head, [first, Prim("signal", send=0)], [before, *up[:1]], "up", 1)
    neighbours = [
        Prim("waitSignal", recv=0),
        Prim("aggregate", send=1, src="output", dst="output"),
        Prim("signal", send=2),
    ]
    program(head, neighbours, [before, net, after], "aggregate")
    spread = [
        Prim("waitSignal", recv=0),
        *([Prim("send", send=1, src="output")] if up else []),
    ]
    program(head, spread, [after, *down[:1]], "down")
    for place, position in enumerate(chain[1:]):
        last = place == len(up) - 1
        reduce = (
            Prim("send", send=0) if last else Prim("recvReduceSend", recv=1, send=0)
        )
        program(position, [reduce], up[place : place + 2], "up", 1)
        take = Prim("recv", recv=0) if last else Prim("recvCopySend", recv=0, send=1)
        program(position, [take], down[place : place + 2], "down")
