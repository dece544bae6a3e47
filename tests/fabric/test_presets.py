"""The shipped machines against the published adjacency, embedded here."""

from __future__ import annotations

from collections import Counter

import pytest

from clusim import fabric, hardware, resources
from clusim.errors import InputError
from clusim.fabric import Fabric, check, describe
from clusim.hardware import ARCHITECTURES, CHIPS, FORMATS, LINKS, SWITCHES

QUADS = [(a, b) for q in (0, 4) for a in range(q, q + 4) for b in range(a + 1, q + 4)]
DGX_1P = dict.fromkeys(QUADS, 1) | {(i, i + 4): 1 for i in range(4)}
DGX_1V = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}  # nvidia-smi topo -m of a DGX-1 with V100


def switched(gpus: int, counts: list[int]) -> dict[tuple[str, str], int]:
    return {(f"gpu{g}", f"nvswitch{s}"): n for g in range(gpus) for s, n in enumerate(counts)}


DGX_2 = {(f"gpu{g}", f"nvswitch{s + 6 * (g // 8)}"): 1 for g in range(16) for s in range(6)} | {
    (f"nvswitch{s}", f"nvswitch{s + 6}"): 8 for s in range(6)
}

# name: (adjacency, link rate [GB/s], links per GPU, p2p, channels of a ring, flight of a store 0 -> last [ps])
MACHINES = {
    "dgx-1p": ({(f"gpu{a}", f"gpu{b}"): n for (a, b), n in DGX_1P.items()}, 20, 4, "write", 8),
    "dgx-1v": (
        {(f"gpu{a}", f"gpu{b}"): n for (a, b), n in DGX_1V.items()},
        25.78125,
        6,
        "write",
        12,
    ),
    "dgx-2": (DGX_2, 25.78125, 6, "write", 12),
    "dgx-a100": (switched(8, [2] * 6), 25, 12, "read", 24),
    "dgx-h100": (switched(8, [5, 4, 4, 5]), 25, 18, "write", 24),
    "dgx-h200": (switched(8, [5, 4, 4, 5]), 25, 18, "write", 24),
    "hgx-b200": (switched(8, [9, 9]), 50, 18, "write", 32),
    "gb200-nvl72": (switched(72, [1] * 18), 50, 18, "write", 32),
}


def adjacency(machine: Fabric) -> dict[tuple[str, str], int]:
    found: Counter[tuple[str, str]] = Counter()
    for link in machine.links:
        found[link.a, link.b] += link.count
    return dict(found)


