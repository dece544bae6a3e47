"""Presets with one thing changed: what metamorphic tests compare."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import yaml

import clusim
from clusim.base.resources import find_topology
from clusim.results.result import Result
from clusim.topology import Fabric, load
from clusim.topology.graph import from_data

__all__ = [
    "between_gpus",
    "busiest_ps",
    "data_of",
    "fabric_of",
    "machines_of",
    "reordered",
    "run",
    "with_chip",
    "with_links",
]


def data_of(preset: str) -> dict[str, Any]:
    """Return a shipped topology file as plain data."""
    path = find_topology(preset)
    assert path is not None
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def fabric_of(data: dict[str, Any]) -> Fabric:
    """Return the fabric of plain data."""
    return from_data(data)


def between_gpus(link: dict[str, Any]) -> bool:
    """Return whether an entry of `links` is NVLink or xGMI between GPUs and their switches."""
    return str(link["type"]).startswith(("nvlink", "xgmi-mi"))


def with_links(data: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Return `data` with keys of its GPUs' links changed; a callable gets the old value or 1."""
    changed = copy.deepcopy(data)
    for link in changed["links"]:
        if between_gpus(link):
            for key, value in keys.items():
                link[key] = value(link.get(key, 1)) if callable(value) else value
    return changed


def with_chip(data: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Return `data` with keys of its GPUs' chip changed."""
    changed = copy.deepcopy(data)
    name, node = next((k, v) for k, v in changed["nodes"].items() if v["kind"] == "gpu")
    changed["chips"] = {"changed": {"base": node["chip"], **keys}}
    changed["nodes"][name] = {**node, "chip": "changed"}
    return changed


def _shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        pairs = list(value.items())
        rng.shuffle(pairs)
        return {key: _shuffled(item, rng) for key, item in pairs}
    return [_shuffled(item, rng) for item in value] if isinstance(value, list) else value


def reordered(data: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return `data` with the keys of every mapping in another order; nodes of one kind keep theirs."""
    rng = random.Random(seed)
    changed = _shuffled(data, rng)
    gpus = [key for key, value in data["nodes"].items() if value["kind"] in ("gpu", "host")]
    in_order = iter(gpus)
    names = [next(in_order) if key in gpus else key for key in changed["nodes"]]
    changed["nodes"] = {key: changed["nodes"][key] for key in names}
    rng.shuffle(changed["links"])
    return dict(changed)


def machines_of(data: dict[str, Any], folder: Path, nodes: int = 2) -> Fabric:
    """Return `nodes` machines joined by the network of `data`, whose file is written to `folder`."""
    path = folder / "machine.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return load(path, nodes=nodes)


def run(
    machine: dict[str, Any] | Fabric,
    algorithm: str,
    size_bytes: int,
    *,
    granularity: str | int = "packet",
    operation: str = "allreduce",
    **keys: Any,
) -> Result:
    """Return a collective of `size_bytes` on a fabric, or that of plain data."""
    fabric = machine if isinstance(machine, Fabric) else fabric_of(machine)
    schedule = clusim.collectives.build(fabric, operation, algorithm, size_bytes, **keys)
    return clusim.simulate(fabric, schedule, granularity=granularity)


def busiest_ps(result: Result) -> int:
    """Return how long the busiest wire was busy [ps]."""
    return int(result.wires.counters["busy_ps"].max())
