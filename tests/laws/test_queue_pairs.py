"""Laws of several queue pairs per connection: paths, shares of data, and the gain over hashes that collide."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

import clusim
from clusim import topology
from clusim.collectives import build
from clusim.engine.abi import NONE
from clusim.lowering import lower
from clusim.results.result import Result
from clusim.topology.model import MOST_QUEUES

CLUSTER = """
name: joined
cluster:
  node: {node}
  nodes: {nodes}
  network: {{kind: fat-tree, unit: {unit}}}
forwarding: {{{forwarding}}}
"""


@cache
def machine(node: str = "hgx-h20", nodes: int = 2, unit: int = 1, forwarding: str = "") -> topology.Fabric:  # fmt: skip
    return topology.loads(CLUSTER.format(node=node, nodes=nodes, unit=unit, forwarding=forwarding))


def sent(fabric: topology.Fabric, queues: int, split: int | None = None, version: str = "") -> Result:  # fmt: skip
    """Broadcast 16 MiB over one channel to another node with NCCL's variables."""
    env = {"NCCL_IB_QPS_PER_CONNECTION": str(queues)}
    env |= {} if split is None else {"NCCL_IB_SPLIT_DATA_ON_QPS": str(split)}
    options = {"version": version} if version else {}
    return clusim.collective(
        fabric, "broadcast", "16MiB", "nccl", channels=1, ranks=(0, 8), env=env, seed=3, **options
    )


def uplinks(result: Result) -> Counter[str]:
    """Return the payload of the used wires from leaf switches to spines [bytes]."""
    payload = result.wires.counters["payload"].tolist()
    return Counter(
        {
            name: size
            for name, size in zip(result.wires.names, payload, strict=True)
            if size and name.startswith("leaf") and "->spine" in name
        }
    )


def test_queue_pairs_have_paths_of_their_own() -> None:
    one, many = sent(machine(), 1), sent(machine(), 8)
    assert len(uplinks(one)) == 1
    assert 3 <= len(uplinks(many)) <= 8
    assert sum(uplinks(one).values()) == sum(uplinks(many).values())


@pytest.mark.parametrize(("split", "grain"), [(0, 1 << 20), (1, 4096 * 32)])
def test_messages_take_turns_and_split_messages_are_equal_parts(split: int, grain: int) -> None:
    """The loads are multiples of the share of a queue pair, up to a message or a packet of every message."""
    queues, loads = 4, uplinks(sent(machine(), 4, split))
    share = sum(loads.values()) / queues
    for load in loads.values():
        assert load == pytest.approx(round(load / share) * share, abs=grain)
    assert len(loads) > 1


def test_split_messages_use_all_their_paths_at_once() -> None:
    """A fifo of few messages cannot fill several paths in turn better than one; their wires are the NIC's rate."""
    turns, split = sent(machine(), 4, 0), sent(machine(), 4, 1)
    assert split.time_ps == pytest.approx(turns.time_ps, rel=0.02)
    assert split.fingerprint != turns.fingerprint


def test_old_releases_split_messages_by_default() -> None:
    old, new = sent(machine(), 4, version="2.18"), sent(machine(), 4, version="2.20")
    again = sent(machine(), 4, 1, version="2.18"), sent(machine(), 4, 0, version="2.20")
    assert [old.fingerprint, new.fingerprint] == [result.fingerprint for result in again]


def test_queue_pairs_change_nothing_where_switches_forward_by_destination() -> None:
    fabric = machine("hgx-h100-ndr")
    assert sent(fabric, 8).fingerprint == sent(fabric, 1).fingerprint
    addresses = machine(forwarding="fields: addresses")
    assert sent(addresses, 8).fingerprint == sent(addresses, 1).fingerprint


def test_the_key_of_the_topology_means_the_same() -> None:
    fabric = machine(forwarding="queues: 4, split: true")
    assert sent(fabric, 1).fingerprint == sent(machine(), 4, 1).fingerprint


def test_both_engines_agree_on_queue_pairs() -> None:
    for split in ("true", "false"):
        fabric = machine("dgx-spark", 4, 1, f"queues: 3, split: {split}")
        results = [
            clusim.collective(fabric, "alltoall", "64KiB", engine=engine, channels=1)
            for engine in ("c", "reference")
        ]
        assert results[0].fingerprint == results[1].fingerprint


def test_more_queue_pairs_fill_uplinks_more_evenly_as_balls_fill_bins() -> None:
    """The busiest uplink bounds the rate: 4 to 16 queue pairs per flow gain what the law of balls in bins says.

    Eight rails at once, one flow of each leaves a node over eight uplinks. Meta reports up to 40% (SIGCOMM 2024, 5.2).
    """
    rng = np.random.default_rng(5)

    def busiest(queues: int) -> float:
        fabric = machine(nodes=4, forwarding=f"queues: {queues}")
        schedule = build(fabric, "alltoall", None, 1 << 20, channels=1)
        found = []
        for seed in range(12):
            image = lower(fabric, schedule, seed=seed).image
            rows = image.conns[image.conns["via_last"] != NONE]
            leaf = image.endpoints["node"][rows["src"]] // (len(fabric.nodes) // 4)
            keys = np.array([image.queue_keys[row["queue_lo"] : row["queue_hi"]] for row in rows])
            # 24 receivers of each node; only one of them per rail, as in a ring of nodes
            for node in np.unique(leaf):
                mine = keys[leaf == node]
                picked = mine[rng.permutation(len(mine))[:8]].ravel()
                counts = np.bincount(picked % 8, minlength=8)
                found.append(counts.max() / counts.mean())
        return float(np.mean(found))

    def law(queues: int) -> float:
        balls = rng.multinomial(8 * queues, [1 / 8] * 8, 20_000).max(axis=1) / queues
        return float(balls.mean())

    found = {queues: busiest(queues) for queues in (4, 16)}
    assert found[4] == pytest.approx(law(4), rel=0.06)
    assert found[16] == pytest.approx(law(16), rel=0.06)
    assert 1.2 < found[4] / found[16] < 1.4


def test_more_queue_pairs_than_nccl_has_are_an_error() -> None:
    with pytest.raises(clusim.ClusimError, match="NCCL_IB_QPS_PER_CONNECTION"):
        sent(machine(), MOST_QUEUES + 1)
