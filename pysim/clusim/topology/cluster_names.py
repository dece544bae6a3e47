"""Clusters by name: ``aws-p5:nodes=4``, ``superpod-h100:nodes=32``, ``rail:node=dgx-h100,nodes=16,spines=4``."""

from __future__ import annotations

from typing import Any

from clusim.base.errors import TopologyError
from clusim.topology.cluster_schema import NETWORK_KINDS, LengthsSpec, NetworkSpec
from clusim.topology.generators import GENERATORS
from clusim.topology.preset_signature import superpods
from clusim.topology.problems import did_you_mean

_LENGTH = "_length"


def is_cluster_name(name: str) -> bool:
    """Return True if a name says how many machines there are, or that it is a cluster at all."""
    head, _, rest = name.partition(":")
    keys = {part.partition("=")[0].strip() for part in rest.split(",")}
    if "nodes" in keys or (head in NETWORK_KINDS and "node" in keys):
        return True
    return head not in GENERATORS and head in superpods()


def cluster_data(name: str, nodes: int | None = None) -> dict[str, Any]:
    """Return the topology file that a name stands for; `nodes` wins over the number in the name.

    It is called by the name, which makes it again.
    """
    head, _, rest = name.partition(":")
    given = _pairs(rest)
    network: dict[str, Any] = {}
    if head in (units := superpods()):
        node = units[head]
        network = {"kind": "superpod"}
    elif head in NETWORK_KINDS and "node" in given:
        node = given.pop("node")
        network = {"kind": head}
    else:
        node = head
    if nodes is None and "nodes" not in given:
        raise TopologyError(f"needs nodes; for example {head}:nodes=32")
    count = nodes if nodes is not None else _number("nodes", given["nodes"])
    given.pop("nodes", None)
    for key, text in given.items():
        _set(network, key, text)
    cluster: dict[str, Any] = {"node": node, "nodes": count}
    if network:
        cluster["network"] = network
    shown = f"{head}:" + ",".join(
        [f"node={node}"] * (head in NETWORK_KINDS)
        + [f"nodes={count}", *(f"{key}={text}" for key, text in given.items())]
    )
    return {"name": shown, "cluster": cluster}


def _pairs(rest: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = (text.strip() for text in part.partition("="))
        if not equals or not value:
            raise TopologyError(f"{part!r}: must be option=value; for example nodes=32")
        if key in found:
            raise TopologyError(f"{key}: given twice")
        found[key] = value
    return found


def _set(network: dict[str, Any], key: str, text: str) -> None:
    tiers = [info.alias or tier for tier, info in LengthsSpec.model_fields.items()]
    if key.endswith(_LENGTH) and key.removesuffix(_LENGTH) in tiers:
        network.setdefault("lengths", {})[key.removesuffix(_LENGTH)] = text
        return
    known = [key for key in NetworkSpec.model_fields if key != "lengths"]
    if key not in known:
        lengths = [f"{tier}{_LENGTH}" for tier in tiers]
        raise TopologyError(
            f"unknown option {key!r}{did_you_mean(key, ['nodes', *known, *lengths])}"
        )
    if key == "shape":
        network[key] = [_number(key, size) for size in text.split("x")]
    elif "oversubscription" in key:
        network[key] = _ratio(key, text)
    elif key in ("kind", "link", "trunk", "switch", "spine_switch", "core_switch"):
        network[key] = text
    else:
        network[key] = _number(key, text)


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise TopologyError(f"{key}={text[:20]!r}: must be a whole number, at most 999999")
    return int(text)


def _ratio(key: str, text: str) -> float:
    upper, _, lower = text.partition(":")
    try:
        value = float(upper) / float(lower or "1")
    except (ValueError, ZeroDivisionError):
        raise TopologyError(f"{key}={text[:20]!r}: must be a number such as 2 or 3:1") from None
    return value
