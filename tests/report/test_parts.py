"""The parts of a report: messages, groups of wires, pictures of machines, histories, lanes."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.base.drawing.boxes import Picture
from clusim.base.drawing.layout import draw
from clusim.base.drawing.machine import DrawnMachine, WireGroups, machine_of, natural_key, span
from clusim.base.terms.links import wire_class_name
from clusim.base.units import format_size
from clusim.report.call_rows import call_rows
from clusim.report.histories import FULL, group_wires, history
from clusim.report.lanes import Lanes, LaneTasks, lanes_of, shares_of, window
from clusim.report.page_data import Feed, pack, unpack, used_part
from clusim.report.summary_text import sentences
from clusim.results.bins import Bins
from clusim.results.result import Wires
from clusim.results.trace.reader import read_result
from clusim.topology.arrays import arrays_of

FABRICS: tuple[tuple[str, tuple[str, ...], int | None], ...] = (
    ("dgx-a100", ("nvlink",), None), ("dgx-1v", ("nvlink",), None), ("dgx-2", ("nvlink", "trunk"), None),
    ("gb200-nvl72", ("nvlink",), None), ("mi300x", ("xgmi",), None), ("dgx-a100", (), None), ("dgx-1v", (), None),
    ("dgx-2", (), None), ("gb200-nvl72", (), None), ("a100-pcie-x8", (), None), ("mi300x", (), None),
    ("aws-p5", (), 2), ("aws-p3dn", (), 3), ("gb200-nvl72", (), 2), ("dgx-h100", (), 4), ("alps-gh200", (), 4),
    ("dgx-a100", (), 12), ("superpod-h100:nodes=32", (), None), ("polaris", (), 40),
    *((name, (), None) for name in ("fat-tree:k=8", "torus:4x4", "torus:3x3x3", "mesh:8x8", "dragonfly:h=2",
                                    "ring:8", "star:5", "fully-connected:6")),
)  # fmt: skip


def wires_of(name: str, kinds: tuple[str, ...] = (), nodes: int | None = None) -> Wires:
    """Return the wires of a fabric as a result names them, all or those of some kinds of links.

    Nothing has been run; a report shows the classes of wires that were used.
    """
    fabric = clusim.load(name) if nodes is None else clusim.load(name, nodes=nodes)
    arrays = arrays_of(fabric)
    tiers = [node.tier or node.kind for node in fabric.nodes]
    ends = zip(arrays.wire_class, arrays.wires["src"], arrays.wires["dst"], strict=True)
    leaves = np.array([fabric.nodes[src].endpoint is not None for src in arrays.wires["src"]])
    classes = [f"{cls} {tiers[src]}->{tiers[dst]}" for cls, src, dst in ends]
    names = list(arrays.wire_names)
    kept = [w for w, cls in enumerate(classes) if not kinds or cls.startswith(kinds)]
    return Wires(
        [names[wire] for wire in kept],
        [classes[wire] for wire in kept],
        np.ones(len(kept)),
        leaves[kept],
        np.zeros(len(kept)),
    )


def drawn(wires: Wires, nodes: list[str] | None = None) -> DrawnMachine:
    return machine_of(wires.names, wires.classes, wires.from_endpoint, nodes or ())


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


@pytest.mark.covering
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("limit", [1, 40, 300, 10_000])
def test_every_wire_is_in_one_group_and_groups_are_of_one_class(fabric: Any, limit: int) -> None:
    wires = wires_of(*fabric)
    groups = group_wires(drawn(wires), wires, limit)
    assert sorted(groups.wires.tolist()) == list(range(len(wires.names)))
    for i, wire_class in enumerate(groups.classes):
        mine = groups.wires[groups.offset[i] : groups.offset[i + 1]]
        assert {wires.classes[w] for w in mine} == {wire_class}
    assert len(groups) <= max(limit, 2 * len(set(wires.classes)))
    # Wires of one class are neighbours, so that the heatmap can name them once.
    runs = 1 + sum(a != b for a, b in zip(groups.classes, groups.classes[1:], strict=False))
    assert runs == len(set(groups.classes))


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_picture_has_every_wire_and_no_box_lies_on_another(fabric: Any) -> None:
    wires = wires_of(*fabric)
    picture = draw(drawn(wires))
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
    picture = draw(drawn(wires))
    heights = {box.name.rstrip("0123456789."): box.y for box in picture.boxes}
    assert heights["host"] > heights["edge"] > heights["agg"] > heights["core"]


def test_two_boards_are_drawn_with_their_switches_facing() -> None:
    wires = wires_of("dgx-2", ("nvlink", "trunk"))
    picture = draw(drawn(wires))
    assert [title for title, _ in picture.titles] == ["gpu", "nvswitch", "nvswitch", "gpu"]


def tiers_of(picture: Picture) -> list[str]:
    """Return the titles of the rows from the bottom to the top."""
    return [title for title, _ in sorted(picture.titles, key=lambda row: -row[1])]


@pytest.mark.parametrize(
    ("name", "nodes", "tiers"),
    [
        ("a100-pcie-x8", None, ["gpu", "pcie", "cpu", "mem", "nic"]),
        ("aws-p5", 2, ["nvswitch", "gpu", "pcie", "cpu", "mem", "nic", "leaf"]),
        ("superpod-h100:nodes=32", None, ["node", "leaf", "spine"]),
    ],
)
def test_tiers_lie_one_above_another(name: str, nodes: int | None, tiers: list[str]) -> None:
    wires = wires_of(name, (), nodes)
    assert tiers_of(draw(drawn(wires))) == tiers


def test_two_machines_are_drawn_side_by_side_in_their_frames() -> None:
    wires = wires_of("aws-p5", (), 2)
    picture = draw(drawn(wires))
    assert [frame.label for frame in picture.frames] == ["n0", "n1"]
    for box in picture.boxes:
        zone = box.name.rpartition("/")[0]
        for frame in picture.frames:
            left, top = frame.corner
            within = left <= box.x <= left + frame.width
            below = top <= box.y <= top + frame.height
            assert (within and below) == (frame.label in zone.split("/")[0] and bool(zone))
    labels = [box.label for box in picture.boxes if box.name == "n1/nic0..3"]
    assert labels == ["0..3"], "NICs of one PCIe switch are one box"


def test_many_machines_are_boxes_with_bars_for_the_links_in_them() -> None:
    wires = wires_of("superpod-h100:nodes=32", ("nvlink", "pcie", "infiniband"))
    machine = drawn(wires)
    picture = draw(machine)
    assert [box.name for box in picture.boxes if box.kind == "endpoint"] == [
        f"n{i}" for i in range(32)
    ]
    assert picture.bars == ("nvlink", "pcie")
    assert picture.hidden == 0
    last = len(picture.lines) - 1
    assert picture.lines.labels[last] == "n31: pcie"
    mine = picture.lines.wires[picture.lines.offset[last] :]
    assert {wires.names[w].count("n31/") for w in mine} == {2}
    assert {wires.classes[w].split(" ")[0] for w in mine} == {"pcie"}
    left, right, y = picture.bar_spans()[-1]
    box = picture.boxes[picture.source[last]]
    assert abs(left + right - 2 * box.x) < 1e-6
    assert abs(y - box.y) < box.height / 2


def test_lines_of_a_row_hang_down_only_past_other_boxes() -> None:
    wires = wires_of("dgx-1v")
    picture = draw(drawn(wires))
    names = [box.name for box in picture.boxes]
    hanging = {
        (names[picture.source[i]], names[picture.target[i]])
        for i in range(picture.num_ways)
        if picture.bent(i)
    }
    assert ("gpu0", "gpu2") in hanging
    assert ("gpu0", "gpu1") not in hanging
    assert ("gpu0", "pcie0") not in hanging


@pytest.mark.parametrize(
    ("wire_class", "words"),
    [
        ("nvlink switch->gpu", "NVLink from NVSwitch to GPU"),
        ("infiniband nic->leaf", "InfiniBand from NIC to leaf switch"),
        ("pcie pcie->root", "PCIe from PCIe switch to CPU"),
        ("host edge->host", "host edge->host"),
    ],
)
def test_classes_of_wires_have_words(wire_class: str, words: str) -> None:
    assert wire_class_name(wire_class) == words


def test_what_crossed_nothing_is_left_out_but_the_network_stays(cluster: Path) -> None:
    whole = read_result(cluster)
    feed = Feed.open(cluster)
    assert set(feed.idle_classes) < set(whole.wires.classes)
    assert not set(feed.idle_classes) & set(feed.result.wires.classes)
    assert "numa root->root" in feed.idle_classes
    assert "infiniband leaf->spine" in feed.result.wires.classes
    moved = whole.wires.counters["packets"].sum()
    assert feed.result.wires.counters["packets"].sum() == moved
    assert feed.result.bins.wires["busy"].shape[0] == len(feed.result.wires.names)


def test_the_summary_says_what_left_the_machines(cluster: Path) -> None:
    feed = Feed.open(cluster)
    wires = feed.result.wires
    out = [w for w, cls in enumerate(wires.classes) if cls == "infiniband nic->leaf"]
    payload = int(wires.counters["payload"][out].sum())
    said = " ".join(sentences(feed.result, feed.shares, feed.idle_classes))
    assert f"{format_size(payload)} of payload left the nodes through {len(out)} NICs" in said
    assert "Nothing crossed links between CPUs or host memory." in said
    assert "By kind of link, wires were busy on average: NVLink " in said


def test_the_summary_names_the_links_of_a_machine_without_nvlink(tmp_path: Path) -> None:
    fabric = clusim.load("a100-pcie-x8")
    schedule = clusim.collectives.build(fabric, "allreduce", "ring", 1 << 20)
    result, idle = used_part(clusim.simulate(fabric, schedule))
    said = " ".join(sentences(result, Feed.of(result).shares, idle))
    assert re.search(r"By kind of link, wires were busy on average: PCIe \S+%, ", said)
    assert "left the nodes" not in said


def test_endpoints_come_in_the_order_of_the_nodes() -> None:
    wires = wires_of("star:5")
    names = drawn(wires).nodes
    turned = ["host3", "host1", "host0", "host4", "host2"]
    assert drawn(wires, turned).nodes[:5] == turned
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
    groups = WireGroups.of(["pair", "one"], ["a", "a"], [np.array([0, 1]), np.array([2])])
    found = history(made_bins(), groups, columns=3)
    assert found.edge_ps.tolist() == [0, 20, 40, 45]
    assert found.values["load"][0].tolist() == [round(FULL * v) for v in (10 / 40, 20 / 40, 1.0)]
    assert found.values["peak"][0].tolist() == [round(FULL * v) for v in (10 / 20, 15 / 20, 1.0)]
    assert found.queue_max_bytes == 200
    assert found.values["queue"][0].tolist() == [round(FULL / 2), FULL, 0]


def test_what_is_little_is_not_shown_as_nothing() -> None:
    bins = made_bins()
    bins.wires["busy"][2] = [1, 0, 0, 0, 0]
    groups = WireGroups.of(["one"], ["a"], [np.array([2])])
    bins.edge_ps[:] = np.array([0, 1, 2, 3, 4, 5]) * 1_000_000
    assert history(bins, groups, columns=5).values["load"][0].tolist() == [1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("low", "high", "edges"),
    [(0, 45, [0, 10, 20, 30, 40, 45]), (12, 28, [10, 20, 30]), (44, 45, [40, 45]), (20, 20, [20, 30])],
)  # fmt: skip
def test_a_window_is_covered_by_whole_bins(low: int, high: int, edges: list[int]) -> None:
    groups = WireGroups.of(["one"], ["a"], [np.array([0])])
    found = history(made_bins(), groups, columns=100, from_ps=low, until_ps=high)
    assert found.edge_ps.tolist() == edges


def made_lanes(tasks: list[tuple[int, int, int, int]]) -> Lanes:
    """Return lanes 0 (compute) and 1 (comm) of rank 0 with tasks (lane, kind, start, end)."""
    lane, kind, start, end = np.array(tasks, np.int64).T
    nothing = np.zeros(len(tasks), np.int64)
    own = LaneTasks(lane, kind, nothing, start, start, end)
    return Lanes([0, 0], ["compute", "comm"], ["task"], [own])


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
