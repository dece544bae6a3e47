"""Laws of the paths that flows take between machines: by destination on InfiniBand, by hash on Ethernet."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

import clusim
from clusim import topology
from clusim.results.result import Result
from support.covering import THOROUGH

CLUSTER = """
name: joined
cluster:
  node: {node}
  nodes: {nodes}
  network: {{kind: fat-tree, unit: {unit}, oversubscription: {oversubscription}}}
"""


@cache
def _machine(node: str, nodes: int, unit: int, oversubscription: int = 1) -> topology.Fabric:
    return topology.loads(
        CLUSTER.format(node=node, nodes=nodes, unit=unit, oversubscription=oversubscription)
    )


def _uplinks(result: Result) -> dict[str, Counter[str]]:
    """Return the payload of every wire from a leaf switch to a spine, by leaf switch [bytes]."""
    found: dict[str, Counter[str]] = {}
    payload = result.wires.counters["payload"].tolist()
    for name, sent in zip(result.wires.names, payload, strict=True):
        leaf, _, spine = name.partition("->")
        if leaf.startswith("leaf") and spine.startswith("spine"):
            found.setdefault(leaf, Counter())[name] += sent
    return found


def _alltoall(machine: topology.Fabric, **options: Any) -> dict[str, Counter[str]]:
    return _uplinks(
        clusim.collective(machine, "alltoall", "4MiB", channels=1, granularity="coarse", **options)
    )


def _fullest(sent: Counter[str]) -> float:
    """Return what the fullest of some wires carries over their mean."""
    return max(sent.values()) / (sum(sent.values()) / len(sent))


@pytest.mark.parametrize("node", ["hgx-h800", "hgx-h100-ndr"])
def test_rails_that_work_at_once_have_uplinks_of_their_own_on_infiniband(node: str) -> None:
    """Two machines a leaf, a ring per GPU's number: its flow goes to the NIC of that number, as no other does."""
    machine = _machine(node, 4, 2)
    total: Counter[str] = Counter()
    for gpu in range(8):
        ranks = tuple(range(gpu, 32, 8))
        result = clusim.collective(machine, "allreduce", "256KiB", "ring", channels=1, ranks=ranks)
        for sent in _uplinks(result).values():
            total += sent
    used = [sent for sent in total.values() if sent]
    assert len(used) == 16  # one for each ring at each of the two leaf switches
    assert max(used) == min(used)


def test_all_to_all_fills_the_uplinks_of_infiniband_evenly() -> None:
    """Destinations are dealt out over the uplinks in turn, so that equal flows to all of them fill each alike."""
    for sent in _alltoall(_machine("hgx-h100-ndr", 4, 1, 2)).values():
        assert _fullest(sent) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("pxn", "flows"), [("0", 24), ("1", 192)])
def test_hashed_flows_fill_the_uplinks_of_ethernet_as_balls_fill_bins(pxn: str, flows: int) -> None:
    """Equal flows leave each leaf switch over 8 uplinks: the fullest over the mean is that of balls in bins.

    There are 8 senders and 24 receivers. Over PXN the senders share the queue pair of the GPU at the receiver's rail.
    """
    machine, seeds = _machine("hgx-h20", 4, 1), range(6 if THOROUGH else 3)
    env = {"NCCL_PXN_DISABLE": pxn}
    seen = [
        _fullest(sent) for seed in seeds for sent in _alltoall(machine, seed=seed, env=env).values()
    ]
    rng = np.random.default_rng(1)
    balls = rng.multinomial(flows, [1 / 8] * 8, 4000).max(axis=1) / flows * 8
    error = balls.std() / len(seen) ** 0.5
    assert len(seen) == 4 * len(seeds)
    assert float(np.mean(seen)) == pytest.approx(float(balls.mean()), abs=4 * error)
    assert float(np.std(seen)) > 0.3 * float(balls.std())


def test_the_seed_moves_hashed_flows_and_no_others() -> None:
    hashed, routed = _machine("hgx-h20", 2, 1), _machine("hgx-h100-ndr", 2, 1)
    assert _alltoall(hashed, seed=1) == _alltoall(hashed, seed=1)
    assert _alltoall(hashed, seed=1) != _alltoall(hashed, seed=2)
    assert _alltoall(routed, seed=1) == _alltoall(routed, seed=2)


def test_more_channels_have_more_paths_on_ethernet_and_none_more_on_infiniband() -> None:
    """A ring crosses between machines once per channel: a queue pair each, all to the NICs of one neighbour."""

    def paths(node: str, channels: int) -> int:
        machine = _machine(node, 2, 1)
        result = clusim.collective(
            machine, "allreduce", "1MiB", "ring", channels=channels, ranks=(0, 8)
        )
        return max(sum(map(bool, sent.values())) for sent in _uplinks(result).values())

    assert paths("hgx-h100-ndr", 1) == paths("hgx-h100-ndr", 8) == 1
    assert paths("hgx-h20", 1) == 1 < paths("hgx-h20", 8)
