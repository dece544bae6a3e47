"""The shipped machines against the published adjacency and trees, embedded here."""

from __future__ import annotations

from collections import Counter

import pytest

from clusim import hardware, topology
from clusim.base import resources
from clusim.base.errors import InputError
from clusim.base.units import parse_rate
from clusim.hardware import (
    ARCHITECTURES,
    CHIPS,
    FORMATS,
    LINKS,
    MARKS,
    NICS,
    RATE_CONTROLS,
    SWITCHES,
)
from clusim.topology import Fabric, check, describe
from clusim.topology.arrays import arrays_of
from clusim.topology.check_links import HOST_CLASSES
from support.arrays import hop_latency_ps
from support.known_machines import MACHINES, Pairs

MEASURED_SYSTEMS = (
    "a100-pcie-x8",
    "a100x4-mesh",
    "alps-gh200",
    "aws-p5en",
    "dgx-a100",
    "dgx-h100",
    "dgx-h200",
    "gb200-nvl72",
    "gh200x4-mesh",
    "hgx-h100-ndr",
    "polaris",
    "rtx3090x8-edr56",
)


def adjacency(machine: Fabric) -> Pairs:
    """Return the links between GPUs and their switches."""
    found: Counter[tuple[str, str]] = Counter()
    for link in machine.links:
        if link.cls not in HOST_CLASSES:
            found[link.a, link.b] += link.count
    return dict(found)


def peer_links(machine: Fabric, name: str) -> int:
    return sum(
        link.count
        for link in machine.links
        if name in (link.a, link.b) and link.cls not in HOST_CLASSES
    )


def neighbours(machine: Fabric) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for link in machine.links:
        if link.cls in HOST_CLASSES:
            found.setdefault(link.a, []).append(link.b)
            found.setdefault(link.b, []).append(link.a)
    return found


def distances(machine: Fabric, start: str) -> dict[str, int]:
    """Return how many host links every node is from one."""
    near = neighbours(machine)
    found, level = {start: 0}, [start]
    while level:
        following = []
        for name in level:
            for other in near.get(name, []):
                if other not in found:
                    found[other] = found[name] + 1
                    following.append(other)
        level = following
    return found


def test_every_shipped_machine_is_tested() -> None:
    assert set(resources.shipped_topologies()) == set(MACHINES)


