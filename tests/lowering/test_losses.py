"""Links that drop, from a topology file to the counters of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError, TopologyError
from clusim.simulation.flows import Flow
from clusim.topology import loads, to_yaml

FILE = """
name: lossy
link_types: {lossy: {base: roce-400, LOSS}}
cluster: {node: hgx-h20, nodes: 3, network: {kind: rail, link: lossy, switch: spectrum4}}
"""
DROP = "pfc: none, drop: {queue: 64KiB, alpha: 1}"
MESSAGES = 23


def incast(folder: Path, loss: str, **options: Any) -> Any:
    """Return 64 KiB of each of 23 GPUs to the first."""
    path = folder / "lossy.yaml"
    path.write_text(FILE.replace("LOSS", loss))
    return clusim.traffic(path, "incast", message="64KiB", **options)


def counters(result: Any) -> tuple[int, int, int]:
    """Return packets dropped, packets repeated, and timeouts."""
    nics = result.in_order
    drops = int(result.wires.counters["drops"].sum())
    return drops, sum(nic.repeats for nic in nics), sum(nic.timeouts for nic in nics)


def test_pauses_lose_nothing(tmp_path: Path) -> None:
    assert counters(incast(tmp_path, "ecn: none")) == (0, 0, 0)


def test_go_back_n_repeats_at_least_what_was_dropped_and_all_messages_arrive(
    tmp_path: Path,
) -> None:
    result = incast(tmp_path, DROP)
    drops, repeats, timeouts = counters(result)
    assert 0 < drops < repeats
    assert timeouts > 0
    assert (result.messages.end_ps > 0).sum() == MESSAGES


def test_a_larger_queue_drops_less_and_one_for_all_messages_nothing(tmp_path: Path) -> None:
    drops = [
        counters(incast(tmp_path, f"pfc: none, drop: {{queue: {queue}}}"))[0]
        for queue in ("64KiB", "256KiB", "2MiB")
    ]
    assert drops[0] > drops[1] > drops[2] == 0


def test_a_dynamic_threshold_drops_what_the_queue_would_hold(tmp_path: Path) -> None:
    """Of the 64 MiB of a switch, a thousandth's share is 64 KiB: as a queue of so many bytes."""
    bound = counters(incast(tmp_path, "pfc: none, drop: {queue: 16MiB, alpha: 0.001}"))[0]
    assert bound > 0


def test_each_trimmed_packet_arrives_as_a_header_and_is_repeated_once(tmp_path: Path) -> None:
    """Queues of headers never overflow here, so that no sender waits for a timeout."""
    result = incast(tmp_path, "pfc: none, drop: {queue: 64KiB, alpha: 1, trim: 64B}")
    trims, trimmed, drops = (
        int(result.wires.counters[name].sum()) for name in ("trims", "trimmed_bytes", "drops")
    )
    nics = result.in_order
    assert trims > 0
    assert (drops, sum(nic.timeouts for nic in nics)) == (0, 0)
    assert sum(nic.trimmed for nic in nics) == sum(nic.repeats for nic in nics) == trims
    assert sum(nic.repeated_bytes for nic in nics) == trimmed
    assert (result.messages.end_ps > 0).sum() == MESSAGES


