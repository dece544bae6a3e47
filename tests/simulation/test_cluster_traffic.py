"""Synthetic traffic between machines: both engines agree, and load is a part of what the network carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clusim.engine.abi import NONE
from clusim.simulation.capacity import capacity_Bps
from clusim.simulation.traffic import Traffic
from clusim.simulation.traffic_api import simulate_traffic
from clusim.simulation.traffic_image import to_image
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of
from support.boxes import box_text, cluster

NETWORKS = [
    {"kind": "single", "switch": "any"},
    {"kind": "rail"},
    {"kind": "fat-tree", "oversubscription": 3},
    {"kind": "rail", "spines": 0},
    {
        "kind": "dragonfly",
        "switch": "any",
        "switch_nics": 2,
        "group_switches": 2,
        "global_links": 2,
    },
    {"kind": "torus", "switch": "any", "shape": [3, 2]},
]


@pytest.fixture
def box(tmp_path: Path) -> str:
    (tmp_path / "box.yaml").write_text(box_text())
    return str(tmp_path / "box.yaml")


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_engines_agree_and_every_message_arrives(box: str, network: dict[str, object]) -> None:
    net = cluster(box, 6, **network)
    traffic = Traffic(pattern="alltoall", message_bytes=8192, packet_bytes=4096)
    results = [simulate_traffic(net, traffic, engine=engine) for engine in ("c", "reference")]
    assert results[0].fingerprint == results[1].fingerprint
    messages = results[0].messages
    assert messages is not None
    times = messages.end_ps
    assert len(times) == 12 * 11
    assert (times > 0).all()


def test_messages_between_machines_are_steered_over_nics_and_others_are_not(box: str) -> None:
    net = cluster(box, 3, kind="rail")
    traffic = Traffic(pattern="alltoall", message_bytes=4096, packet_bytes=4096)
    plan = traffic.plan(arrays_of(net))
    image = to_image(net, traffic, plan)
    zone = np.array([arrays_of(net).zone_of(rank) for rank in range(net.num_ranks)])
    apart = zone[plan.messages.source] != zone[plan.messages.destination]
    assert (image.messages["via_first"] != NONE).tolist() == apart.tolist()
    assert (image.messages["via_last"] != NONE).tolist() == apart.tolist()
    assert len(image.targets) == len(image.endpoints) + 6
    assert (image.sources["control"] == NONE).all()


def capacity(net: Fabric) -> float:
    arrays = arrays_of(net)
    demand = np.ones((arrays.num_ranks, arrays.num_ranks)) - np.eye(arrays.num_ranks)
    return capacity_Bps(arrays, demand / (arrays.num_ranks - 1), 4096)


def test_oversubscription_divides_what_uniform_traffic_can_send(box: str) -> None:
    full = capacity(cluster(box, 16, kind="fat-tree", switch="sixteen"))
    thin = capacity(cluster(box, 16, kind="fat-tree", switch="sixteen", unit=4, uplinks=2))
    share = (
        24 / 31
    )  # of the other ranks are below another leaf, which 8 GPUs share 2 uplinks to reach
    assert thin == pytest.approx(25e9 * 2 / 8 / share * 4096 / (4096 + 26), rel=1e-3)
    assert full > 3 * thin


def test_a_nic_is_what_limits_a_permutation_between_two_machines(box: str) -> None:
    arrays = arrays_of(cluster(box, 2, kind="single"))
    demand = np.zeros((4, 4))
    demand[[0, 1, 2, 3], [2, 3, 0, 1]] = 1.0
    assert capacity_Bps(arrays, demand, 4096) == pytest.approx(25e9 * 4096 / (4096 + 26), rel=1e-3)
