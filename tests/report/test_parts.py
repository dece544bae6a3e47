"""The parts of a report: messages, groups of wires, pictures of machines, histories, lanes."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import clusim
from clusim.bins import Bins
from clusim.report.calls import call_rows
from clusim.report.feed import Feed
from clusim.report.histories import FULL, history
from clusim.report.lanes import Lanes, lanes_of, shares_of, window
from clusim.report.machine import Groups, group_wires, machine_of, natural_key, span
from clusim.report.message import pack, unpack
from clusim.report.picture import draw
from clusim.result import Wires

FABRICS = (
    "dgx-a100", "dgx-1v", "dgx-2", "gb200-nvl72", "fat-tree:k=8", "torus:4x4", "torus:3x3x3", "mesh:8x8",
    "dragonfly:h=2", "ring:8", "star:5", "fully-connected:6",
)  # fmt: skip


def wires_of(name: str) -> Wires:
    """Return the wires of a fabric as a result names them, of a machine with NVLink only those.

    Nothing has been run; a report shows the classes of wires that were used.
    """
    fabric = clusim.load(name)
    arrays = fabric.lower()
    kinds = [node.kind for node in fabric.nodes]
    ends = zip(arrays.wire_class, arrays.wires["src"], arrays.wires["dst"], strict=True)
    leaves = np.array([fabric.nodes[src].endpoint is not None for src in arrays.wires["src"]])
    classes = [f"{cls} {kinds[src]}->{kinds[dst]}" for cls, src, dst in ends]
    names, nvlink = (
        list(arrays.wire_names),
        [cls.startswith(("nvlink", "trunk")) for cls in classes],
    )
    kept = np.flatnonzero(nvlink if any(nvlink) else np.ones(len(classes), bool))
    return Wires(
        [names[wire] for wire in kept],
        [classes[wire] for wire in kept],
        np.ones(len(kept)),
        leaves[kept],
        np.zeros(len(kept)),
    )


def test_a_message_reads_back_and_every_column_is_aligned() -> None:
    columns = {
        "edges": np.array([0.0, 1.5, 2.0**53]),
        "load": np.array([0, 7, 255], np.uint8),
        "empty": np.zeros(0, np.uint32),
    }
    data = pack({"title": "äöü"}, columns)
    header, again = unpack(data)
    assert header == {"title": "äöü"}
    assert (4 + int.from_bytes(data[:4], "little")) % 8 == 0
    for name, values in columns.items():
        assert np.array_equal(again[name], values)
        assert again[name].dtype == values.dtype


def test_names_sort_as_people_count() -> None:
    assert sorted(["gpu10", "gpu9", "nic1", "gpu1"], key=natural_key) == [
        "gpu1",
        "gpu9",
        "gpu10",
        "nic1",
    ]


@pytest.mark.parametrize(
    ("names", "one"),
    [(["gpu3"], "gpu3"), (["gpu0", "gpu1", "gpu2"], "gpu0..2"), (["gpu0", "gpu2"], "gpu0 ... gpu2"),
     (["gpu0", "nic0"], "gpu0 ... nic0")],
)  # fmt: skip
def test_several_names_become_one(names: list[str], one: str) -> None:
    assert span(names) == one


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("limit", [1, 40, 300, 10_000])
def test_every_wire_is_in_one_group_and_groups_are_of_one_class(name: str, limit: int) -> None:
    wires = wires_of(name)
    groups = group_wires(machine_of(wires), wires, limit)
    assert sorted(groups.wires.tolist()) == list(range(len(wires.names)))
    for i, wire_class in enumerate(groups.classes):
        mine = groups.wires[groups.offset[i] : groups.offset[i + 1]]
        assert {wires.classes[w] for w in mine} == {wire_class}
    assert len(groups) <= max(limit, 2 * len(set(wires.classes)))
    # Wires of one class are neighbours, so that the heatmap can name them once.
    runs = 1 + sum(a != b for a, b in zip(groups.classes, groups.classes[1:], strict=False))
    assert runs == len(set(groups.classes))


@pytest.mark.parametrize("name", FABRICS)
def test_a_picture_has_every_wire_and_no_box_lies_on_another(name: str) -> None:
    wires = wires_of(name)
    picture = draw(machine_of(wires), wires)
    assert len(picture.lines.wires) + picture.hidden == len(wires.names)
    for box in picture.boxes:
        assert box.x - box.width / 2 >= 0
        assert box.x + box.width / 2 <= picture.width
        assert box.y - box.height / 2 >= 0
        assert box.y + box.height / 2 <= picture.height
    for a, b in combinations(picture.boxes, 2):
        apart_x = abs(a.x - b.x) >= (a.width + b.width) / 2 - 1e-6
        apart_y = abs(a.y - b.y) >= (a.height + b.height) / 2 - 1e-6
        assert apart_x or apart_y, (a, b)


def test_switches_lie_above_what_hangs_on_them() -> None:
    wires = wires_of("fat-tree:k=4")
    picture = draw(machine_of(wires), wires)
    heights = {box.name.rstrip("0123456789."): box.y for box in picture.boxes}
    assert heights["host"] > heights["edge"] > heights["agg"] > heights["core"]


def test_two_boards_are_drawn_with_their_switches_facing() -> None:
    wires = wires_of("dgx-2")
    picture = draw(machine_of(wires), wires)
    assert [title for title, _ in picture.titles] == ["gpu", "nvswitch", "nvswitch", "gpu"]


def test_endpoints_come_in_the_order_of_the_nodes() -> None:
    wires = wires_of("star:5")
    names = machine_of(wires).nodes
    turned = ["host3", "host1", "host0", "host4", "host2"]
    assert machine_of(wires, turned).nodes[:5] == turned
    assert names[:5] == sorted(names[:5])


def made_bins() -> Bins:
    """Return four bins of 10 ps and one of 5 ps for three wires."""
    busy = np.array([[10, 0, 5, 10, 5], [0, 0, 5, 0, 5], [1, 0, 0, 0, 0]])
    nothing = np.zeros_like(busy)
    queue = np.array([[0, 100, 50, 0, 0], [0, 0, 200, 0, 0], [0, 0, 0, 0, 0]])
    wires = {
        "busy": busy,
        "stall_credit": nothing,
        "stall_arbitration": nothing,
        "bytes": nothing,
        "queue": queue,
    }
    return Bins(np.array([0, 10, 20, 30, 40, 45]), wires, np.zeros((1, 5)))


def test_a_history_has_means_maxima_and_whole_columns() -> None:
    groups = Groups.of(["pair", "one"], ["a", "a"], [np.array([0, 1]), np.array([2])])
    found = history(made_bins(), groups, columns=3)
    assert found.edge_ps.tolist() == [0, 20, 40, 45]
    assert found.values["load"][0].tolist() == [round(FULL * v) for v in (10 / 40, 20 / 40, 1.0)]
    assert found.values["peak"][0].tolist() == [round(FULL * v) for v in (10 / 20, 15 / 20, 1.0)]
    assert found.queue_max_bytes == 200
    assert found.values["queue"][0].tolist() == [round(FULL / 2), FULL, 0]


def test_what_is_little_is_not_shown_as_nothing() -> None:
    bins = made_bins()
    bins.wires["busy"][2] = [1, 0, 0, 0, 0]
    groups = Groups.of(["one"], ["a"], [np.array([2])])
    bins.edge_ps[:] = np.array([0, 1, 2, 3, 4, 5]) * 1_000_000
    assert history(bins, groups, columns=5).values["load"][0].tolist() == [1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("low", "high", "edges"),
    [(0, 45, [0, 10, 20, 30, 40, 45]), (12, 28, [10, 20, 30]), (44, 45, [40, 45]), (20, 20, [20, 30])],
)  # fmt: skip
def test_a_window_is_covered_by_whole_bins(low: int, high: int, edges: list[int]) -> None:
    groups = Groups.of(["one"], ["a"], [np.array([0])])
    found = history(made_bins(), groups, columns=100, from_ps=low, until_ps=high)
    assert found.edge_ps.tolist() == edges


def made_lanes(tasks: list[tuple[int, int, int, int]]) -> Lanes:
    """Return lanes 0 (compute) and 1 (comm) of rank 0 with tasks (lane, kind, start, end)."""
    lane, kind, start, end = np.array(tasks, np.int64).T
    nothing = np.zeros(len(tasks), np.int64)
    return Lanes(
        [0, 0], ["compute", "comm"], ["task"], lane, kind, nothing, nothing - 1, start, end
    )


def test_shares_are_those_counted_by_hand() -> None:
    # Computes 0-100 and 200-300; communicates 50-150 twice over and 250-260.
    tasks = [(0, 0, 0, 100), (1, 1, 50, 150), (1, 1, 60, 140), (0, 0, 200, 300), (1, 1, 250, 260)]
    shares = shares_of(made_lanes(tasks), 400)
    assert (shares.compute[0], shares.both[0], shares.exposed[0], shares.idle[0]) == (
        140,
        60,
        50,
        150,
    )


def test_short_tasks_are_merged_and_none_is_lost() -> None:
    tasks = [(i % 2, i % 2, 10 * i, 10 * i + 8) for i in range(1000)] + [(0, 0, 10_000, 20_000)]
    lanes = made_lanes(tasks)
    bars = window(lanes, 0, 20_000, 100)
    assert bars.count.sum() == 1001
    assert len(bars.lane) <= 202
    assert bars.end_ps.max() == 20_000
    close = window(lanes, 0, 100, 100)
    assert close.count.tolist() == [1] * len(close.lane)
    assert close.start_ps.tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_a_trace_of_a_training_step_has_its_lanes_and_calls(training: Path) -> None:
    feed = Feed.open(training)
    assert list(zip(feed.lanes.ranks, feed.lanes.streams, strict=True))[:2] == [
        (0, "compute"),
        (0, "dp"),
    ]
    whole = feed.shares.compute + feed.shares.both + feed.shares.exposed + feed.shares.idle
    assert (whole == feed.result.time_ps).all()
    # Two kernels of 20 us, the second a little slower beside the communication of the first.
    computed_us = (feed.shares.compute + feed.shares.both) / 1e6
    assert ((computed_us >= 40) & (computed_us < 42)).all()
    assert (feed.shares.both / 1e6 > 20).all()
    rows = call_rows(feed.calls)
    assert [(row.operation, row.size_bytes, row.ranks, row.count) for row in rows] == [
        ("allreduce", 1 << 20, 8, 1)
    ] * 2
    merged = call_rows(feed.calls, limit=1)
    assert [row.count for row in merged] == [2]
    assert merged[0].least_ps <= merged[0].mean_ps <= merged[0].most_ps


def test_one_collective_has_the_bandwidth_of_the_result(collective: Path) -> None:
    feed = Feed.open(collective)
    (row,) = call_rows(feed.calls)
    assert row.busbw_GBps == pytest.approx(feed.result.busbw_GBps)


def test_without_a_schedule_there_are_no_lanes(feed: Feed) -> None:
    lanes = lanes_of(feed.result, {})
    assert lanes.ranks == []
    assert len(window(lanes, 0, 1000, 10).lane) == 0
    assert shares_of(lanes, 1000).ranks == []
