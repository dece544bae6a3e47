"""Topology files: complete custom ones work, wrong ones say where and what, whatever the bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim import topology
from clusim.base import resources
from clusim.base.errors import ClusimError, TopologyError
from clusim.base.units import parse_rate
from clusim.topology import loads
from clusim.topology.arrays import arrays_of
from clusim.topology.schema import Topology
from support.covering import examples

GOOD = """\
name: small
nodes:
  gpu0..1: {kind: gpu, chip: h100-sxm5}
  sw: {kind: switch, latency: 100ns}
links:
  - {from: gpu0..1, to: sw, type: nvlink4}
"""

CUSTOM = """\
name: custom
description: everything defined here
sources: {rates: measured on our machine}
p2p: write
window: 32KiB
vcs: 3
channels: {default: 4, ring: 2}
rings: [[0, 1, 2, 3], [3, 2, 1, 0]]
chips:
  ours:
    {architecture: hopper, sms: 10, cta_slots: 12, memory_rate: 1 TB/s, memory_efficiency: 0.5, write_latency: 90ns,
     read_latency: 350ns, response_latency: 100ns, memory_per_delivered: 1, memory_per_read: 1, memory_per_injected: 1}
  faster: {base: ours, sms: 20, slowdown: 2}
switches:
  crossbar: {ports: 8, latency: 200ns, reduction_rate: 1 TB/s, reduction_capacity: 8KiB}
formats:
  cells: {flit: 32B, header: {default: 8B, write: 10B}, control: {write: 1.5}, payload: {sm: 64B}}
link_types:
  cable: {rate: 3 x 4 GB/s, latency: 1us, buffer: 16KiB, error_rate: 0.001, replay: 2us, class: copper}
protocols:
  simple: {fixed: 2us, throughput: {send: 7 GB/s}}
  mine: {expand: 150, throughput: {default: 3 GB/s}}
nodes:
  g0..1: {kind: gpu, chip: ours}
  g2..3: {kind: gpu, chip: faster, tier: fast}
  hub: {kind: switch, switch: crossbar, store_and_forward: true}
links:
  - {from: g0..2, to: hub, type: cable, count: 2}
  - {from: g3, to: hub, type: cable, rate: 1 GB/s, dim: 2, dateline: forward, weight: 3}
