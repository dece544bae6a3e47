"""Transports of a system under NCCL's environment variables: the links that data may use.

**Hardware** NCCL decides per pair of ranks (``src/graph/paths.cc``, ``src/transport/``): P2P up to ``NCCL_P2P_LEVEL``,
else host memory (SHM), else the network; GPUDirect up to ``NCCL_NET_GDR_LEVEL``, and to send only if
``NCCL_NET_GDR_READ`` allows it; NICs of other GPUs over NVLink unless ``NCCL_PXN_DISABLE`` is set; and only the NICs
that ``NCCL_IB_HCA`` names. **Model** The same variables change the topology (`Fabric.p2p_level`, `gdr_level`,
`gdr_read`, `pxn`, `nvb`, `shm`, the queue pairs in `Fabric.forwarding`, and which NICs are on the network), so that
plans and data follow one description. Releases of plugins that send control messages add their cost to that of a
message (`NicTraits.control_ps`).
Hosts of a rack without multi-node NVLink, and GPUs without SHM and peer access, become nodes (`clusim.topology.split`).
**Not modelled** Sockets in place of InfiniBand.

Network plugins as seen by NCCL: variables, topology and properties set by a topology's transports.

The release of a plugin is given, or follows from NCCL's (`clusim.nccl.constants`). The user's variables override the
plugin's. Properties and costs of transports are in `clusim.hardware.nic`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.hardware.catalog import TRANSPORTS
from clusim.hardware.nic import Transport
from clusim.nccl.constants import Path, Version
from clusim.nccl.env import Settings, parse_env
from clusim.topology.model import Fabric
from clusim.topology.node import NETWORK, NicTraits, Node
from clusim.topology.split import by_host, by_peers

_AMPERE = 80
"""Compute capability of the A100: the first node for which plugins report the NIC's latency."""


def transport_of(nic: NicTraits | None) -> Transport:
    """Return the transport by which NCCL reaches a NIC."""
    return TRANSPORTS[nic.plugin if nic is not None else NicTraits().plugin]


def stated_latency_us(nic: NicTraits, capability: int) -> float:
    """Return the latency that a NIC's transport states, on a node of a compute capability [us]."""
    old_us = transport_of(nic).old_latency_us
    return old_us if capability < _AMPERE and old_us else nic.plugin_ps / 1e6


def plugin_variables(
    fabric: Fabric, release: tuple[int, ...] = ()
) -> dict[str, str]:
    """Return the variables that the plugins of a fabric set.

    Parameters
    ----------
    release : tuple of int
        Release of the plugins; empty is the newest.
    """
    capabilities = [
        node.endpoint.compute_capability
        for node in fabric.nodes
        if node.kind == "gpu" and node.endpoint is not None
    ]
    result: dict[str, str] = {}
    for name in sorted(
        {node.nic.plugin for node in fabric.nodes if node.nic is not None}
    ):
        transport = TRANSPORTS[name]
        paired = bool(transport.paired) and _has_gpu_pairs(fabric)
        result |= transport.environment(
            min(capabilities, default=0), release, paired=paired
        )
    return result


def _has_gpu_pairs(fabric: Fabric) -> bool:
    """Return True if PCIe switches of a fabric's nodes have several GPUs."""
    nodes = {node.name: node for node in fabric.nodes}
    switches: set[str] = set()
    for link in fabric.links:
        for end, far in (
            (nodes[link.a], nodes[link.b]),
            (nodes[link.b], nodes[link.a]),
        ):
            if end.kind == "gpu" and far.tier == "pcie" and link.cls == "pcie":
                switch = far.half_of or far.name
                if switch in switches:
                    return True
                switches.add(switch)
    return False


def with_plugins(fabric: Fabric, settings: Settings, version: Version) -> Settings:
    """Return settings as a release reads them, with the plugins' values where the user set none."""
    settings = settings.of_release(version)
    none, free, set_by = Settings(), {}, []
    for variable, text in plugin_variables(fabric, settings.plugin).items():
        for name in parse_env({variable: text}).changed_names:
            if getattr(settings, name) == getattr(none, name):
                free[name] = getattr(parse_env({variable: text}), name)
                set_by.append(f"{variable}={text}")
    return replace(settings, **free, by_plugin=tuple(set_by)) if free else settings


