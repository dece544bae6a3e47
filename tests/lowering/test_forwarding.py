"""Paths of flows between nodes: hashed by every switch, by destination, or pinned by the topology file."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from clusim.base.errors import ScheduleError, TopologyError
from clusim.collectives import build
from clusim.engine.abi import NONE
from clusim.engine.image import Image
from clusim.lowering import lower
from clusim.lowering.forwarding import FIRST_PORT, source_port
from clusim.topology import Fabric, loads
from clusim.topology.arrays import arrays_of
from clusim.topology.save import to_yaml
from support.routes import wires_of

THREE_LEVELS = """
name: three-levels
cluster:
  node: dgx-spark
  nodes: 16
  network: {{kind: fat-tree, unit: 2, levels: 3, radix: 8}}
forwarding: {{{forwarding}}}
"""


def fabric_of(forwarding: str = "") -> Fabric:
    """Return 16 nodes with two NICs each, two nodes a leaf, four uplinks a leaf, and 4 cores."""
    return loads(THREE_LEVELS.format(forwarding=forwarding))


def paths_of(fabric: Fabric, seed: int = 0, channels: int = 1) -> list[list[str]]:
    """Return the switches of every connection of an all-to-all, as the engine's rules choose them."""
    schedule = build(fabric, "alltoall", None, 1 << 20, channels=channels)
    image = lower(fabric, schedule, seed=seed).image
    names = [node.name for node in fabric.nodes]
    return [
        [names[node] for node in switches_of(image, row) if image.nodes["zone"][node] == NONE]
        for row in image.conns
        if row["via_last"] != NONE
    ]


def switches_of(image: Image, row: np.void) -> list[int]:
    """Return the graph nodes that a connection visits."""
    return [int(image.wires["dst"][wire]) for wire in wires_of(image, row)]


def cores_by_spine(paths: list[list[str]]) -> dict[str, Counter[str]]:
    """Return the cores that flows take behind every spine that they reach upwards."""
    found: dict[str, Counter[str]] = {}
    for path in paths:
        for below, above in pairwise(path):
            if below.startswith("spine") and above.startswith("core"):
                found.setdefault(below, Counter())[above] += 1
    return found


def test_switches_with_equal_seeds_polarise_flows() -> None:
    """Flows that one hash sent to a spine have that hash in common: the spine sends them all to one core."""
    equal = cores_by_spine(paths_of(fabric_of("seeds: equal"), channels=4))
    apart = cores_by_spine(paths_of(fabric_of(), channels=4))
    assert set(equal) == set(apart)
    assert len(equal) == 8
    used_equal, used_apart = sum(map(len, equal.values())), sum(map(len, apart.values()))
    assert used_apart == 8 * 4
    assert used_equal <= used_apart / 2


def test_destination_forwarding_sends_all_flows_to_a_nic_over_one_core() -> None:
    """And the seed moves nothing."""
    fabric = fabric_of("choice: destination")
    by_leaf: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    schedule = build(fabric, "alltoall", None, 1 << 20, channels=1)
    image = lower(fabric, schedule).image
    for row in image.conns:
        if row["via_last"] != NONE:
            visited = switches_of(image, row)
            ends = str(visited[-1]), str(visited[1])
            by_leaf.setdefault(ends, set()).add(tuple(map(str, visited[1:-1])))
    assert max(map(len, by_leaf.values())) == 1
    assert paths_of(fabric, seed=1) == paths_of(fabric, seed=2)
    assert paths_of(fabric_of(), seed=1) != paths_of(fabric_of(), seed=2)


def test_hashes_of_addresses_keep_all_queue_pairs_of_two_nics_together() -> None:
    def paths(fields: str) -> int:
        fabric = fabric_of(f"fields: {fields}")
        schedule = build(fabric, "send", None, 1 << 20, ranks=(0, 15), channels=16)
        image = lower(fabric, schedule).image
        rows = [row for row in image.conns if row["via_last"] != NONE]
        ends = Counter((int(row["via_first"]), int(row["via_last"])) for row in rows)
        assert sum(ends.values()) == 16
        return len({tuple(switches_of(image, row)) for row in rows}) - len(ends)

    assert paths("addresses") == 0
    assert paths("five-tuple") > 2
    assert paths("queue-pair") > 2


def test_flows_of_every_leaf_fill_its_uplinks_as_balls_fill_bins() -> None:
    """The law of the busiest uplink over the mean: mean over seeds and leaves, for the number of flows."""
    fabric, found, flows = fabric_of(), [], set()
    for seed in range(30):
        used: dict[str, Counter[str]] = {}
        for path in paths_of(fabric, seed):
            if len(path) > 1:
                used.setdefault(path[0], Counter())[path[1]] += 1
        flows |= {sum(counts.values()) for counts in used.values()}
        found += [max(counts.values()) / sum(counts.values()) * 4 for counts in used.values()]
    (count,) = flows
    balls = np.random.default_rng(2).multinomial(count, [1 / 4] * 4, 20_000).max(axis=1) / count * 4
    error = balls.std() / len(found) ** 0.5
    assert float(np.mean(found)) == pytest.approx(float(balls.mean()), abs=4 * error)
    assert float(np.std(found)) == pytest.approx(float(balls.std()), rel=0.25)


