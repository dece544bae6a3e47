"""Network transports: message costs and the effects of their plugins on NCCL.

**Hardware** NCCL reaches a NIC by built-in verbs or sockets, or by a plugin that is loaded at start,
also on a single node. A transport posts messages and detects their completion, with or without receiver
credits, and may set environment variables that the user has not set. aws-ofi-nccl presents the NICs of a
GPU as one, and spreads a message over at most one of these rails per started 128 KiB
(``src/nccl_ofi_scheduler.cpp``).
**Model** Figures of a message, inherited by NICs without measurements; environment variables with lower
priority than the user's, from A100 or Hopper on; stripes over rails; a latency that the transport
reports to NCCL's cost model.
**Not modelled** Plugin releases other than those contemporary with NCCL's, queue pairs, largest messages
(1 GiB and more).
**Parameters** The fields of `Transport`; a section of ``transports.yaml`` for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusim.hardware.datafiles import Entry, build, figures
from clusim.hardware.figures import Preset, assumed, check_figures, published

MESSAGE_UNITS = {
    "gpudirect": "true or false",
    "post": "s",
    "eager": "B",
    "rendezvous": "s",
    "progress": "s",
    "ack": "s",
    "completion": "s",
    "flush": "s",
    "transit": "s",
    "adaptive": "true or false",
    "plugin": "word",
    "plugin_latency": "s",
}
"""Costs of a message by transport, and its packet order; keys of NICs in topology files."""

_OPTIONAL = ("ack", "eager", "progress", "rendezvous", "transit", "plugin_latency")

_THREAD = "half a step of the thread: NCCL counts 1 us per step for it on Intel (tuning.cc)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """NCCL's transport over a NIC.

    Attributes
    ----------
    name : str
        Name in topology files (``plugin`` of a NIC).
    title : str
        Display name.
    figures : Preset
        Message costs, by the keys of `MESSAGE_UNITS`.
    in_logs : str
        Name in NCCL's log.
    variables : mapping
        Minimum compute capability of the node's GPUs -> variables it sets, in addition to lower entries.
    late : frozenset of str
        Variables set only by late releases.
    stripe_bytes : int
        Minimum bytes of a message per rail [bytes]; 0: NICs are not combined.
    old_latency_us : float
        Latency it reports on nodes older than A100 [us]; 0 uses the NIC's.
    """

    name: str
    title: str
    figures: Preset
    in_logs: str
    variables: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    late: frozenset[str] = frozenset()
    stripe_bytes: int = 0
    old_latency_us: float = 0.0

    def __post_init__(self) -> None:
        """Check the figures."""
        check_figures(self.figures, MESSAGE_UNITS, _OPTIONAL)

    def stripes(self, num_bytes: int, rails: int) -> int:
        """Return the number of rails of a NIC over which a message is spread."""
        if not self.stripe_bytes:
            return 1
        most = max(1, min(-(-num_bytes // self.stripe_bytes), rails))
        return next(count for count in range(most, 0, -1) if rails % count == 0)

    def environment(self, capability: int, *, late: bool) -> dict[str, str]:
        """Return the environment variables set on nodes with GPUs of a compute capability.

        Late releases set all of them, others omit `late` variables.
        """
        result: dict[str, str] = {}
        for least, own in sorted(self.variables.items()):
            if capability >= least:
                result |= own
        return {name: value for name, value in result.items() if late or name not in self.late}


def transport_of(name: str, entry: Entry) -> Transport:
    """Return the transport of a section of ``transports.yaml``.

    Missing figures are those of verbs.
    """
    costs: Preset = {
        "plugin": published(name, "how NCCL reaches the NIC"),
        "gpudirect": published(True, "reads and writes GPU memory (GPUDirect RDMA)"),
        "post": assumed(
            "500ns",
            "doorbell 0.15, work request 0.15, read request 0.2 us (verbs writes take 0.9-1.0 us end to end)",
        ),
        "completion": assumed("750ns", f"completion entry and its poll 0.25 us, and {_THREAD}"),
        "flush": assumed("1us", "a read of GPU memory by the NIC, there and back"),
        "adaptive": assumed(False, "one path per connection unless asked for"),
        **figures(entry.get("figures", {})),
    }
    late = frozenset(entry.get("late", ()))
    return build(Transport, {**entry, "name": name}, figures=costs, late=late)
