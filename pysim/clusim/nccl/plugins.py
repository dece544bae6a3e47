"""Network plugins as NCCL meets them: variables they set in its process, adapters they show as one, what they state.

**Hardware** A plugin is loaded when NCCL starts, on one machine as well, and may set variables that the user has not
set. aws-ofi-nccl knows the instance it runs on (``src/platform-aws.cpp``), and gives NCCL larger buffers and chunks on
those with EFA from A100 on. It shows the adapters of a GPU as one, and spreads a message over so many of these rails
that each gets 128 KiB of it (``src/nccl_ofi_scheduler.cpp``). **Model** The same; variables stand below what the user
gives. Which release of the plugin there is follows from NCCL's: it gives larger buffers since 1.16, which came out in
June 2025 as did NCCL 2.27. **Not modelled** Any other release of the plugin; ``NCCL_NET_FORCE_FLUSH`` and
``NCCL_NETDEVS_POLICY``, which it sets as well. **Parameters** The fields of `Plugin`; what a message costs is in
`clusim.hardware.nic`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from clusim.fabric.model import Fabric, NicTraits
from clusim.nccl.env import Settings, parse_env
from clusim.nccl.versions import Version, since

__all__ = ["Plugin", "plugin_of", "plugin_variables", "with_plugins"]

_MIB = 1 << 20
_AMPERE, _HOPPER = 80, 90


@dataclass(frozen=True, slots=True)
class Plugin:
    """A network plugin.

    Attributes
    ----------
    name : str
        What it is called.
    variables : mapping
        Least compute capability of the machine's GPUs -> variables it sets, besides those of lower ones.
    late : frozenset of str
        Those of them that only late releases set.
    stripe_bytes : int
        Least part of a message that gets a rail of its own [bytes]; 0: it does not join adapters.
    old_latency_us : float
        Latency it states on machines before A100 [us]; 0 is the adapter's.
    """

    name: str
    variables: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    late: frozenset[str] = frozenset()
    stripe_bytes: int = 0
    old_latency_us: float = 0.0

    def stripes(self, num_bytes: int, rails: int) -> int:
        """Return over how many of the rails of an adapter a message is spread."""
        if not self.stripe_bytes:
            return 1
        most = max(1, min(-(-num_bytes // self.stripe_bytes), rails))
        return next(count for count in range(most, 0, -1) if rails % count == 0)

    def latency_us(self, nic: NicTraits, capability: int) -> float:
        """Return the latency it states for an adapter [us]."""
        old = capability < _AMPERE and self.old_latency_us
        return self.old_latency_us if old else nic.plugin_ps / 1e6

    def environment(self, capability: int, version: Version) -> dict[str, str]:
        """Return the variables it sets on a machine with GPUs of a compute capability, beside a release of NCCL."""
        found: dict[str, str] = {}
        for least, own in sorted(self.variables.items()):
            if capability >= least:
                found |= own
        late = since(version, "larger buffers by plugins")
        return {name: value for name, value in found.items() if late or name not in self.late}


_NONE = Plugin("none: NCCL's own transports")
_PLUGINS = {
    "efa": Plugin(
        "aws-ofi-nccl",
        {
            _AMPERE: {
                "NCCL_BUFFSIZE": str(8 * _MIB),
                "NCCL_P2P_NET_CHUNKSIZE": str(_MIB // 2),
            },
            _HOPPER: {
                "NCCL_NVLSTREE_MAX_CHUNKSIZE": str(_MIB // 2),
                "NCCL_NVLS_CHUNKSIZE": str(_MIB // 2),
            },
        },
        late=frozenset(("NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE")),
        stripe_bytes=128 << 10,
        old_latency_us=150.0,
    ),
}


def plugin_of(nic: NicTraits | None) -> Plugin:
    """Return the plugin by which NCCL reaches an adapter."""
    return _PLUGINS.get(nic.plugin, _NONE) if nic is not None else _NONE


def plugin_variables(fabric: Fabric, version: Version) -> dict[str, str]:
    """Return the variables that the plugins of a fabric set."""
    capabilities = [
        node.endpoint.compute_capability
        for node in fabric.nodes
        if node.kind == "gpu" and node.endpoint is not None
    ]
    found: dict[str, str] = {}
    for kind in sorted({node.nic.plugin for node in fabric.nodes if node.nic is not None}):
        if kind in _PLUGINS:
            found |= _PLUGINS[kind].environment(min(capabilities, default=0), version)
    return found


def with_plugins(fabric: Fabric, settings: Settings, version: Version) -> Settings:
    """Return settings with what the plugins of a fabric set where the user set nothing."""
    none, free, set_by = Settings(), {}, []
    for variable, text in plugin_variables(fabric, version).items():
        (name,) = parse_env({variable: text}).given
        if getattr(settings, name) == getattr(none, name):
            free[name] = getattr(parse_env({variable: text}), name)
            set_by.append(f"{variable}={text}")
    return replace(settings, **free, by_plugin=tuple(set_by)) if free else settings