def test_a_sender_that_goes_back_has_no_use_of_headers(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(FILE.replace("LOSS", "pfc: none, drop: {queue: 64KiB, trim: 64B}"))
    fabric = clusim.load(path)
    nodes = tuple(
        node
        if node.nic is None
        else replace(node, nic=replace(node.nic, retransmission="go-back-n"))
        for node in fabric.nodes
    )
    result = clusim.traffic(replace(fabric, nodes=nodes), "incast", message="64KiB")
    assert int(result.wires.counters["trims"].sum()) == 0
    assert counters(result)[0] > 0


SENT_BYTES = 4 << 20


def ends_ps(folder: Path, schedule: str) -> list[int]:
    """Return the ends of two equal flows of classes 0 and 1 to one GPU, without rate control [ps]."""
    path = folder / "classes.yaml"
    path.write_text(FILE.replace("LOSS", f"schedule: {schedule}"))
    flows = [Flow(8, 0, SENT_BYTES, 0, 0), Flow(16, 0, SENT_BYTES, 0, 1)]
    messages = clusim.traffic(path, flows=flows, policy="sender=none").messages
    return [int(messages.end_ps[messages.flow == number].max()) for number in range(2)]


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("{weights: [1, 1]}", (1 / 2, 1 / 2)),
        ("{weights: [1, 3]}", (1 / 4, 3 / 4)),
        ("{weights: [3, 1]}", (3 / 4, 1 / 4)),
        ("{priority: [1, 0]}", (0, 1)),
        ("{priority: [0, 1]}", (1, 0)),
    ],
)
def test_two_classes_share_a_link_as_its_schedule_says(
    tmp_path: Path, schedule: str, shares: tuple[float, float]
) -> None:
    """Of two flows of T alone, one with a share s above 1/2 ends after T / s, and the other after 2 T."""
    ends = ends_ps(tmp_path, schedule)
    alone_ps = max(ends) / 2
    for end_ps, share in zip(ends, shares, strict=True):
        assert end_ps == pytest.approx(alone_ps / max(share, 1 / 2), rel=0.02)


def test_a_nic_has_a_class(tmp_path: Path) -> None:
    """The traffic of the second node's NICs has priority."""
    fabric = clusim.load("hgx-h20:nodes=3")
    link = [replace(k, priority=(1, 0)) if k.cls == "roce" else k for k in fabric.links]
    nodes = tuple(
        replace(node, nic=replace(node.nic, traffic_class=1))
        if node.nic is not None and node.zone == 1
        else node
        for node in fabric.nodes
    )
    fabric = replace(fabric, links=tuple(link), nodes=nodes)
    flows = [Flow(8, 0, SENT_BYTES), Flow(16, 0, SENT_BYTES)]
    messages = clusim.traffic(fabric, flows=flows, policy="sender=none").messages
    ends = [int(messages.end_ps[messages.flow == number].max()) for number in range(2)]
    assert ends[0] == pytest.approx(ends[1] / 2, rel=0.02)


def test_links_and_nics_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "saved.yaml"
    loss = "pfc: none, drop: {trim: 65B}, schedule: {priority: [1, 0], weights: [2, 3]}"
    path.write_text(FILE.replace("LOSS", loss))
    fabric = clusim.load(path)
    assert {(link.trim_bytes, link.priority, link.weights) for link in fabric.links} == {
        (65, (1, 0), (2, 3)),
        (0, (), ()),
    }
    assert loads(to_yaml(fabric)) == fabric


def test_classes_beyond_the_virtual_channels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="need virtual channels, 9 of 8; fewer classes"):
        incast(tmp_path, "pfc: none, drop: {trim: 64B}, schedule: {weights: [1, 1, 1, 1, 1, 1, 1]}")


def test_a_flow_of_a_class_that_no_link_knows_is_refused(tmp_path: Path) -> None:
    path, table = tmp_path / "classes.yaml", tmp_path / "flows.csv"
    path.write_text(FILE.replace("LOSS", "schedule: {weights: [1, 1]}"))
    table.write_text("source,destination,bytes,class\n0,8,1MiB,1\n1,9,1MiB,2\n")
    with pytest.raises(InputError, match=r"flows.csv:3: class '2': lossy has 2, "):
        clusim.traffic(path, flows=table)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("drop: {queue: 1MiB}", "drops packets and pauses; remove one of drop and pfc"),
        ("pfc: none, drop: {queue: 1MiB, alpha: -1}", "must be greater than or equal to 0"),
        ("pfc: none, drop: {queue: 1MiB, beta: 1}", "drop.beta"),
        ("pfc: none, drop: {trim: 128KiB}", "drop.trim: '128KiB': must be less than or equal to"),
        ("schedule: {priority: [7]}", r"schedule.priority\[0\]: 7: must be less than or equal"),
        ("schedule: {weights: [0]}", r"schedule.weights\[0\]: 0: must be greater than or equal"),
    ],
)  # fmt: skip
def test_mistakes_of_drops_are_named(tmp_path: Path, loss: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        incast(tmp_path, loss)
