"""Laws of trees: several children are the sources or destinations of one primitive, and halves of a CTA share it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import clusim
from clusim.collectives.algorithms.tree import write_allreduce
from clusim.collectives.rings_and_trees import Tree, Ways
from clusim.schedule import CollectiveWriter
from clusim.schedule.collective_writer import Part
from clusim.schedule.ir import CTA_WARPS, Schedule
from clusim.topology import Fabric
from support.variants import data_of, fabric_of

KIB = 1024
ADDED_PS = 2_400_000
"""Divided by 1, 3 and 5 primitives without a rest."""


def _with_fixed(fabric: Fabric, added_ps: int) -> Fabric:
    """Return a fabric on which every primitive of Simple costs more."""
    simple = fabric.protocols["simple"]
    slower = replace(simple, fixed_ps=simple.fixed_ps + added_ps)
    return replace(fabric, protocols={**fabric.protocols, "simple": slower})


def _writer(ranks: int, num_bytes: int, protocol: str = "simple") -> CollectiveWriter:
    """Return an empty collective of one channel on a machine of 8 GPUs."""
    fields = {"algorithm": "tree", "channels": 1, "protocol": protocol, "dtype": "float32"}
    return CollectiveWriter.create("allreduce", num_bytes, ranks=ranks, num_ranks=8, **fields)


def _star(fabric: Fabric, children: int, num_bytes: int = 4 * KIB, chunk: int = 0) -> Schedule:
    """Return an all-reduce of one channel over a root and its children."""
    writer = _writer(children + 1, num_bytes)
    tree = Tree((-1, *[0] * children))
    write_allreduce(writer, fabric, Ways(trees=(tree,), parts=[Part(0, 0, num_bytes, chunk)]))
    return writer.schedule()


@pytest.mark.parametrize("children", [1, 2, 3])
def test_a_node_pays_one_fixed_cost_however_many_children_it_has(children: int) -> None:
    """A leaf sends, the root adds all and sends to all, a leaf receives: three primitives one after the other."""
    fabric = fabric_of(data_of("dgx-h100"))
    times = [
        clusim.simulate(_with_fixed(fabric, added), _star(fabric, children)).time_ps
        for added in (0, ADDED_PS)
    ]
    assert times[1] - times[0] == 3 * ADDED_PS


def test_every_further_child_is_a_load_and_a_store() -> None:
    """Root of n children: the (n + 1) sources and n + 1 destinations of one primitive, as the figures of a CTA say."""
    fabric = clusim.load("dgx-h100")
    simple = fabric.protocols["simple"]
    for children in (1, 2, 3):
        schedule = _star(fabric, children)
        root = next(item for item in schedule.instances if item.rank == 0)
        ops = [prim.op for prim in schedule.templates[root.template].prims]
        further = children - 1
        assert ops == [
            *["recvReduceMore"] * further,
            "recvReduceCopySend",
            *["sendMore"] * further,
        ]
        assert (root.warps, root.fixed_div) == (CTA_WARPS, len(ops))
    # A load is what a reduction takes more than a copy, a store what a copy to two takes more.
    load = 1 / simple.rate_Bps("recvReduceSend") - 1 / simple.rate_Bps("send")
    store = 1 / simple.rate_Bps("recvCopySend") - 1 / simple.rate_Bps("send")
    assert 1 / simple.rate_Bps("recvReduceMore") == pytest.approx(load, rel=0.01)
    assert 1 / simple.rate_Bps("sendMore") == pytest.approx(store, rel=0.01)


@pytest.mark.parametrize("protocol", ["simple", "ll128"])
def test_halves_of_a_cta_meet_when_there_are_more_chunks_than_stages(protocol: str) -> None:
    """A chunk is away for as many chunks' time as the tree is deep: till then a half works alone, then with the other.

    So the time of n chunks, n over the warps, is that of the first alone, and from there on a straight line.
    """
    fabric = clusim.load("dgx-h100")

    def warps(chunks: int, name: str) -> float:
        tree = Tree((-1, 0, 1, 2, 3, 4, 5, 6))
        own = _writer(8, chunks * 64 * KIB, protocol)
        part = Part(0, 0, chunks * 64 * KIB, 64 * KIB)
        write_allreduce(own, fabric, Ways(trees=(tree,), parts=[part]))
        schedule = own.schedule()
        inner = [item for item in schedule.instances if item.rank == 3]
        (found,) = {i.warps for i in inner if schedule.templates[i.template].name == f"tree/{name}"}
        return found

    for name in ("up", "down"):
        assert warps(1, name) == warps(7, name) > warps(8, name) > warps(70, name)
        passes = [chunks / warps(chunks, name) for chunks in (7, 14, 21, 70)]
        assert passes[1] - passes[0] == pytest.approx(passes[2] - passes[1])
        assert passes[3] - passes[2] == pytest.approx(7 * (passes[1] - passes[0]))