def test_every_shipped_machine_is_tested() -> None:
    assert set(resources.shipped_topologies()) == set(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_adjacency_and_rates(name: str) -> None:
    links, rate_GBps, per_gpu, p2p, channels = MACHINES[name]
    machine = fabric.load(name)
    assert machine.name == name
    assert adjacency(machine) == links
    assert {link.rate.bytes_per_s for link in machine.links} == {rate_GBps * 1e9}
    for rank in machine.ranks:
        assert sum(link.count for link in machine.links if rank in (link.a, link.b)) == per_gpu
    assert machine.p2p == p2p
    assert machine.num_channels("ring") == channels


@pytest.mark.parametrize("name", MACHINES)
def test_machine_is_sound(name: str) -> None:
    findings = check(fabric.load(name))
    assert [finding.what for finding in findings if finding.level != "info"] == []


@pytest.mark.parametrize("name", MACHINES)
def test_remote_store_takes_as_long_as_the_latency_split_says(name: str) -> None:
    machine = fabric.load(name)
    arrays = machine.lower()
    near = next(rank for rank in range(1, machine.num_ranks) if arrays.first_wires(0, rank))
    total = arrays.hop_latency_ps(0, near) + int(arrays.endpoints["write_latency_ps"][0])
    direct = not any(node.kind == "switch" for node in machine.nodes)
    assert (350_000 if direct else 450_000) <= total <= 600_000


@pytest.mark.parametrize("name", MACHINES)
def test_only_later_switches_reduce(name: str) -> None:
    machine = fabric.load(name)
    reducing = name in ("dgx-h100", "dgx-h200", "hgx-b200", "gb200-nvl72")
    arrays = machine.lower()
    assert len(arrays.unit_wires(0)) == (MACHINES[name][2] if reducing else 0)
    assert len(arrays.units) == sum(node.kind == "switch" for node in machine.nodes) * reducing


@pytest.mark.parametrize("name", ["dgx-1p", "dgx-1v"])
def test_rings_follow_links(name: str) -> None:
    machine = fabric.load(name)
    load: Counter[tuple[int, int]] = Counter()
    assert machine.ring_orders is not None
    for ring in machine.ring_orders:
        for a, b in zip(ring, (*ring[1:], ring[0]), strict=True):
            load[a, b] += 1
    links = adjacency(machine)
    for (a, b), rings in load.items():
        assert links.get((f"gpu{min(a, b)}", f"gpu{max(a, b)}"), 0) >= rings
    assert sum(load.values()) == 2 * sum(links.values()), "every link is used in both directions"


def limit_GBps(machine: Fabric, payload: int, kinds: tuple[int, ...]) -> float:
    """Payload rate of a GPU that sends and receives one packet of each of `kinds` per payload."""
    form = next(iter(machine.formats.values()))
    wire = payload + sum(form.header_bytes[kind] + form.control_256[kind] / 256 for kind in kinds)
    links = sum(link.count for link in machine.links if "gpu0" in (link.a, link.b))
    return payload / wire * links * machine.links[0].rate.bytes_per_s / 1e9


@pytest.mark.parametrize(
    ("name", "kinds", "expected_GBps"),
    [
        ("dgx-1p", (0,), 67.4),  # 128/(128+16+8) x 80
        ("dgx-1v", (0,), 130.2),  # 6 x 21.7, TACCL's fit of one V100 link
        ("dgx-a100", (1, 2), 231.6),  # 8 GiB ring all-reduce, Azure ND A100 v4
        ("dgx-h100", (0,), 370.4),  # 128/(128+16+11.5) x 450
        ("hgx-b200", (0,), 720.0),  # 128/(128+16+16) x 900
    ],
)
def test_packet_overhead_gives_the_known_ring_limit(
    name: str, kinds: tuple[int, ...], expected_GBps: float
) -> None:
    assert limit_GBps(fabric.load(name), 128, kinds) == pytest.approx(expected_GBps, rel=0.001)


@pytest.mark.parametrize(
    ("name", "n", "measured_GBps"),
    [
        ("dgx-h100", 8, 273.6),  # Azure ND H100 v5
        ("dgx-h100", 4, 251.0),  # NVIDIA/nccl thread 1455
        ("dgx-h100", 2, 207.0),
        ("hgx-b200", 8, 474.0),  # NVIDIA/nccl thread 1807
    ],
)
def test_multicast_factor_gives_the_measured_nvls_rate(
    name: str, n: int, measured_GBps: float
) -> None:
    form = next(iter(fabric.load(name).formats.values()))
    factor = form.service_1024[3] / 1024
    acks = form.control_256[3] / 256 / 16
    up = factor * (9 + 1 / n + 9 / n) + acks  # flits per 128 B: data, requests, multicast, acks
    down = factor * (1 + 9 / n + 9) + acks / n
    rate = 450 if name == "dgx-h100" else 900
    assert 8 / max(up, down) * rate == pytest.approx(measured_GBps, rel=0.025)


def test_every_figure_has_a_source() -> None:
    tables = [CHIPS, SWITCHES, FORMATS, LINKS, *ARCHITECTURES.values()]
    for table in tables:
        for name, preset in table.items():
            for key, figure in preset.items():
                assert figure.mark in ("published", "measured", "calibrated"), (name, key)
                assert len(figure.source) > 8, (name, key)


@pytest.mark.parametrize("name", MACHINES)
def test_description_names_figures_with_their_sources(name: str) -> None:
    machine = fabric.load(name)
    text = describe(machine)
    chip = machine.nodes[0].endpoint
    assert chip is not None
    assert f"chip {chip.chip}: memory_rate" in text
    assert "(published: " in text
    assert "(calibrated: " in text
    assert max(map(len, describe(machine, sources=False).splitlines())) < 200


def test_unknown_preset_lists_the_known() -> None:
    with pytest.raises(InputError, match="unknown; the presets are p100"):
        hardware.lookup(CHIPS, "chip", "h1000")
