"""Policies of the queues of switches in topologies and options: equal to the rules of the engine, and mistakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError, TopologyError
from clusim.policies.choice import parse_policy
from clusim.simulation.flows import Flow
from clusim.studies.policy_check import check_policy
from clusim.topology import loads, to_yaml
from support import path_policies, sender_policies, wire_policies

FILE = """
name: judged
link_types: {judged: {base: roce-400, LOSS}}
cluster: {node: hgx-h20, nodes: 3, network: {kind: rail, link: judged, switch: spectrum4}}
"""
STEP = f"{sender_policies.PLACE}:Step"
LIMIT = 64 << 10


def incast(folder: Path, loss: str, **options: Any) -> Any:
    """Return 64 KiB of each of 23 GPUs to the first."""
    path = folder / "judged.yaml"
    path.write_text(FILE.replace("LOSS", loss))
    size = options.pop("message", "64KiB")
    return clusim.traffic(path, "incast", message=size, granularity="packet", **options)


def judged(constants: str) -> str:
    """Return the key of a link type."""
    return f"queue_policy: {{policy: '{STEP}', constants: {{{constants}}}}}"


def counters(result: Any, *names: str) -> tuple[int, ...]:
    """Return sums over all wires."""
    return tuple(int(result.wires.counters[name].sum()) for name in names)


def test_a_policy_of_a_topology_drops_as_a_queue_of_that_size(tmp_path: Path) -> None:
    rule = incast(tmp_path, "pfc: none, ecn: none, drop: {queue: 64KiB}")
    loss = f"pfc: none, ecn: none, drop: {{queue: 1MiB}}, {judged('drop_bytes: 64KiB')}"
    result = incast(tmp_path, loss)
    assert result.time_ps == rule.time_ps
    assert counters(result, "drops", "bytes") == counters(rule, "drops", "bytes")
    assert counters(result, "drops")[0] > 0
    assert any(f"policy: {STEP}" in note for note in result.provenance.notes)


def test_a_policy_of_a_topology_marks_as_a_threshold_and_senders_react(tmp_path: Path) -> None:
    """Marks of links that pause, for DCTCP."""
    options = {"policy": "sender=dctcp"}
    rule = incast(tmp_path, "ecn: {min: 16KiB, max: 16KiB}", **options)
    result = incast(tmp_path, f"ecn: none, {judged('mark_bytes: 16KiB')}", **options)
    assert result.time_ps == rule.time_ps
    assert counters(result, "marks", "pauses") == counters(rule, "marks", "pauses")
    assert counters(result, "marks")[0] > 0


def test_the_option_sets_the_policy_of_all_network_switches(tmp_path: Path) -> None:
    loss = "pfc: none, ecn: none, drop: {queue: 64KiB}"
    plain = incast(tmp_path, loss)
    result = incast(tmp_path, loss, policy=f"queue={STEP}")
    assert result.time_ps == plain.time_ps  # its constants accept all
    none = incast(tmp_path, f"{loss}, {judged('drop_bytes: 1KiB')}", policy="queue=none")
    assert none.time_ps == plain.time_ps


def test_a_file_is_relative_to_its_topology_and_saved_with_constants(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(Path(sender_policies.PLACE).read_text(encoding="utf-8"))
    path = tmp_path / "judged.yaml"
    text = "queue_policy: {policy: 'mine.py:Step', constants: {drop_bytes: 2KiB}}"
    path.write_text(FILE.replace("LOSS", text))
    fabric = clusim.load(path)
    (found,) = {link.queue_policy for link in fabric.links} - {None}
    assert (found.name, found.constants) == (f"{tmp_path}/mine.py:Step", (("drop_bytes", 2048),))
    assert loads(to_yaml(fabric)) == fabric


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("queue_policy: swift", "judged.queue_policy: policy swift: is of senders"),
        ("queue_policy: {police: swift}", "queue_policy.police: unknown key; did you mean 'policy'"),
        (judged("drop: 1"), "no constant 'drop'; did you mean 'drop_bytes'"),
    ],
)  # fmt: skip
def test_mistakes_of_policies_of_queues_are_named(tmp_path: Path, key: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        incast(tmp_path, key)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("queue=swift", "policy swift: is of senders"),
        (f"sender={STEP}", "is of queues"),
        ("switch=swift", "must be KIND=NAME, such as sender=swift; kinds: sender, queue, receiver"),
    ],
)
def test_options_of_another_kind_are_named(tmp_path: Path, policy: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        incast(tmp_path, "ecn: none", policy=policy)


REQUESTED = "    def requested(self, now_ps, flows, flow, size_bytes, lost)"
ACKED = "    def acked(self, now_ps, size_bytes, rtt_ps, marked)"
NEXT = "    def next(self, now_ps, heads)"
CLASSES = """
name: classed
link_types: {judged: {base: roce-400, KEY}}
cluster: {node: hgx-h20, nodes: 3, network: {kind: rail, link: judged, switch: spectrum4}}
"""


def two_classes(folder: Path, key: str, **options: Any) -> list[int]:
    """Return the ends of flows of classes 0 and 1 from different nodes into one NIC."""
    path = folder / "classed.yaml"
    path.write_text(CLASSES.replace("KEY", key))
    flows = [
        Flow(8, 0, 1 << 20, traffic_class=0),
        Flow(16, 0, 1 << 20, traffic_class=1),
    ]
    messages = clusim.traffic(path, flows=flows, routing="ecmp", **options).messages
    return [int(messages.end_ps[messages.flow == flow].max()) for flow in range(2)]


def test_a_policy_of_schedules_orders_classes_as_the_rule_of_the_engine(tmp_path: Path) -> None:
    """The highest class first, as strict priority of class 1; without it the classes share."""
    rule = two_classes(tmp_path, "schedule: {priority: [1, 0]}")
    policy = f"{wire_policies.PLACE}:Highest"
    classes = "schedule: {priority: [0, 0]}"
    assert two_classes(tmp_path, f"{classes}, schedule_policy: '{policy}'") == rule
    assert two_classes(tmp_path, classes, policy=f"schedule={policy}") == rule
    shared = two_classes(tmp_path, classes)
    assert shared[1] > rule[1]
    fabric = clusim.load(tmp_path / "classed.yaml")
    assert loads(to_yaml(fabric)) == fabric


@pytest.mark.parametrize(
    ("name", "laws"),
    [
        (f"{wire_policies.PLACE}:Oldest", 2),
        (f"{sender_policies.PLACE}:Step", 2),
        (f"{wire_policies.PLACE}:AtOnce", 9),
        (f"{path_policies.PLACE}:InTurn", 2),
    ],
)
def test_policy_check_runs_the_laws_of_each_kind(name: str, laws: int) -> None:
    """Policies of switches have the laws of engines and threads, those of receivers also the laws of flows."""
    check = check_policy(name, clusim.load("hgx-h20:nodes=4"), 3, 4)
    assert len(check.laws) == laws
    assert all(law.passed for law in check.laws if law.law.startswith(("engines", "threads")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{REQUESTED.replace('flow, ', '')}: pass\n", "arguments; must be self, now_ps, flows, flow,"),
        (f"{REQUESTED}: pass\n{ACKED}: pass\n", "requested is of receivers, acked is not; split it"),
        (f"{NEXT}: return 0\n{REQUESTED}: pass\n", "requested is of receivers, next is not; split it"),
        (f"    class Flow:\n        owed: Final = 1\n{REQUESTED}: pass\n", "Flow.owed: is state, not Final"),
        (f"{REQUESTED}:\n        self.key = 1\n", "line 6: sets key, which is not state"),
        (f"{NEXT}:\n        return self.sise\n", "line 6: no field 'sise'"),
        (f"{NEXT}:\n        return heads[0].age\n", "line 6: no field 'age'; did you mean 'age_ps'"),
        (f"{REQUESTED}:\n        flows[flow].owed += 1\n", "line 6: no field 'owed'"),
    ],
)  # fmt: skip
def test_mistakes_of_new_kinds_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"from typing import Final\nimport clusim\n@clusim.policy\nclass Mine:\n{text}")
    with pytest.raises(InputError) as caught:
        parse_policy(f"receiver={path}:Mine")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


FORKED = """
name: forked
switches: {own: {base: spectrum4, KEY}}
cluster:
  {node: hgx-h20, nodes: 4, network: {kind: fat-tree, unit: 2, link: roce-400, switch: own}}