"""


def test_custom_topology_without_presets() -> None:
    net = loads(CUSTOM)
    assert net.ranks == ("g0", "g1", "g2", "g3")
    assert (net.p2p, net.window_bytes, net.num_vcs) == ("write", 32768, 3)
    assert (net.num_channels("ring"), net.num_channels("tree")) == (2, 4)
    assert net.ring_orders == ((0, 1, 2, 3), (3, 2, 1, 0))
    one, fast = net.nodes[0].endpoint, net.nodes[2].endpoint
    assert one is not None
    assert fast is not None
    assert (one.sms, one.cta_slots, one.mem_Bps, one.mem_efficiency) == (10, 12, 1e12, 0.5)
    assert (fast.sms, fast.cta_slots, fast.slow_1024, fast.chip) == (20, 12, 2048, "faster")
    assert (one.write_latency_ps, one.read_latency_ps) == (90_000, 350_000)
    hub = net.nodes[4]
    assert hub.unit is not None
    assert (hub.latency_ps, hub.store_and_forward, hub.unit.capacity_bytes, hub.ports) == (
        200_000,
        True,
        8192,
        8,
    )
    form = net.formats["cells"]
    assert (form.flit_bytes, form.header_bytes[:2], form.control_256[0]) == (32, (10, 8), 384)
    assert (form.payload_bytes["sm"], form.header_wire_bytes()) == (64, 32)
    link = net.links[0]
    assert (link.rate, link.latency_ps, link.buffer_bytes) == (
        parse_rate("12 GB/s"),
        1_000_000,
        16384,
    )
    assert (link.error_rate, link.replay_ps, link.cls, link.count) == (
        0.001,
        2_000_000,
        "copper",
        2,
    )
    last = net.links[-1]
    assert (last.rate, last.dim, last.dateline, last.weight) == (
        parse_rate("1 GB/s"),
        2,
        (True, False),
        3,
    )
    simple, mine = net.protocols["simple"], net.protocols["mine"]
    assert (simple.fixed_ps, simple.rate_Bps("send"), simple.rate_Bps("recvCopySend")) == (
        2_000_000,
        7e9,
        24.5e9,
    )
    assert (mine.expand_120, mine.rate_Bps("anything")) == (150, 3e9)
    assert net.sources["rates"] == "measured on our machine"
    assert net.source_text == CUSTOM


def test_step_bytes_are_those_of_nccl() -> None:
    protocols = topology.load("dgx-h100").protocols
    assert protocols["simple"].step_bytes == 512 << 10
    assert protocols["ll"].step_bytes == 32 << 10
    assert protocols["ll128"].step_bytes == 576_000


def replaced(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


GOLDEN = [
    (
        replaced("latency", "latenci"),
        "4:22: nodes.sw.latenci: unknown key; did you mean 'latency'?",
    ),
    (
        GOOD + "superpod: My Pod\n",
        "7:11: superpod: 'My Pod': must be small letters, digits and '-', such as superpod-h100",
    ),
    (GOOD + "logs: {network: ib}\n", "7:17: logs.network: 'ib' is not known; did you mean 'IB'?"),
    (GOOD + "logs: {bus: [1]}\n", "7:8: logs.bus: unknown key; did you mean 'buses'?"),
    (
        GOOD + "logs: {buses: [1, 300]}\n",
        "7:19: logs.buses[1]: 300: must be less than or equal to 255",
    ),
    (
        GOOD + "logs: {buses: [1, 1]}\n",
        "7:15: logs.buses: 1 different numbers for 2 GPUs; list the bus of each, or no bus",
    ),
    (GOOD + "gpu: 4\n", "7:1: gpu: unknown key; did you mean 'nodes'?"),
    (GOOD + "chanels: {ring: 3}\n", "7:1: chanels: unknown key; did you mean 'channels'?"),
    (
        replaced("100ns", "100nss"),
        "4:31: nodes.sw.latency: '100nss': unknown unit 'nss' of time; use ps, ns, us, ms or s",
    ),
    (
        replaced("100ns", "100"),
        "4:31: nodes.sw.latency: '100': a time needs a unit; write 100ns, 100us or 100ms",
    ),
    (replaced("100ns", "0ps"), "4:31: nodes.sw.latency: '0ps': a latency is at least 1ps"),
    (GOOD + "name: y\n", "7:1: name: duplicate key; first given in line 1"),
    (
        replaced("  sw:", "  gpu1: {kind: switch}\n  sw:"),
        "4:3: nodes.gpu1: node 'gpu1' exists already; names are unique",
    ),
    (
        replaced("h100-sxm5", "h10-sxm5"),
        "3:30: nodes.gpu0..1.chip: unknown chip 'h10-sxm5'; did you mean 'h100-sxm5'?",
    ),
    (
        replaced("nvlink4", "nvlnk4"),
        "6:35: links[0].type: unknown link type 'nvlnk4'; did you mean 'nvlink4'?",
    ),
    (replaced("to: sw", "to: swi"), "6:25: links[0].to: unknown node 'swi'; did you mean 'sw'?"),
    (
        replaced("kind: switch", "kind: swich"),
        "4:14: nodes.sw.kind: 'swich' is not known; did you mean 'switch'?",
    ),
    (
        replaced("kind: switch, ", ""),
        "4:7: nodes.sw: 'kind' is missing; set kind: gpu, host, memory, switch or nic",
    ),
    (
        replaced(", chip: h100-sxm5", ""),
        "3:12: nodes.gpu0..1: 'chip' is missing; the presets are a100-sxm4-80gb",
    ),
    (
        replaced("to: sw", "to: gpu0"),
        "6:5: links[0]: links 'gpu0' to itself; name two different nodes",
    ),
    (
        replaced(", type: nvlink4", ""),
        "6:5: links[0]: 'rate' is missing; set it or a type, such as nvlink1",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, rate: 0 GB/s"),
        "6:50: links[0].rate: zero bandwidth; set a rate above 0",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, count: [1, 2]"),
        "6:51: links[0].count: 2 counts for 1 nodes in 'to'; write one or one each",
    ),
    (
        replaced("type: nvlink4", "type: nvlink4, count: true"),
        "6:51: links[0].count[0]: True: must be a valid integer",
    ),
    (
        replaced("type: nvlink4", "rate: 25 GB/s, latency: 1us"),
        "6:5: links[0]: 'format' is missing; set it or a type, such as nvlink1",
    ),
    (replaced("type: nvlink4", "type: nvlink4, pair: zip"), "links[0].pair: zip of 2 with 1 nodes"),
    (
        replaced("{kind: switch, latency: 100ns}", ""),
        "4:6: nodes.sw: nothing: must be a valid mapping",
    ),
    (
        replaced("latency: 100ns", "relay: true"),
        "4:22: nodes.sw.relay: unknown key relay of a switch; omit it",
    ),
    (
        GOOD + "architecture: hoper\n",
        "7:15: architecture: unknown architecture 'hoper'; did you mean 'hopper'?",
    ),
    (GOOD + "rings: [[0, 0]]\n", "7:9: rings[0]: must name every rank 0..1 once; has 2 entries"),
    (
        GOOD + "formats: {f: {header: {wrte: 16B}}}\n",
        "f.header.wrte: 'wrte' is not known; did you mean 'write'?",
    ),
    (
        GOOD + "link_types: {a: {base: b}, b: {base: a}}\n",
        "link_types.b.base: 'a' is based on itself; name another",
    ),
    (GOOD + "chips: {c: {sms: true}}\n", "7:18: chips.c.sms: True: must be a valid integer"),
    (
        GOOD + "chips: {c: {memory_efficiency: .nan}}\n",
        "chips.c.memory_efficiency: nan: must be a finite number",
    ),
    (GOOD + "on: no\n", "7:1: on: unknown key; there are name, description"),
    (
        replaced("  sw:", "  gpu7..8: {kind: gpu, chip: h200-sxm5}\n  sw:")
        + "  - {from: gpu7, to: gpu8, type: nvlink4}\n",
        "disconnected: no route gpu0 to gpu7, gpu0 to gpu8, gpu1 to gpu7, gpu1 to gpu8 and 4 more; add links",
    ),
    (
        replaced("  sw:", "  lonely: {kind: host}\n  sw:"),
        "lonely: without any link; connect or remove",
    ),
    (
        "nodes: {a: {kind: switch}, b: {kind: switch}}\n",
        "without GPU or host; add nodes of kind gpu or host",
    ),
    (
        "nodes: {gpu0..9999999: {kind: gpu, chip: gb200}}",
        "1:9: nodes.gpu0..9999999: more than 65536 nodes",
    ),
    ("nodes: {gpu9..0: {kind: gpu, chip: gb200}}", "1:9: nodes.gpu9..0: empty range 'gpu9..0'"),
    ("nodes: {a b: {kind: switch}}", "1:9: nodes.a b: not a node name; use letters"),
    ("- a\n- b\n", "1:1: must be a mapping with 'nodes' and 'links'"),
    ("", "1:1: empty file; must be a mapping with 'nodes' and 'links'"),
    ("a: [1,\n b: }", "2:5: not valid YAML: while parsing a flow node"),
    ("a:\n\t- b", "2:1: not valid YAML: while scanning for the next token"),
    (
        "a: !!python/object/apply:os.system [x]",
        "1:4: tag tag:yaml.org,2002:python/object/apply:os.system is not",
    ),
    ("a: &x [1, *x]", "1:11: unknown alias *x; define it with &x before"),
    (GOOD + "---\na: b\n", "7:1: second document; a topology file holds one"),
    ("? [a]\n: b\n", "1:3: a key must be a plain word"),
    ("a: " + "[" * 100_000, "1:36: nested deeper than 32 levels"),
    (GOOD + "b: " + "{c: [" * 800 + "}", "7:84: nested deeper than 32 levels"),
    (GOOD + "b: [1, " + "[" * 40 + "\n", "7:39: nested deeper than 32 levels"),
    ("a: \0", "1:1: not valid YAML: unacceptable character"),
]


@pytest.mark.parametrize(("text", "message"), GOLDEN, ids=[message[:40] for _, message in GOLDEN])
def test_errors_say_where_and_what(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as error:
        loads(text, "net.yaml")
    first = str(error.value).splitlines()[0]
    assert first.startswith("net.yaml:")
    assert message in first
    assert error.value.exit_code == 2


def test_all_errors_are_reported_in_the_order_of_the_text() -> None:
    text = GOOD.replace("100ns", "5").replace("kind: gpu", "kind: gpi") + "vcs: 99\n"
    with pytest.raises(TopologyError) as error:
        loads(text, "net.yaml")
    places = [line.split(": ")[0] for line in str(error.value).splitlines()]
    assert places == ["net.yaml:3:19", "net.yaml:4:31", "net.yaml:7:6"]


def test_aliases_and_yaml_1_2_scalars() -> None:
    text = GOOD.replace("{kind: gpu, chip: h100-sxm5}", "&gpu {kind: gpu, chip: h100-sxm5}")
    text = (
        text.replace("  sw:", "  gpu7: *gpu\n  sw:") + "  - {from: gpu7, to: sw, type: nvlink4}\n"
    )
    assert loads(text).num_ranks == 3
    assert loads(GOOD + "sources: {on: no, yes: off}\n").sources["on"] == "no"


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("name: small\n", ""), encoding="utf-8")
    assert topology.load(str(path)).name == "mine"
    assert topology.load(path).num_ranks == 2
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(TopologyError, match=r"mine\.yaml:1: not UTF-8 text"):
        topology.load(path)
    with pytest.raises(TopologyError, match="is a directory"):
        topology.load(f"{tmp_path}/")
    with pytest.raises(TopologyError, match="no such file"):
        topology.load(tmp_path / "other.yaml")
    with pytest.raises(TopologyError, match="not a regular file"):
        topology.load("/dev/zero")


def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert topology.load(path).num_ranks == 2
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(TopologyError, match="cannot be read: permission denied"):
            topology.load(path)
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dgx-a10", "no such preset or file; did you mean 'dgx-a100'?"),
        ("fat-tre:k=8", "did you mean 'fat-tree'?"),
        ("", "not a name"),
        ("a\0b", "not a name"),
        ("x" * 5000, "no such preset or file"),
    ],
)
def test_unknown_names(name: str, words: str) -> None:
    with pytest.raises(TopologyError) as error:
        topology.load(name)
    assert words in str(error.value)
    assert len(str(error.value)) < 500


def test_shipped_files_are_found() -> None:
    assert resources.find_topology("dgx-a100") is not None
    assert resources.find_topology("../pyproject") is None
    assert resources.find_topology("nope") is None


def test_json_schema_for_editors() -> None:
    schema = Topology.model_json_schema(by_alias=True)
    assert {"nodes", "links", "chips", "formats"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False


SEEDS = [path.read_text(encoding="utf-8") for path in resources.shipped_topologies().values()]
SEEDS += [CUSTOM]
TOKENS = [
    "{",
    "}",
    "[",
    "]",
    ": ",
    "- ",
    "\n",
    "  ",
    "null",
    "-1",
    "1e400",
    "0",
    "true",
    "&a ",
    "*a",
    "|",
    "'",
    '"',
]
TOKENS += [
    "kind",
    "gpu0..3",
    "base: ours",
    "99999999999999999999",
    "5 GB/s",
    "0ps",
    "~",
    "#",
    "\t",
    "\0",
    "é",
    "!!int",
]


def refusal(text: str) -> str:
    """Load and lower a text; return the words of the refusal, if it is one."""
    try:
        arrays_of(loads(text, "net.yaml"))
    except ClusimError as error:
        return str(error)
    return "net.yaml: accepted"


@pytest.mark.parametrize("name", ['"a\\nb"', '"a\\u2028b"', '"\\e[31m"'])
def test_a_name_is_one_line_that_prints(name: str) -> None:
    """Else it makes lines of its own in logs and terminals, and traces refuse it."""
    path = resources.find_topology("dgx-1v")
    assert path is not None
    text = path.read_text(encoding="utf-8").replace("name: dgx-1v", f"name: {name}", 1)
    with pytest.raises(TopologyError, match=r"does not print; write one line of text$"):
        loads(text, "forged.yaml")


@settings(max_examples=examples(50))
@given(st.data())
def test_damaged_files_only_ever_raise_clusim_errors(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SEEDS))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        upto = min(len(text), at + data.draw(st.integers(0, 12)))
        text = (
            text[:at]
            + data.draw(st.one_of(st.sampled_from(TOKENS), st.text(max_size=3)))
            + text[upto:]
        )
    text = text.encode("utf-8", "replace").decode()
    message = refusal(text)
    assert all(line.startswith("net.yaml:") for line in message.splitlines())


@settings(max_examples=examples(20))
@given(st.binary(max_size=200))
def test_any_bytes_only_ever_raise_clusim_errors(raw: bytes) -> None:
    message = refusal(raw.decode("utf-8", "replace"))
    assert message.startswith("net.yaml:")
