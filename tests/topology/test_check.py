"""What the check finds, in the words a person reads."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from clusim import topology
from clusim.base.errors import TopologyError
from clusim.topology import check, loads
from clusim.topology.arrays import arrays_of
from clusim.topology.check_flow import (
    bisection_Bps,
    max_flow,
    network_bisection_Bps,
    never_tapers,
)
from support.work import calls_of

BASE = """\
nodes:
  gpu0..3: {kind: gpu, chip: h100-sxm5}
  sw: {kind: switch, switch: nvswitch3}
  pcie0..1: {kind: switch, switch: pex89144}
  nic0..1: {kind: nic, nic: cx7-ndr}
  cpu: {kind: switch, switch: xeon-spr}
  mem: {kind: memory, chip: ddr5-4800x8}
links:
  - {from: gpu0..3, to: sw, count: 18, type: nvlink4}
  - {from: gpu0..3, to: pcie0..1, pair: blocks, type: pcie-gen5-x16-gpu}
  - {from: nic0..1, to: pcie0..1, pair: zip, type: pcie-gen5-x16}
  - {from: pcie0..1, to: cpu, type: pcie-gen5-x16}
  - {from: cpu, to: mem, type: dram-ddr5-4800x8}
"""


def found(text: str, level: str) -> list[str]:
    return [finding.what for finding in check(loads(text)) if finding.level == level]


def changed(old: str, new: str) -> str:
    assert BASE.count(old) == 1
    return BASE.replace(old, new)


def test_nothing_to_say_about_a_sound_machine() -> None:
    text = BASE.replace("switch: nvswitch3}", "switch: big}")
    text += "switches: {big: {base: nvswitch3, ports: 72}}\n"
    assert found(text, "warning") == []
    infos = found(text, "info")
    assert "every endpoint has 450 GB/s of nvlink, 62.85 GB/s of pcie in each direction" in infos
    assert "routes cannot deadlock: buffer dependencies are acyclic" in infos
    assert "bisection 900 GB/s one way, 100% of the rate of half of the endpoints" in infos
    assert "PCIe switches (2): 188.5 GB/s below and 62.85 GB/s towards the host, 3:1" in infos


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "{from: gpu0..3, to: sw, count: 18, type: nvlink4}",
            "{from: gpu0..3, to: sw, count: 19, type: nvlink4}",
            "gpu0, gpu1, gpu2, gpu3: 19 links, but h100-sxm5 has 18",
        ),
        (
            "  - {from: gpu0..3, to: sw, count: 18, type: nvlink4}",
            "  - {from: gpu0..2, to: sw, count: 18, type: nvlink4}\n"
            "  - {from: gpu3, to: sw, count: 16, type: nvlink4}",
            "asymmetric: gpu3 has 400 GB/s of nvlink, gpu0 has 450 GB/s",
        ),
        (
            "type: pcie-gen5-x16-gpu",
            "type: pcie-gen6-x16-gpu",
            "gpu0, gpu1, gpu2, gpu3: PCIe of 121 GB/s, but h100-sxm5 has 62.85 GB/s",
        ),
        (
            "  - {from: gpu0..3, to: pcie0..1, pair: blocks, type: pcie-gen5-x16-gpu}",
            "  - {from: gpu0..1, to: pcie0, type: pcie-gen5-x16-gpu}\n"
            "  - {from: gpu2, to: pcie1, type: pcie-gen5-x8-gpu}\n"
            "  - {from: gpu3, to: pcie1, type: pcie-gen5-x16-gpu}",
            "asymmetric: gpu2 has 31.42 GB/s of pcie, gpu0 has 62.85 GB/s",
        ),
        (
            "count: 18, type: nvlink4}",
            "count: 18, type: nvlink4}\n  - {from: gpu0, to: sw, type: nvlink5}",
            "gpu0-sw: parallel links differ: 25 GB/s, 50 GB/s",
        ),
        (
            "switch: nvswitch3}",
            "switch: nvswitch3, latency: 1us}",
            "sw: 72 links on 64 ports",
        ),
        (
            "  - {from: cpu, to: mem, type: dram-ddr5-4800x8}\n",
            "  - {from: cpu, to: mem, type: dram-ddr5-4800x8, latency: 5us}\n",
            "cpu-mem: credits for 128 KiB cover 4% of a round trip of 10 us at 307.2 GB/s",
        ),
    ],
)
def test_unusual(old: str, new: str, what: str) -> None:
    assert what in found(changed(old, new), "warning")


def test_a_card_without_its_bridge_is_usual() -> None:
    machine = topology.load("a100-pcie-x8")
    assert machine.nodes[0].endpoint is not None
    assert machine.nodes[0].endpoint.links == 12
    assert not [f for f in check(machine) if "links, but" in f.what]


def test_no_host_memory() -> None:
    text = BASE.replace("  mem: {kind: memory, chip: ddr5-4800x8}\n", "")
    text = text.replace("  - {from: cpu, to: mem, type: dram-ddr5-4800x8}\n", "")
    assert any("no host memory" in what for what in found(text, "warning"))


NETWORK = """\
nodes:
  a0..1: {kind: host, zone: 0}
  b0..1: {kind: host, zone: 1}
  na0..1: {kind: nic, nic: cx7-roce400, zone: 0}
  nb0..1: {kind: nic, nic: cx7-roce400, zone: 1}
  leaf0..1: {kind: switch, switch: spectrum4, tier: leaf, zone: -1}
  spine: {kind: switch, switch: spectrum4, tier: spine, zone: -1}