"""
ADAPTIVE = "adaptive-policy"


def crossing(folder: Path, key: str = "", **options: Any) -> Any:
    """Return flows from two nodes on a leaf switch to the two on another one."""
    path = folder / "forked.yaml"
    path.write_text(FORKED.replace(", KEY", f", {key}" if key else ""))
    flows = [Flow(rank, 16 + rank, 256 << 10) for rank in range(16)]
    return clusim.traffic(path, flows=flows, granularity="packet", **options)


def test_a_policy_of_paths_chooses_as_adaptive_routing_does(tmp_path: Path) -> None:
    """Of the option and of a type of switches; other choices have other fingerprints."""
    rule = crossing(tmp_path, routing="adaptive").fingerprint
    policy = f"path={ADAPTIVE}"
    assert crossing(tmp_path, routing="adaptive", policy=policy).fingerprint == rule
    key = f"path_policy: '{ADAPTIVE}'"
    assert crossing(tmp_path, key, routing="adaptive").fingerprint == rule
    fabric = clusim.load(tmp_path / "forked.yaml")
    assert loads(to_yaml(fabric)) == fabric
    hashed = crossing(tmp_path, key, routing="ecmp")
    assert hashed.fingerprint != crossing(tmp_path, routing="ecmp").fingerprint
    assert any(f"path policy: {ADAPTIVE}" in note for note in hashed.provenance.notes)
    none = crossing(tmp_path, key, routing="ecmp", policy="path=none").fingerprint
    assert none == crossing(tmp_path, routing="ecmp").fingerprint


def test_a_wrong_index_is_one_line(tmp_path: Path) -> None:
    line = path_policies.Beyond.choose.__code__.co_firstlineno
    message = (
        rf"Beyond.choose, line {line}: answer = 16 at .*s, switch leaf0; must be the number of"
    )
    with pytest.raises(InputError, match=message):
        crossing(tmp_path, policy=f"path={path_policies.PLACE}:Beyond", routing="adaptive")


def test_a_policy_of_senders_and_one_of_receivers_act_together(tmp_path: Path) -> None:
    """By the option and by a type of NICs; each alone has another result."""
    slow = f"sender={sender_policies.PLACE}:Slow"
    credit = f"receiver={wire_policies.PLACE}:AtOnce"
    texts = (slow, credit, f"{slow},{credit}", f"{credit},{slow}")
    results = [incast(tmp_path, "ecn: {min: 16KiB, max: 64KiB}", policy=text) for text in texts]
    prints = [result.fingerprint for result in results]
    assert len({*prints[:3]}) == 3
    assert prints[2] == prints[3]
    assert results[2].time_ps > max(result.time_ps for result in results[:2])
    assert any("sender policy: " in note for note in results[2].provenance.notes)
    assert any("receiver policy: " in note for note in results[2].provenance.notes)


NICS = """
name: two
nics: {n: {base: cx7-roce400, rate_control: CONTROL}}
nodes:
  gpu0: {kind: gpu, chip: h20-sxm5}
  nic0: {kind: nic, nic: n}
  cpu0: {kind: switch, switch: xeon-spr}