FT3 = """
name: ft3
cluster:
  node: hgx-h100-ndr
  nodes: 16
  network: {{kind: fat-tree, unit: 4, levels: 3, oversubscription: 2, core_oversubscription: 1}}
forwarding: {{choice: {choice}}}
"""


def fullest_uplinks(choice: str, seed: int) -> list[float]:
    """Return flows of the fullest of the 16 uplinks of every leaf over their mean, for a ring of 32 channels."""
    fabric = loads(FT3.format(choice=choice))
    image = lower(fabric, build(fabric, "allreduce", "ring", 1 << 20, channels=32), seed=seed).image
    tiers = np.array([node.tier for node in fabric.nodes])
    up = (tiers[image.wires["src"]] == "leaf") & (tiers[image.wires["dst"]] == "spine")
    away = image.conns[image.conns["via_last"] != NONE]
    flows = Counter(wire for row in away for wire in wires_of(image, row) if up[wire])
    leaves = {int(leaf) for leaf in image.wires["src"][up]}
    by_leaf = [[flows[w] for w in np.flatnonzero(up & (image.wires["src"] == n))] for n in leaves]
    assert {(len(row), sum(row)) for row in by_leaf} == {(16, 32)}
    return [max(row) / 2 for row in by_leaf]


def test_uplinks_of_a_tapered_fat_tree_fill_by_destination_and_as_balls_fill_bins() -> None:
    """32 flows of a ring leave a leaf for the 8 NICs of a node: 4 flows on 8 of 16 uplinks, twice the mean.

    Hashed, they are 32 balls in 16 bins.
    """
    assert set(fullest_uplinks("destination", 0)) == {2.0}
    found = [share for seed in range(6) for share in fullest_uplinks("hash", seed)]
    balls = np.random.default_rng(3).multinomial(32, [1 / 16] * 16, 20_000).max(axis=1) / 2
    error = float(balls.std()) / len(found) ** 0.5
    assert float(np.mean(found)) == pytest.approx(float(balls.mean()), abs=4 * error)


def test_pinned_paths_replace_the_hash() -> None:
    plain = fabric_of()
    index, arrays = plain.node_index, arrays_of(plain)
    core = next(
        plain.nodes[int(arrays.wires["dst"][wire])].name
        for wire in arrays.wires_from(index["spine0.2"]).tolist()
        if plain.nodes[int(arrays.wires["dst"][wire])].name.startswith("core")
    )
    via = f"[leaf0, spine0.2, {core}]"
    fabric = fabric_of(f"paths: [{{from: n0/nic0, to: n15/nic0, via: {via}}}]")
    for seed in range(5):
        schedule = build(fabric, "send", None, 1 << 20, ranks=(0, 15), channels=8)
        image = lower(fabric, schedule, seed=seed).image
        names = [fabric.nodes[int(node)].name for node in image.targets["node"]]
        pinned = [
            [fabric.nodes[node].name for node in switches_of(image, row)]
            for row in image.conns
            if row["via_last"] != NONE
            and (names[row["via_first"]], names[row["via_last"]]) == ("n0/nic0", "n15/nic0")
        ]
        assert pinned
        for path in pinned:
            assert path[path.index("leaf0") :][:3] == ["leaf0", "spine0.2", core]
    assert loads(to_yaml(fabric)).forwarding == fabric.forwarding


def test_wrong_pinned_paths_are_errors() -> None:
    with pytest.raises(TopologyError, match="no switch 'spine9'"):
        fabric_of("paths: [{to: n15/nic0, via: [leaf0, spine9]}]")
    with pytest.raises(TopologyError, match="no nic 'n99/nic0'"):
        fabric_of("paths: [{to: n99/nic0, via: [leaf0, spine0.0]}]")
    with pytest.raises(TopologyError, match=r"no link joins leaf0 and spine1\.0"):
        fabric_of("paths: [{to: n15/nic0, via: [leaf0, spine1.0]}]")
    fabric = fabric_of("paths: [{from: n0/nic0, to: n15/nic0, via: [leaf1, spine0.0]}]")
    schedule = build(fabric, "send", None, 1 << 20, ranks=(0, 15), channels=2)
    with pytest.raises(ScheduleError, match=r"no shortest path .* from leaf1 to spine0\.0"):
        lower(fabric, schedule)


def test_source_ports_are_those_of_linux() -> None:
    """The product of both queue pair numbers, folded at 20 and at 14 bits."""
    local, remote = np.array([0x12345, 1]), np.array([0x54321, 1])
    label = 0x12345 * 0x54321
    label ^= label >> 20
    label ^= label >> 40
    label &= 0xFFFFF
    expected = 0xC000 | ((label & 0x3FFF) ^ (label >> 14))
    assert source_port(local, remote).tolist() == [expected, FIRST_PORT + 1]