_P2P = {
    **{
        Path.LOC: "loc",
        Path.NVL: "nvl",
        Path.NVB: "nvb",
        Path.C2C: "nvb",
        Path.PIX: "pix",
    },
    **{
        Path.PXB: "pxb",
        Path.P2C: "pxb",
        Path.PXN: "pxb",
        Path.PHB: "phb",
        Path.SYS: "sys",
    },
}
"""NCCL's levels in the words of topologies."""

_SOCKETS = "sockets"
_FAMILY = re.compile(r"mlx\d|hfi\d|.*\D")
"""Device name prefixes that match all devices of a driver: ``mlx5``, ``mlx5_``, ``bnxt_re``."""


def restrict_transports(fabric: Fabric, settings: Settings) -> Fabric:
    """Return a fabric restricted to the transports that the variables allow; unchanged if they allow all.

    Raises
    ------
    InputError
        ``NCCL_IB_HCA`` allows no NIC of a node, and there are several nodes.
    """
    if not settings.mnnvl_enable:
        fabric = by_host(fabric)
    result = _apply_variables(fabric, settings)
    return result if result.shm else by_peers(result)


def _apply_variables(fabric: Fabric, settings: Settings) -> Fabric:
    """Return a fabric with the variables' keys, links and costs of plugins."""
    changes = _changes(fabric, settings)
    if not changes and not settings.ib_hca and not settings.plugin:
        return fabric
    cache: dict[Any, Fabric] = fabric.cache.setdefault("transported", {})
    key = (*changes.items(), settings.ib_hca, settings.plugin)
    if key not in cache:
        links = _used_links(fabric, settings)
        if links is not None:
            changes["links"] = links
        nodes = tuple(_of_plugin(node, settings.plugin) for node in fabric.nodes)
        if nodes != tuple(fabric.nodes):
            changes["nodes"] = nodes
        cache[key] = replace(fabric, **changes) if changes else fabric
    return cache[key]


def _changes(fabric: Fabric, settings: Settings) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    p2p = Path.LOC if settings.p2p_disable else settings.p2p_level
    if p2p is not None:
        changes["p2p_level"] = _P2P[p2p]
    if settings.net_gdr_level is not None:
        level = _P2P[settings.net_gdr_level]
        changes["gdr_level"] = "loc" if level in ("nvl", "nvb") else level
    for name, off in (
        ("gdr_read", settings.net_gdr_read is False),
        ("pxn", settings.pxn_disable),
        ("nvb", settings.nvb_disable),
        ("shm", settings.shm_disable),
    ):
        if off:
            changes[name] = False
    if settings.ib_qps_per_connection > 1 and any(
        node.nic is not None and node.nic.plugin == "verbs" for node in fabric.nodes
    ):
        changes["forwarding"] = replace(
            fabric.forwarding,
            queues=settings.ib_qps_per_connection,
            split=bool(settings.ib_split_data_on_qps),
        )
    return {
        name: value
        for name, value in changes.items()
        if getattr(fabric, name) != value
    }


def _of_plugin(node: Node, release: tuple[int, ...]) -> Node:
    """Return a node as a release of its network plugin uses it; the newest if it is empty."""
    nic = node.nic
    if (
        nic is None
        or not nic.control_ps
        or not transport_of(nic).sends_control(release)
    ):
        return node
    progress_ps = nic.progress_ps + nic.control_ps
    simple_ps = nic.progress_simple_ps + nic.control_flush_ps
    sent = replace(nic, progress_ps=progress_ps, progress_simple_ps=simple_ps)
    return replace(node, nic=replace(sent, control_ps=0, control_flush_ps=0))


def _used_links(fabric: Fabric, settings: Settings) -> tuple[Any, ...] | None:
    """Return the links except those from unused NICs to the network; None if every NIC is used."""
    if not settings.ib_hca:
        return None
    zone = {node.name: node.zone for node in fabric.nodes}
    nics: dict[int, list[str]] = {}
    for node in fabric.nodes:
        if node.kind == "nic" and node.zone != NETWORK:
            nics.setdefault(node.zone, []).append(node.name)
    unused: set[str] = set()
    for number, names in nics.items():
        used = allowed_nics(settings.ib_hca, names, fabric.nic_names).names
        if not used and fabric.num_zones > 1:
            devices = (name.rpartition("/")[2] for name in names)
            listing = ", ".join(fabric.nic_names.get(name, name) for name in devices)
            raise InputError(
                f"NCCL_IB_HCA={settings.ib_hca}: allows no NIC of node {number} of {fabric.name};"
                f" its NICs are {listing}"
            )
        unused |= set(names) - set(used)
    links = tuple(
        link
        for link in fabric.links
        if zone[link.a] == zone[link.b] or not unused & {link.a, link.b}
    )
    return None if len(links) == len(fabric.links) else links


