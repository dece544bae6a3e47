"""Network plugins as NCCL meets them: what the transports of a fabric set in its process, show it and state.

A release of a plugin follows from NCCL's: what is late with it is late with the other (`clusim.nccl.versions`).
Variables stand below what the user gives. What a transport is and costs is in `clusim.hardware.transport`.
"""

from __future__ import annotations

from dataclasses import replace

from clusim.hardware import TRANSPORTS, Transport
from clusim.nccl.env import Settings, parse_env
from clusim.nccl.versions import Version, since
from clusim.topology.model import Fabric
from clusim.topology.node import NicTraits

_AMPERE = 80
"""Compute capability of the A100: the first node for which plugins state the NIC's own latency."""


def transport_of(nic: NicTraits | None) -> Transport:
    """Return the transport by which NCCL reaches an adapter."""
    return TRANSPORTS[nic.plugin if nic is not None else NicTraits().plugin]


def stated_latency_us(nic: NicTraits, capability: int) -> float:
    """Return the latency that an adapter's transport states, on a machine of a compute capability [us]."""
    old_us = transport_of(nic).old_latency_us
    return old_us if capability < _AMPERE and old_us else nic.plugin_ps / 1e6


def plugin_variables(fabric: Fabric, version: Version) -> dict[str, str]:
    """Return the variables that the plugins of a fabric set, beside a release of NCCL."""
    capabilities = [
        node.endpoint.compute_capability
        for node in fabric.nodes
        if node.kind == "gpu" and node.endpoint is not None
    ]
    late = since(version, "larger buffers by plugins")
    found: dict[str, str] = {}
    for name in sorted({node.nic.plugin for node in fabric.nodes if node.nic is not None}):
        found |= TRANSPORTS[name].environment(min(capabilities, default=0), late=late)
    return found


def with_plugins(fabric: Fabric, settings: Settings, version: Version) -> Settings:
    """Return settings as a release reads them, with what the plugins of a fabric set where the user set nothing."""
    settings = settings.of_release(version)
    none, free, set_by = Settings(), {}, []
    for variable, text in plugin_variables(fabric, version).items():
        for name in parse_env({variable: text}).given:
            if getattr(settings, name) == getattr(none, name):
                free[name] = getattr(parse_env({variable: text}), name)
                set_by.append(f"{variable}={text}")
    return replace(settings, **free, by_plugin=tuple(set_by)) if free else settings