links:
  - {from: a0..1, to: na0..1, pair: zip, type: pcie-gen5-x16}
  - {from: b0..1, to: nb0..1, pair: zip, type: pcie-gen5-x16}
  - {from: na0..1, to: leaf0, type: roce-400, length: 20 m}
  - {from: nb0..1, to: leaf1, type: roce-400, length: 20 m}
  - {from: leaf0..1, to: spine, type: roce-400, length: 50 m}
"""


def test_oversubscription_and_bisection_of_a_network() -> None:
    infos = found(NETWORK, "info")
    assert "leaf switches (2): 100 GB/s down, 50 GB/s up, 2:1 oversubscribed" in infos
    assert "spine switches (1): 100 GB/s down" in infos
    half = "bisection of the network 50 GB/s one way, 50% of the rate of half of the nodes"
    assert half in infos
    net = loads(NETWORK)
    assert network_bisection_Bps(arrays_of(net)) == pytest.approx(50e9)
    wider = loads(NETWORK.replace("spine, type: roce-400", "spine, count: 2, type: roce-400"))
    assert network_bisection_Bps(arrays_of(wider)) == pytest.approx(100e9)
    assert [f.what for f in check(net) if f.level == "warning"] == []


def test_the_maximum_flow_is_that_of_the_narrowest_cut() -> None:
    arrays = arrays_of(loads(NETWORK))
    at = {node.name: index for index, node in enumerate(arrays.fabric.nodes)}
    leaves = [at["leaf0"], at["leaf1"]]
    assert max_flow(arrays, leaves[:1], leaves[1:]) == pytest.approx(50e9)  # one link up, one down
    nics = [index for name, index in at.items() if name.startswith("na")]
    assert max_flow(arrays, nics, leaves[1:]) == pytest.approx(50e9)  # two NICs share it
    nothing = np.zeros(len(arrays.wires), bool)
    assert max_flow(arrays, leaves[:1], leaves[1:], only=nothing) == 0
    assert max_flow(arrays, leaves, leaves[1:]) == float("inf")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "length: 50 m",
            "length: 2 km",
            "leaf0-spine, leaf1-spine: pause headroom 80 KiB, but a round trip of 20.3 us at 50 GB/s and two packets"
            " need",
        ),
        (
            "length: 50 m",
            "length: 50 m, ecn: {min: 2MiB, max: 3MiB}",
            "leaf0-spine, leaf1-spine: pauses at 800 KiB, before it marks packets",
        ),
        (
            "length: 50 m",
            "length: 50 m, buffer: 128MiB",
            "spine: buffers of 256 MiB, but the switch has 160 MiB",
        ),
        (
            "na0..1, pair: zip, type: pcie-gen5-x16",
            "na0..1, pair: zip, type: pcie-gen4-x16",
            "na0, na1: 50 GB/s of network over 31.42 GB/s of PCIe",
        ),
        (
            "to: spine, type: roce-400, length: 50 m",
            "to: spine, type: ib-ndr, length: 5 km",
            "leaf0-spine, leaf1-spine: credits for 128 KiB cover 5% of a round trip of 50.12 us at 50 GB/s",
        ),
    ],
)
def test_unusual_networks(old: str, new: str, what: str) -> None:
    assert NETWORK.count(old) == 1
    warnings = found(NETWORK.replace(old, new), "warning")
    assert any(warning.startswith(what) for warning in warnings), warnings


def test_machine_without_adapter() -> None:
    text = NETWORK.replace("  nb0..1: {kind: nic, nic: cx7-roce400, zone: 1}\n", "")
    text = text.replace("  - {from: b0..1, to: nb0..1, pair: zip, type: pcie-gen5-x16}\n", "")
    text = text.replace("  - {from: nb0..1, to: leaf1, type: roce-400, length: 20 m}\n", "")
    text += "  - {from: b0, to: b1, type: nvlink4}\n"
    with pytest.raises(TopologyError, match="disconnected: no route"):
        loads(text)


def test_host_links_do_not_widen_the_bisection_of_gpus() -> None:
    with_host, without = topology.load("dgx-1v"), 6 * 25.78125e9
    assert bisection_Bps(arrays_of(with_host)) == pytest.approx(without)
    assert bisection_Bps(arrays_of(topology.load("rtx3090x8-edr56"))) == pytest.approx(31.42336e9)


def test_a_thousand_gpus() -> None:
    machine = topology.load("superpod-h100:nodes=128")
    assert machine.num_ranks == 1024
    infos = [finding.what for finding in check(machine)]
    assert "leaf switches (32): 1.6 TB/s down, 1.6 TB/s up, not oversubscribed" in infos
    assert any(
        what.startswith("bisection of the network 25.6 TB/s one way, 100%") for what in infos
    )


def test_the_work_of_a_check_grows_as_the_cluster_does() -> None:
    machines = [topology.load(f"superpod-h100:nodes={nodes}") for nodes in (32, 64)]
    for machine in machines:
        arrays_of(machine)
    half, whole = (calls_of(partial(check, machine)) for machine in machines)
    assert 1.5 < whole / half < 2.2


@pytest.mark.parametrize(
    ("network", "full"),
    [
        ("single:node=alps-gh200,nodes=4", True),
        ("rail:node=dgx-a100,nodes=4,unit=2", True),
        ("rail:node=dgx-a100,nodes=4,unit=2,oversubscription=2", False),
        ("rail:node=dgx-a100,nodes=2,unit=2,spines=0", True),
        ("dragonfly:node=alps-gh200,nodes=12", False),
        ("torus:node=dgx-a100,nodes=4", False),
        ("dgx-h100", True),
    ],
)
def test_networks_taper_where_less_leads_up_than_down_or_anything_across(
    network: str, full: bool
) -> None:
    assert never_tapers(topology.load(network)) is full


HOSTS = """
name: hosts
nodes:
  gpu0: {{kind: gpu, chip: h100-sxm5{zone0}}}
  nic0: {{kind: nic, nic: cx7-roce400{zone0}}}
  gpu1: {{kind: gpu, chip: h100-sxm5{zone1}}}
  nic1: {{kind: nic, nic: cx7-roce400{zone1}}}
  leaf: {{kind: switch, switch: spectrum4{network}}}
links:
  - {{from: gpu0..1, to: nic0..1, pair: zip, type: pcie-gen5-x16-gpu}}
  - {{from: nic0..1, to: leaf, type: roce-400}}
"""


def test_nics_between_gpus_of_one_node_are_named_as_they_have_no_rate_control() -> None:
    one = HOSTS.format(zone0="", zone1="", network="")
    zones = HOSTS.format(zone0=", zone: 0", zone1=", zone: 1", network=", zone: -1")
    words = "on a network inside one node, without rate control"
    assert [line for line in found(one, "warning") if words in line]
    assert not [line for line in found(zones, "warning") if words in line]