links: [{from: gpu0, to: cpu0, type: pcie-gen5-x16}, {from: nic0, to: cpu0, type: pcie-gen5-x16}]
"""


def test_a_type_of_nics_has_a_policy_of_receivers_beside_one_of_senders() -> None:
    fabric = loads(NICS.replace("CONTROL", "{policy: dctcp, receiver: rccc}"))
    (control,) = {node.nic.rate_control for node in fabric.nodes if node.nic is not None}
    assert (control.sender.name, control.receiver.name) == ("dctcp", "rccc")
    assert loads(to_yaml(fabric)) == fabric
    for text, message in (
        ("{receiver: rccc}", "receiver: beside a policy of senders only"),
        ("{policy: rccc, receiver: rccc}", "policy rccc: is of receivers; use a class with acked"),
        ("{policy: dctcp, receiver: swift}", "is of senders; use a class with requested"),
    ):
        with pytest.raises(TopologyError, match=message):
            loads(NICS.replace("CONTROL", text))


def test_marks_at_departure_of_a_topology_are_those_of_queues_that_packets_leave(
    tmp_path: Path,
) -> None:
    """Fewer than at arrival; drops at random exclude them."""
    marks = {}
    for at in ("arrival", "departure"):
        result = incast(tmp_path, f"ecn: {{min: 16KiB, max: 16KiB, at: {at}}}")
        marks[at] = counters(result, "marks")[0]
        fabric = clusim.load(tmp_path / "judged.yaml")
        assert loads(to_yaml(fabric)) == fabric
    assert 0 < marks["departure"] < marks["arrival"]
    with pytest.raises(TopologyError, match="red drops at arrival"):
        incast(tmp_path, "pfc: none, drop: {red: true}, ecn: {max: 16KiB, at: departure}")


PAGE = Path(__file__).parents[2] / "docs" / "model" / "policies.md"
EXAMPLES = {
    "deal.py": "receiver=deal.py:Deal",
    "share.py": "queue=share.py:Share",
    "oldest.py": "schedule=oldest.py:Oldest",
    "freest.py": "path=freest.py:Freest",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_classes_of_the_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Both engines run them, with the same result."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (one for one in blocks if EXAMPLES[name].rpartition(":")[2] in one)
    (tmp_path / name).write_text(block)
    monkeypatch.chdir(tmp_path)
    loss = "pfc: none, ecn: none, drop: {queue: 256KiB}, schedule: {priority: [0, 0]}"
    policy = EXAMPLES[name]
    results = [
        incast(tmp_path, loss, message="8KiB", policy=policy, engine=one)
        for one in ("c", "reference")
    ]
    assert len({result.fingerprint for result in results}) == 1