@dataclass(frozen=True, slots=True)
class AllowedNics:
    """NICs of a node that ``NCCL_IB_HCA`` allows.

    Attributes
    ----------
    note : str
        Assumption if the topology does not name its NICs; otherwise empty.
    """

    names: tuple[str, ...]
    note: str = ""


def allowed_nics(
    rule: str, nics: Iterable[str], device_names: Mapping[str, str]
) -> AllowedNics:
    """Return the NICs of a node that a value of ``NCCL_IB_HCA`` allows.

    As in NCCL, names are prefixes, a leading ``=`` requires an exact match, ``^`` excludes names, and ``:port`` follows
    a name. If the topology has no device names, as many NICs as names are selected, evenly spread.

    Parameters
    ----------
    nics : iterable of str
        NICs of the node in the topology.
    known : mapping
        Their device names, by name with or without the node's.
    """
    names = tuple(nics)
    if not rule or not names:
        return AllowedNics(names)
    excluded = rule.startswith("^")
    exact = rule.removeprefix("^").startswith("=")
    words = rule.removeprefix("^").removeprefix("=").split(",")
    words = [word.strip() for word in words if word.strip()]
    devices = {
        name: device_names.get(name) or device_names.get(name.rpartition("/")[2], "")
        for name in names
    }
    hit = {
        name
        for name in names
        if _names_nic(name.rpartition("/")[2], devices[name], words, exact)
    }
    if any(devices.values()) or hit:
        return AllowedNics(
            tuple(name for name in names if (name in hit) != excluded)
        )
    if excluded:
        note = f"NCCL_IB_HCA={rule}: NICs without device names in the topology; all {len(names)} of a node are used"
        return AllowedNics(names, note)
    families = not exact and any(
        _FAMILY.fullmatch(word.partition(":")[0]) for word in words
    )
    count = len(names) if families else min(len(names), len(set(words)))
    chosen = tuple(names[number * len(names) // count] for number in range(count))
    note = (
        f"NCCL_IB_HCA={rule}: NICs without device names in the topology; {count} of {len(names)} of a node are used,"
        " evenly spread"
    )
    return AllowedNics(chosen, note)


def _names_nic(nic: str, device: str, words: Iterable[str], exact: bool) -> bool:
    """Return True if one of the words names a NIC by its device name and port, or by its name in the topology."""
    name, _, port = device.partition(":")
    for word in words:
        prefix, _, port_text = word.partition(":")
        if port_text and port_text != (port or "1"):
            continue
        if any(
            candidate == prefix if exact else candidate.startswith(prefix)
            for candidate in (name, nic)
            if candidate
        ):
            return True
    return False


def check_network(fabric: Fabric, settings: Settings) -> None:
    """Raise `InputError` if variables select a network other than the NICs that the nodes share."""
    nics = [node.nic for node in fabric.nodes if node.kind == "nic"]
    reached = {result.name: result for result in map(transport_of, nics)}
    titles = ", ".join(sorted(result.title for result in reached.values()))
    where = f"the NICs of {fabric.name} are reached by {titles}"
    if settings.ib_disable and "verbs" in reached:
        raise InputError(
            f"NCCL_IB_DISABLE=1: not simulated: {where}, and sockets {_ON_THEM}"
        )
    net = settings.net.lower()
    net = "ib" if net.startswith("ibext") else net  # HPC-X's plugin, verbs as well
    names = {
        "verbs": ("ib",),
        _SOCKETS: ("socket",),
        "efa": ("aws libfabric", "libfabric"),
    }
    networks = {
        word
        for name, network in reached.items()
        for word in (name, network.in_logs.lower())
    }
    networks |= {word for name in reached for word in names.get(name, ())}
    if net == "socket" and net not in networks:
        raise InputError(
            f"NCCL_NET={settings.net}: not simulated: {where}, and sockets {_ON_THEM}"
        )
    if net and net not in networks:
        raise InputError(f"NCCL_NET={settings.net}: {where}; leave out NCCL_NET")


_ON_THEM = "on them are not modelled; set a NIC type with plugin sockets"
