"""Topology files with what is around the GPUs: adapters, memory, cables, thresholds; and wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim.base.errors import ClusimError, TopologyError
from clusim.hardware import CHIPS, LINKS, NICS, SWITCHES
from clusim.topology import check, loads, to_yaml
from clusim.topology.schema import (
    ChipSpec,
    FormatSpec,
    LinkTypeSpec,
    NicSpec,
    RateControlSpec,
    SwitchSpec,
)
from support.covering import examples

GOOD = """\
name: small
nodes:
  gpu0..1: {kind: gpu, chip: h100-sxm5}
  sw: {kind: switch, latency: 100ns}
links:
  - {from: gpu0..1, to: sw, type: nvlink4}
"""

MACHINE = """\
name: machine
gdr_level: phb
p2p_level: sys
nics:
  slow: {base: cx5-roce100, latency: 1us, eager: 4KiB, rendezvous: 2us, ack: 3us, progress: 700ns,
    rate_control: {additive: 80 Mb/s}, mtu: 1024, adaptive: true}
  plain: {base: slow, rate_control: none, gpudirect: false, flush: 0}
switches:
  socket: {base: xeon-icx, latency: 99ns, peer_payload: 32B, thread: 1us, look: 20ns}
  tree: {base: quantum, reduction_slots: 7, buffer: 1MiB}
formats:
  slot: {base: pcie-gen4, limit: {write: 256B}}
link_types:
  cable: {base: roce-100, length: 30 m, medium: copper, pfc: {xoff: 128KiB, xon: 64KiB}}
  quiet: {base: cable, pfc: none, ecn: none}
  riser: {base: pcie-gen4-x8, format: slot, weight: 9}
nodes:
  gpu0..1: {kind: gpu, chip: a100-pcie-40gb}
  cpu: {kind: switch, switch: socket}
  ram: {kind: memory, chip: ddr4-3200x8}
  nic0: {kind: nic, nic: slow, latency: 2us}
  nic1: {kind: nic, nic: plain, tier: edge}
  top: {kind: switch, switch: tree, tier: leaf}
links:
  - {from: gpu0..1, to: cpu, type: riser}
  - {from: nic0..1, to: cpu, type: pcie-gen4-x16, weight: 2}
  - {from: cpu, to: ram, type: dram-ddr4-3200x8}
  - {from: nic0, to: top, type: cable}
  - {from: nic1, to: top, type: quiet, ecn: {min: 1KB, max: 9KB, probability: 0.5}}