def test_every_measured_system_is_shipped() -> None:
    assert set(MEASURED_SYSTEMS) <= set(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_adjacency_and_rates(name: str) -> None:
    expected = MACHINES[name]
    machine = topology.load(name)
    assert machine.name == name
    assert adjacency(machine) == expected.gpus
    rates = {link.rate.bytes_per_s for link in machine.links if link.cls not in HOST_CLASSES}
    assert rates == ({expected.rate_GBps * 1e9} if expected.gpus else set())
    for number, rank in enumerate(machine.ranks):
        assert peer_links(machine, rank) == expected.links_of(number)
    assert machine.p2p == expected.p2p
    assert machine.num_channels("ring") == expected.rings
    assert [node.kind for node in machine.nodes[: machine.num_ranks]] == ["gpu"] * machine.num_ranks


@pytest.mark.parametrize("name", MACHINES)
def test_nearest_adapters_and_sockets(name: str) -> None:
    expected = MACHINES[name]
    machine = topology.load(name)
    nics = sorted((n.name for n in machine.nodes if n.kind == "nic"), key=lambda n: int(n[3:]))
    assert nics == [f"nic{i}" for i in range(1 + max(i for own in expected.nics for i in own))]
    for gpu, (near, socket) in enumerate(zip(expected.nics, expected.sockets, strict=True)):
        far = distances(machine, f"gpu{gpu}")
        least = min(far[nic] for nic in nics if nic in far)
        assert [f"nic{i}" for i in near] == [nic for nic in nics if far.get(nic) == least], gpu
        roots = {n: d for n, d in far.items() if n.startswith("cpu")}
        assert min(roots, key=lambda n: roots[n]) == f"cpu{socket}"
        assert far[f"mem{socket}"] == roots[f"cpu{socket}"] + 1


@pytest.mark.parametrize("name", MACHINES)
def test_slots_and_network(name: str) -> None:
    expected = MACHINES[name]
    machine = topology.load(name)
    slots = [
        link for link in machine.links if link.cls in HOST_CLASSES and link.a.startswith("gpu")
    ]
    kinds = set(expected.slot.split())
    assert {link.name.removesuffix("-gpu") for link in slots} == kinds
    assert sum(link.count for link in slots) == machine.num_ranks * len(kinds), "one for every GPU"
    kind, link, cls, rate_GBps = expected.network
    assert (machine.network["kind"], machine.network["link"]) == (kind, link)
    assert machine.network["switch"] in SWITCHES
    assert LINKS[link]["class"].value == cls
    rate = parse_rate(str(LINKS[link]["rate"].value)).bytes_per_s
    assert rate == pytest.approx(rate_GBps * 1e9)


@pytest.mark.parametrize("name", MACHINES)
def test_gpus_talk_over_their_own_links(name: str) -> None:
    machine = topology.load(name)
    if not MACHINES[name].gpus:
        return
    arrays = arrays_of(machine)
    last = machine.num_ranks - 1
    near = MACHINES[name].warnings  # not all pairs of these are linked
    for a, b in ((0, 1), (0, last), (last, 0), (1, last // 2 + 1))[: 1 if near else 4]:
        if a != b:
            path = arrays.path(a, b)
            assert not {arrays.wire_class[wire] for wire in path} & HOST_CLASSES
            for wire in arrays.first_wires(a, b):
                assert arrays.wire_class[wire] not in HOST_CLASSES, "no tie with PCIe"


@pytest.mark.parametrize("name", ["dgx-1p", "dgx-1v", "aws-p3dn", "azure-ndv2"])
def test_relays_do_not_carry_what_comes_over_pcie(name: str) -> None:
    """GPUs pass packets on from NVLink to NVLink, never between NVLink and PCIe."""
    machine = topology.load(name)
    arrays = arrays_of(machine)
    nics = arrays.nic_targets.tolist()
    for rank in range(machine.num_ranks):
        for target in (*nics, arrays.memory_of(rank)):
            wires = arrays.steps(arrays.node_of(rank), (target,))
            between = [int(arrays.wires["dst"][wire]) for wire in wires[:-1]]
            assert all(machine.nodes[node].kind == "switch" for node in between)
        for nic in nics:
            node = int(arrays.targets["node"][nic])
            back = arrays.steps(node, (int(arrays.rank_endpoint[rank]),))
            between = [int(arrays.wires["dst"][wire]) for wire in back[:-1]]
            assert all(machine.nodes[node].kind == "switch" for node in between)


@pytest.mark.parametrize("name", MACHINES)
def test_machine_is_sound(name: str) -> None:
    findings = check(topology.load(name))
    serious = [finding.what for finding in findings if finding.level != "info"]
    assert len(serious) == MACHINES[name].warnings, serious


@pytest.mark.parametrize("name", [name for name, machine in MACHINES.items() if machine.gpus])
def test_remote_store_takes_as_long_as_the_latency_split_says(name: str) -> None:
    machine = topology.load(name)
    arrays = arrays_of(machine)
    near = next(rank for rank in range(1, machine.num_ranks) if arrays.first_wires(0, rank))
    total = hop_latency_ps(arrays, 0, near) + int(arrays.endpoints["write_latency_ps"][0])
    direct = not any(node.name.startswith("nvswitch") for node in machine.nodes)
    assert (350_000 if direct else 450_000) <= total <= 600_000


@pytest.mark.parametrize("name", MACHINES)
def test_only_later_switches_reduce(name: str) -> None:
    machine = topology.load(name)
    types = {link.name for link in machine.links if "nvswitch0" in (link.a, link.b)}
    reducing = bool(types & {"nvlink4", "nvlink5", "nvlink6"})
    arrays = arrays_of(machine)
    assert len(arrays.unit_wires(0)) == (MACHINES[name].links_of(0) if reducing else 0)
    switches = sum(node.name.startswith("nvswitch") for node in machine.nodes)
    assert len(arrays.units) == switches * reducing


@pytest.mark.parametrize(
    "name", ["dgx-1p", "dgx-1v", "a100x4-mesh", "polaris", "gh200x4-mesh", "mi300x"]
)
def test_rings_follow_links(name: str) -> None:
    """Every link carries one ring in each direction, as rings are pinned to links."""
    machine = topology.load(name)
    load: Counter[tuple[int, int]] = Counter()
    assert machine.ring_orders is not None
    for ring in machine.ring_orders:
        for a, b in zip(ring, (*ring[1:], ring[0]), strict=True):
            load[a, b] += 1
    links = adjacency(machine)
    for (a, b), rings in load.items():
        assert links.get((f"gpu{min(a, b)}", f"gpu{max(a, b)}"), 0) == rings
    assert sum(load.values()) == 2 * sum(links.values()), "every link is used in both directions"
    assert machine.num_channels("ring") % len(machine.ring_orders) == 0


def limit_GBps(machine: Fabric, payload: int, kinds: tuple[int, ...]) -> float:
    """Payload rate of a GPU that sends and receives one packet of each of `kinds` per payload."""
    form = next(iter(machine.formats.values()))
    wire = 0.0
    for kind in kinds:
        data = payload if kind == kinds[-1] else 0
        wire += (data + form.header_bytes[kind]) * form.service_1024[kind] / 1024
        wire += form.control_256[kind] / 256
    return payload / wire * peer_links(machine, "gpu0") * machine.links[0].rate.bytes_per_s / 1e9


@pytest.mark.parametrize(
    ("name", "kinds", "expected_GBps"),
    [
        ("dgx-1p", (0,), 67.4),  # 128/(128+16+8) x 80
        ("dgx-1v", (0,), 130.2),  # 6 x 21.7, TACCL's fit of one V100 link
        ("dgx-a100", (1, 2), 231.6),  # 8 GiB ring all-reduce, Azure ND A100 v4
        ("dgx-h100", (0,), 370.4),  # 128/((128+16) x 1.066 + 2) x 450
        ("hgx-h800", (0,), 164.6),  # 160 of 200 GB/s (DeepSeek-V3)
        ("hgx-b200", (0,), 720.0),  # 128/(128+16+16) x 900
    ],
)
def test_packet_overhead_gives_the_known_ring_limit(
    name: str, kinds: tuple[int, ...], expected_GBps: float
) -> None:
    assert limit_GBps(topology.load(name), 128, kinds) == pytest.approx(expected_GBps, rel=0.001)


@pytest.mark.parametrize(
    ("name", "n", "measured_GBps"),
    [
        ("dgx-h100", 8, 273.6),  # Azure ND H100 v5
        ("dgx-h100", 4, 251.0),  # NVIDIA/nccl thread 1455
        ("dgx-h100", 2, 207.0),
    ],
)
def test_multicast_factor_gives_the_measured_nvls_rate(
    name: str, n: int, measured_GBps: float
) -> None:
    assert nvls_limit_GBps(name, n) == pytest.approx(measured_GBps, rel=0.025)


def test_links_do_not_bound_nvls_on_eight_b200() -> None:
    """CTAs bound the 474 GB/s of NVIDIA/nccl thread 1807."""
    assert nvls_limit_GBps("hgx-b200", 8) == pytest.approx(
        2 * nvls_limit_GBps("dgx-h100", 8), rel=0.01
    )
    assert nvls_limit_GBps("hgx-b200", 8) > 1.1 * 474.0


def nvls_limit_GBps(name: str, n: int) -> float:
    form = next(iter(topology.load(name).formats.values()))
    factor = form.service_1024[3] / 1024
    acks = form.control_256[3] / 256 / 16
    up = factor * (9 + 1 / n + 9 / n) + acks  # flits per 128 B: data, requests, multicast, acks
    down = factor * (1 + 9 / n + 9) + acks / n
    rate = 450 if name == "dgx-h100" else 900
    return 8 / max(up, down) * rate


def test_every_figure_has_a_source() -> None:
    tables = [CHIPS, SWITCHES, FORMATS, LINKS, NICS, RATE_CONTROLS, *ARCHITECTURES.values()]
    for table in tables:
        for name, preset in table.items():
            for key, figure in preset.items():
                assert figure.mark in MARKS, (name, key)
                assert len(figure.source) > 8, (name, key)


@pytest.mark.parametrize("name", MACHINES)
def test_every_part_of_a_machine_has_a_source(name: str) -> None:
    sources = topology.load(name).sources
    assert {"pcie", "channels", "network"} <= set(sources)


@pytest.mark.parametrize("name", MACHINES)
def test_description_names_figures_with_their_sources(name: str) -> None:
    machine = topology.load(name)
    text = describe(machine)
    chip = machine.nodes[0].endpoint
    assert chip is not None
    assert f"chip {chip.chip}: memory_rate" in text
    assert "(published: " in text
    assert "(calibrated: " in text
    assert max(map(len, describe(machine, sources=False).splitlines())) < 240


def test_an_unknown_gpu_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="no GPU is called 'h100'; did you mean 'h100-sxm5'"):
        hardware.gpu("h100")
    with pytest.raises(InputError, match="no GPU is called 'h100-sxm'; did you mean 'h100-sxm5'"):
        hardware.gpu("h100-sxm")
