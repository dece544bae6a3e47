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
    """Follow the route choice of section 6 of the contract from NIC to NIC."""
    key, ordinal, visited = int(row["key"]), 0, []
    targets = [int(t) for t in (row["via_first"], row["via_last"]) if t != NONE]
    node = int(image.endpoints["node"][row["src"]])
    for target in targets:
        while node != int(image.targets["node"][target]):
            near, goal = image.nodes[node], image.targets[target]
            at = near["route_lo"] + goal["local"]
            if near["zone"] != goal["zone"]:
                at = near["wide_lo"] + goal["wide"] * near["wide_stride"]
            group = int(image.routes[at])
            low, high = image.group_off[group : group + 2].tolist()
            size = high - low
            wire = int(image.group_wires[low + ((key + ordinal) % size if size > 1 else 0)])
            key = key // size if size > 1 else key
            ordinal, node = int(image.wires["ordinal"][wire]), int(image.wires["dst"][wire])
            visited.append(node)
    return visited


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
    fabric = fabric_of("paths: [{from: n0/nic0, to: n15/nic0, via: [leaf0, spine1.0]}]")
    schedule = build(fabric, "send", None, 1 << 20, ranks=(0, 15), channels=2)
    with pytest.raises(ScheduleError, match=r"no shortest path .* from leaf0 to spine1\.0"):
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
