"""How many bytes cross connections: the closed forms of the textbooks."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from clusim.collectives import build
from clusim.engine.abi import Op
from clusim.engine.image import OPCODES
from clusim.schedule import ABSENT, Schedule, Shape
from clusim.schedule.iteration import iter_slices, loop_count, prim_totals

KIB = 1024
SHAPE = Shape(4 * KIB, slices=2, slots=8, slots_per_slice=2, slice_min=64)


def sent_by_rank(schedule: Schedule) -> Counter[int]:
    """Return the bytes every rank sends over data connections."""
    sent: Counter[int] = Counter()
    for instance in schedule.instances:
        template = schedule.templates[instance.template]
        for item in iter_slices(instance, template):
            if OPCODES[item.prim.op].flags & Op.SEND:
                connection = schedule.connections[instance.connections[item.prim.send]]
                if connection.kind == "data":
                    sent[instance.rank] += item.size
    return sent


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_every_rank_sends_its_share(ranks: int) -> None:
    size = 24 * KIB * ranks
    share = {
        ("allreduce", "ring"): 2 * (ranks - 1) * size // ranks,
        ("allreduce", "twoshot"): 2 * (ranks - 1) * size // ranks,
        ("allreduce", "oneshot"): (ranks - 1) * size,
        ("allreduce", "naive"): (ranks - 1) * size,
        ("reduce_scatter", "ring"): (ranks - 1) * size // ranks,
        ("reduce_scatter", "direct"): (ranks - 1) * size // ranks,
        ("all_gather", "ring"): (ranks - 1) * size // ranks,
        ("all_gather", "direct"): (ranks - 1) * size // ranks,
        ("alltoall", "direct"): (ranks - 1) * size // ranks,
        ("sendrecv", "direct"): size,
    }
    if ranks & (ranks - 1) == 0:
        share["allreduce", "butterfly"] = 2 * (ranks - 1) * size // ranks
    for (operation, algorithm), expected in share.items():
        options: dict[str, Any] = {} if algorithm == "naive" else {"shape": SHAPE}
        schedule = build(ranks, operation, algorithm, size, channels=3, **options)
        assert sent_by_rank(schedule) == dict.fromkeys(range(ranks), expected), (
            operation,
            algorithm,
        )


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_totals_of_rooted_and_tree_algorithms(ranks: int) -> None:
    size = 60 * KIB
    totals = {
        ("allreduce", "tree"): 2 * (ranks - 1) * size,
        ("allreduce", "driver"): 2 * (ranks - 1) * size,
        ("broadcast", "ring"): (ranks - 1) * size,
        ("broadcast", "tree"): (ranks - 1) * size,
        ("reduce", "ring"): (ranks - 1) * size,
        ("reduce", "tree"): (ranks - 1) * size,
        ("gather", "direct"): (ranks - 1) * size // ranks,
        ("scatter", "direct"): (ranks - 1) * size // ranks,
        ("allreduce", "nvls"): 0,
        ("barrier", "dissemination"): 0,
    }
    for (operation, algorithm), expected in totals.items():
        bytes_asked = 0 if operation == "barrier" else size
        schedule = build(ranks, operation, algorithm, bytes_asked, channels=1)
        assert sum(sent_by_rank(schedule).values()) == expected, (operation, algorithm)


def test_totals_without_iterating_agree_with_iterating() -> None:
    for operation, algorithm in (
        ("allreduce", "ring"),
        ("alltoall", "direct"),
        ("allreduce", "tree"),
    ):
        for size in (4, 1000, 77_004):
            schedule = build(5, operation, algorithm, size, channels=3, shape=SHAPE)
            for instance in schedule.instances:
                template = schedule.templates[instance.template]
                found: Counter[int] = Counter()
                slices: Counter[int] = Counter()
                for item in iter_slices(instance, template):
                    found[id(item.prim)] += item.size
                    slices[id(item.prim)] += 1
                for prim in template.prims:
                    expected = (found[id(prim)], slices[id(prim)])
                    assert prim_totals(instance, template, prim) == expected


def test_templates_do_not_grow_with_ranks() -> None:
    for ranks in (4, 64):
        schedule = build(ranks, "allreduce", "ring", 1 << 20, channels=4)
        assert len(schedule.templates) == 1
        assert len(schedule.instances) == 4 * ranks
        assert len(schedule.connections) == 4 * ranks


def test_ring_all_reduce_follows_the_recipe() -> None:
    schedule = build(4, "allreduce", "ring", 1 << 20, channels=1)
    (template,) = schedule.templates
    assert [(prim.op, prim.repeat) for prim in template.prims] == [
        ("send", 1),
        ("recvReduceSend", 2),
        ("recvReduceCopySend", 1),
        ("recvCopySend", 2),
        ("recv", 1),
    ]
    assert all(prim.coef == 1 for prim in template.prims)


def test_channels_cut_the_buffer_into_contiguous_parts() -> None:
    schedule = build(2, "allreduce", "ring", 1_000_004, channels=7)
    parts = sorted((i.offset, i.length) for i in schedule.instances if i.rank == 0)
    assert parts[0][0] == 0
    assert all(low + length == after for (low, length), (after, _) in pairwise(parts))
    assert sum(parts[-1]) == 1_000_004
    assert all(offset % 16 == 0 for offset, _ in parts)


def test_small_sizes_use_fewer_channels() -> None:
    from clusim.schedule.shapes import default_channels

    assert default_channels(8, 24, "simple", 8) == 1
    assert default_channels(512 * 64 * 3, 24, "simple", 8) == 3
    assert default_channels(1 << 30, 24, "simple", 8) == 24
    assert default_channels(512 * 8 * 8 * 2, 24, "ll", 8) == 2


def test_sync_primitives_happen_without_data() -> None:
    schedule = build(5, "barrier", None, 0)
    for instance in schedule.instances:
        template = schedule.templates[instance.template]
        assert loop_count(instance, template) == 1
        assert len(list(iter_slices(instance, template))) == 6
    assert all(connection.kind == "flag" for connection in schedule.connections)
    assert all(prim.recv != ABSENT or prim.send != ABSENT for prim in schedule.templates[0].prims)
