"""Chakra traces as JSON give what the same traces as .et files give."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from clusim.base import resources
from clusim.base.errors import InputError
from clusim.formats.recordings.chakra import read
from clusim.formats.recordings.chakra_schema import NODE_TYPES, attributes, messages
from clusim.formats.recordings.kinds import kind_of
from clusim.replays import ReplayRequest, replay

SAMPLE = Path(__file__).resolve().parents[3] / "traces" / "chakra-4ranks"
NAMES = {number: name for name, number in NODE_TYPES.items()}


def camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def printed(path: Path) -> list[dict[str, Any]]:
    """Return the nodes of an .et file as protobuf prints them."""
    found = []
    for node in messages(path.name, iter([path.read_bytes()]), lambda text: None):
        item: dict[str, Any] = {
            "id": str(node.id),
            "name": node.name.decode(),
            "type": NAMES[node.type],
        }
        for name in ("ctrl_deps", "data_deps"):
            if getattr(node, name):
                item[camel(name)] = [str(dep) for dep in getattr(node, name)]
        if node.duration_micros:
            item["durationMicros"] = str(node.duration_micros)
        item["attr"] = []
        for name, value in attributes(node).items():
            kind = {bool: "boolVal", int: "int64Val", str: "stringVal", float: "doubleVal"}.get(
                type(value)
            )
            shown = str(value) if kind == "int64Val" else value
            item["attr"].append(
                {"name": name, kind: shown}
                if kind
                else {"name": name, "boolList": {"values": value}}
            )
        found.append(item)
    return found


@pytest.mark.parametrize("form", ["one after another", "lines", "list", "nodes"])
def test_json_is_read_like_et(form: str, tmp_path: Path) -> None:
    for path in sorted(SAMPLE.glob("*.et")):
        nodes = printed(path)
        text = {
            "one after another": "\n".join(json.dumps(node, indent=2) for node in nodes),
            "lines": "\n".join([json.dumps({"version": "0.0.4"}), *map(json.dumps, nodes)]),
            "list": json.dumps(nodes),
            "nodes": json.dumps({"nodes": nodes}),
        }[form]
        (tmp_path / path.name.replace(".et", ".json")).write_text(text)
    (tmp_path / "comm_group.json").write_text((SAMPLE / "comm_group.json").read_text())
    assert kind_of(str(tmp_path / "job.0.json")) == "chakra"
    one, two = read(str(SAMPLE)), read(str(tmp_path))
    assert one.groups == two.groups
    assert len(one.events) == len(two.events)
    for a, b in zip(one.events, two.events, strict=True):
        assert (a.kind, a.rank, a.deps, a.operation, a.bytes, a.group) == (
            b.kind, b.rank, b.deps, b.operation, b.bytes, b.group,
        )  # fmt: skip
    if form == "lines":
        asked = ReplayRequest((str(tmp_path),), topology="dgx-h100", kind="chakra")
        assert replay(asked).total_calls == 9
    assert resources.find_topology("dgx-h100")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"id": "x", "type": "COMP_NODE"}, "id 'x': must be a number"),
        ({"id": 1, "type": "COMP_NODE", "ctrlDeps": 3}, "ctrl_deps must be a list"),
        ({"id": 1, "type": "COMP_NODE", "durationMicros": -3}, "duration_micros '-3'"),
        (
            {"id": 1, "type": "COMM_COLL_NODE", "attr": [{"name": "a", "int64Val": "9" * 30}]},
            "int64_val",
        ),
    ],
)
def test_nonsense_is_refused(node: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "job.0.json"
    path.write_text(json.dumps(node))
    with pytest.raises(InputError, match=message):
        read(str(path))
    path.write_text(json.dumps({"id": 1, "type": "COMP_NODE"}) + '{"id": ')
    with pytest.raises(InputError, match="not a JSON object; is the file cut"):
        read(str(path))


def graph_node(number: int, kind: int, after: list[int], **more: Any) -> dict[str, Any]:
    return {
        "Id": number,
        "Name": f"n{number}",
        "NodeType": kind,
        "data_deps": after,
        "is_cpu_op": False,
        **more,
    }


def graph_of(rank: int) -> list[dict[str, Any]]:
    """Return computing, a collective, its host part, and a message from rank 0 to rank 1."""
    ends: dict[str, Any] = {"comm_size": 4096, "comm_tag": 3, "comm_src": 0, "comm_dst": 1}
    return [
        graph_node(3, 4, [], runtime=85),
        graph_node(4, 7, [3], runtime=7, is_cpu_op=True),
        graph_node(9, 7, [4], comm_type=2, comm_size=1 << 20, ctrlDeps=[3]),
        graph_node(11, 5 + rank, [9], **ends),
    ]


def write_graph(path: Path, nodes: list[dict[str, Any]], first: bool) -> None:
    names: dict[str, Any] = {"workload_name": "w", "ngpus": 2, "soc": "s"}
    whole = {**names, "workload_graph": nodes} if first else {"workload_graph": nodes, **names}
    path.write_text(json.dumps(whole, indent=2))


@pytest.mark.parametrize("first", [False, True])
def test_a_workload_graph_is_read_like_nodes(first: bool, tmp_path: Path) -> None:
    for rank in range(2):
        write_graph(tmp_path / f"job.{rank}.json", graph_of(rank), first)
    assert kind_of(str(tmp_path / "job.0.json")) == "chakra"
    found = read(str(tmp_path))
    own = [event for event in found.events if event.rank == 0]
    assert [(e.kind, e.operation, e.bytes, e.name) for e in own if e.kind != "delay"] == [
        ("compute", "", 0, "n3"),
        ("collective", "all_gather", 2 << 20, "n9"),
        ("send", "", 4096, "n11"),
    ]
    assert [(e.kind, e.duration_ps) for e in own if e.kind == "delay"] == [("delay", 7_000_000)]
    assert found.num_ranks == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"comm_size": None}, r"workload_graph\[2\]: comm_size 'None': must be a number"),
        ({"NodeType": 12}, r"workload_graph\[2\]: NodeType '12': must be one of"),
        ({"data_deps": 4}, r"workload_graph\[2\]: data_deps must be a list"),
        ({"runtime": -1}, r"workload_graph\[2\]: runtime '-1'"),
    ],
)
def test_what_is_wrong_in_a_workload_graph_is_named(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    nodes = graph_of(0)[:3]
    nodes[2] |= change
    write_graph(tmp_path / "job.0.json", nodes, True)
    with pytest.raises(InputError, match=message):
        read(str(tmp_path / "job.0.json"))


@pytest.mark.parametrize("lost", ["Id", "NodeType", "comm_type", "comm_size"])
def test_what_a_workload_graph_lacks_is_named(lost: str, tmp_path: Path) -> None:
    nodes = graph_of(0)[:3]
    del nodes[2][lost]
    write_graph(tmp_path / "job.0.json", nodes, False)
    with pytest.raises(InputError, match=rf"job\.0\.json: workload_graph\[2\]: .*{lost}"):
        read(str(tmp_path / "job.0.json"))


@pytest.mark.parametrize("key", ["workload_graph", "nodes"])
def test_a_cut_list_of_nodes_is_refused(key: str, tmp_path: Path) -> None:
    item = (
        {"id": 1, "type": "COMP_NODE", "duration_micros": 3} if key == "nodes" else graph_of(0)[0]
    )
    path = tmp_path / "job.0.json"
    path.write_text(json.dumps({key: [item, item | {"Id": 5, "id": 5}]})[:-2])
    with pytest.raises(InputError, match="cut"):
        read(str(path))