faults: ["link nic0-top down at 2ms"]
"""


def test_machine_with_everything_around_the_gpus() -> None:
    net = loads(MACHINE)
    assert net.ranks == ("gpu0", "gpu1")
    assert (net.gdr_level, net.p2p_level) == ("phb", "sys")
    assert net.faults == ("link nic0-top down at 2ms",)
    nodes = {node.name: node for node in net.nodes}
    assert (nodes["cpu"].peer_payload_bytes, nodes["cpu"].latency_ps) == (32, 99_000)
    host = nodes["cpu"].host
    assert host is not None
    assert (host.thread_ps, host.thread_after_ps, host.look_ps) == (1_000_000, 500_000, 20_000)
    assert (nodes["cpu"].tier, nodes["ram"].kind, nodes["ram"].tier) == ("root", "memory", "memory")
    top = nodes["top"]
    assert top.unit is not None
    assert (top.unit.slots, top.buffer_bytes, top.ports, top.tier) == (7, 1 << 20, 40, "leaf")
    slow, plain = nodes["nic0"].nic, nodes["nic1"].nic
    assert slow is not None
    assert plain is not None
    assert (nodes["nic0"].latency_ps, nodes["nic1"].latency_ps) == (2_000_000, 1_000_000)
    assert (slow.mtu_bytes, slow.adaptive, slow.gpudirect) == (1024, True, True)
    assert (slow.eager_bytes, slow.rendezvous_ps, slow.ack_ps) == (4096, 2_000_000, 3_000_000)
    assert slow.progress_ps == 700_000
    assert slow.rate_control is not None
    assert slow.rate_control.additive_Bps == 10e6
    assert slow.rate_control.hyper_Bps == pytest.approx(1.5625e6), "the base's"
    assert (plain.rate_control, plain.gpudirect, plain.flush_ps) == (None, False, 0)
    links = {(link.a, link.b): link for link in net.links}
    riser = links["gpu0", "cpu"]
    assert (riser.weight, riser.cls, riser.format) == (9, "pcie", "slot")
    assert links["nic0", "cpu"].weight == 2
    assert net.formats["slot"].limit_bytes[:3] == (256, 512, 128)
    cable, quiet = links["nic0", "top"], links["nic1", "top"]
    assert (cable.xoff_bytes, cable.xon_bytes) == (131_072, 65_536)
    assert cable.latency_ps == 150_000 + 30 * 4_400
    assert (cable.ecn_min_bytes, cable.ecn_max_bytes) == (100_000, 400_000)
    assert (quiet.xoff_bytes, quiet.xon_bytes) == (0, 0)
    assert (quiet.ecn_min_bytes, quiet.ecn_max_bytes, quiet.ecn_probability) == (1000, 9000, 0.5)
    assert loads(to_yaml(net)) == net


def test_blocks_join_consecutive_nodes() -> None:
    text = "nodes: {a0..5: {kind: host}, s0..1: {kind: switch}, t: {kind: switch}}\nlinks:\n"
    text += "  - {from: a0..5, to: s0..1, pair: blocks, type: ib-ndr, count: [1, 2]}\n"
    text += "  - {from: t, to: s0..1, pair: blocks, type: ib-ndr}\n"
    found = [(link.a, link.b, link.count) for link in loads(text).links]
    assert found[:6] == [(f"a{i}", f"s{i // 3}", 1 + i // 3) for i in range(6)]
    assert found[6:] == [("t", "s0", 1), ("t", "s1", 1)]


def test_pause_without_resume_resumes_at_half() -> None:
    text = GOOD.replace("type: nvlink4", "type: nvlink4, pfc: {xoff: 16KiB}")
    assert {link.xon_bytes for link in loads(text).links} == {8192}


def replaced(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


GOLDEN = [
    (
        replaced("  sw:", "  n: {kind: nic, nic: cx9-ndr}\n  sw:"),
        "4:23: nodes.n.nic: unknown nic 'cx9-ndr'; did you mean 'cx9-xdr'?",
    ),
    (
        replaced("  sw:", "  n: {kind: nic}\n  sw:"),
        "4:6: nodes.n: 'nic' is missing; the presets are bf3, bf3-ndr",
    ),
    (
        replaced("  sw:", "  n: {kind: nic, nic: cx7-ndr, chip: gb200}\n  sw:"),
        "4:32: nodes.n.chip: unknown key chip of a nic; omit it",
    ),
    (
        replaced("  sw:", "  m: {kind: memory}\n  sw:"),
        "4:6: nodes.m: 'chip' is missing; the presets are ddr3-1866x4",
    ),
    (
        replaced("  sw:", "  m: {kind: memory, chip: ddr4-3200x8, relay: true}\n  sw:"),
        "4:40: nodes.m.relay: unknown key relay of a memory; omit it",
    ),
    (
        replaced("kind: switch", "kind: switch, switch: pex8809"),
        "4:30: nodes.sw.switch: unknown switch 'pex8809'; did you mean 'pex88096'?",
    ),
    (
        replaced("kind: switch", "kind: switch, zone: -2"),
        "4:28: nodes.sw.zone: -2: must be greater than or equal to -1",
    ),
    (
        replaced("type: nvlink4", "type: pcie-gen7-x16"),
        "6:35: links[0].type: unknown link type 'pcie-gen7-x16'; did you mean 'pcie-gen",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, length: 3 ft"),
        "6:52: links[0].length: '3 ft': not a length; write metres, for example 30 or '30 m'",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, length: 101 km"),
        "6:52: links[0].length: '101 km': a cable is 0 to 100 km long",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, medium: fiber"),
        "6:52: links[0].medium: 'fiber' is not known; did you mean 'fibre'?",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, weight: 65"),
        "6:52: links[0].weight: 65: must be less than or equal to 64",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, pair: block"),
        "6:50: links[0].pair: 'block' is not known; did you mean 'blocks'?",
    ),
    (
        "nodes: {a0..2: {kind: host}, b0..1: {kind: host}}\n"
        "links: [{from: a0..2, to: b0..1, type: ib-ndr, pair: blocks}]\n",
        "links[0].pair: blocks of 3 and 2 nodes; one must be a multiple of the other",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, pfc: {xoff: 1KiB, xonn: 1}"),
        "links[0].pfc.xonn: unknown key; did you mean 'xon'?",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, pfc: {xon: 1KiB}"),
        "links[0].pfc: 'xoff' is missing; set the bytes at which it pauses",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, pfc: {xoff: 4KiB, xon: 8KiB}"),
        "links[0].pfc.xon: resumes at 8192 B; must be below xoff, 4096 B",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, pfc: {xoff: 64KiB}"),
        "links[0].pfc.xoff: pauses at 65536 B; must leave room in the buffer of 32768 B",
    ),
    (
        GOOD + "link_types: {x: {base: roce-400, pfc: {xoff: 1GiB}, buffer: 1MiB}}\n",
        "link_types.x.pfc.xoff: pauses at 1073741824 B; must leave room in the buffer",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, ecn: {min: 4KiB, max: 1KiB}"),
        "links[0].ecn.min: marks from 4096 B; must be at most max, 1024 B",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, ecn: {max: 1KiB, probability: 2}"),
        "links[0].ecn.probability: 2: must be less than or equal to 1",
    ),
    (
        GOOD + "nics: {n: {mtu: 4Kb}}\n",
        "7:17: nics.n.mtu: '4Kb': 'Kb' are bits, not bytes; write 4KB",
    ),
    (
        GOOD + "nics: {n: {rate_control: dcqn}}\n",
        "7:26: nics.n.rate_control: unknown rate control 'dcqn'; did you mean 'dcqcn'?",
    ),
    (
        GOOD + "nics: {n: {rate_control: {alfa_timer: 1us}}}\n",
        "nics.n.rate_control.alfa_timer: unknown key; did you mean 'alpha_timer'?",
    ),
    (
        GOOD + "nics: {n: {base: cx5}}\n",
        "7:18: nics.n.base: unknown nic 'cx5'; did you mean",
    ),
    (
        GOOD + "switches: {s: {reduction_slots: 0}}\n",
        "7:33: switches.s.reduction_slots: 0: must be greater than or equal to 1",
    ),
    (
        GOOD + "switches: {s: {peer_payload: 2MiB}}\n",
        "switches.s.peer_payload: '2MiB': headers and packets are at most 1 MiB",
    ),
    (
        GOOD + "switches: {s: {look: 1us}}\n",
        "switches.s.look: '1us': a look at a line lasts at most 500ns",
    ),
    (
        GOOD + "formats: {f: {limit: {fetsch: 128B}}}\n",
        "f.limit.fetsch: 'fetsch' is not known; did you mean 'fetch'?",
    ),
    (
        GOOD + "formats: {f: {limit: {write: 0B}}}\n",
        "formats.f.limit.write: '0B': must be greater than or equal to 1",
    ),
    (GOOD + "faults: [3]\n", "7:10: faults[0]: 3: must be a valid string"),
    (
        GOOD.replace("to: sw", "to: [sw]"),
        "links[0].to: a list: must be a node or a range of nodes, such as gpu1..3",
    ),
    (
        GOOD + "p2p_level: pxx\n",
        "7:12: p2p_level: 'pxx' is not known; did you mean 'pxb'?",
    ),
    (
        GOOD + "network: {kind: rial}\n",
        "7:17: network.kind: 'rial' is not known; did you mean 'rail'?",
    ),
]


@pytest.mark.parametrize(("text", "message"), GOLDEN, ids=[message[:40] for _, message in GOLDEN])
def test_errors_say_where_and_what(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as error:
        loads(text, "net.yaml")
    first = str(error.value).splitlines()[0]
    assert first.startswith("net.yaml:")
    assert message in first


VALUES = [
    "0",
    "-1",
    "none",
    "1GiB",
    "99 GB/s",
    "{}",
    "[]",
    "true",
    "0.5",
    "1e9",
    "~",
    "5 km",
    "roce-400",
]


@settings(max_examples=examples(40))
@given(st.data())
def test_any_value_anywhere_is_taken_or_refused(data: st.DataObject) -> None:
    """Put another value behind some key: never a traceback, and what is taken survives saving."""
    lines = MACHINE.splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    parts = lines[number].split(": ")
    where = data.draw(st.integers(0, len(parts) - 1))
    if where:
        rest = parts[where].partition(",")[1:]
        parts[where] = data.draw(st.sampled_from(VALUES)) + "".join(rest)
    lines[number] = ": ".join(parts)
    message = outcome("\n".join(lines))
    assert all(line.startswith("net.yaml:") for line in message.splitlines())


def outcome(text: str) -> str:
    """Load a text; return the words of the refusal, or that it reads back the same."""
    try:
        net = loads(text, "net.yaml")
    except ClusimError as error:
        return str(error)
    return "net.yaml: accepted" if loads(to_yaml(net)) == net else "another fabric when read back"


def test_the_machine_in_the_documentation_works() -> None:
    page = Path(__file__).parents[2] / "docs" / "topology-format.md"
    (block,) = re.findall(r"```yml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    machine = loads(block)
    assert machine.num_ranks == 4
    assert [finding.what for finding in check(machine) if finding.level != "info"] == []


def test_every_key_and_name_of_the_documentation_exists() -> None:
    page = (Path(__file__).parents[2] / "docs" / "topology-format.md").read_text(encoding="utf-8")
    for spec in (ChipSpec, SwitchSpec, NicSpec, RateControlSpec, FormatSpec, LinkTypeSpec):
        for name, info in spec.model_fields.items():
            assert f"`{info.alias or name}" in page, name
    names = page[page.index("## What there is") : page.index("Errors list the existing names")]
    known = {*LINKS, *SWITCHES, *NICS, *CHIPS}
    for name in re.findall(r"`([a-z][a-z0-9.-]+)`", names):
        assert name in known or name == "dram-", name
