"""A network transport as one object: what a message costs by it, and what its plugin makes of NCCL.

**Hardware** NCCL reaches an adapter by verbs or sockets of its own, or by a plugin that is loaded when it starts, on
one machine as well. A transport posts messages and watches for their completion, asks for them or not (credits of the
receiver), and may set variables that the user has not set. aws-ofi-nccl shows the adapters of a GPU as one, and spreads
a message over so many of these rails that each gets 128 KiB of it (``src/nccl_ofi_scheduler.cpp``).
**Model** Figures of a message, which adapters inherit unless they have been measured by themselves; variables that
stand below what the user gives, from A100 or Hopper on; stripes over rails; a latency that it states to NCCL's model.
**Not modelled** Releases of plugins other than those of NCCL's time, queue pairs, largest messages (1 GiB and more).
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
        As topology files have it (``plugin`` of an adapter).
    title : str
        What it is called.
    figures : Preset
        What a message costs, by the keys of `MESSAGE_UNITS`.
    in_logs : str
        What NCCL's log calls it.
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
        """Return over how many of the rails of an adapter a message is spread."""
        if not self.stripe_bytes:
            return 1
        most = max(1, min(-(-num_bytes // self.stripe_bytes), rails))
        return next(count for count in range(most, 0, -1) if rails % count == 0)

    def environment(self, capability: int, *, late: bool) -> dict[str, str]:
        """Return the variables it sets on a machine with GPUs of a compute capability, `late` releases all of them."""
        found: dict[str, str] = {}
        for least, own in sorted(self.variables.items()):
            if capability >= least:
                found |= own
        return {name: value for name, value in found.items() if late or name not in self.late}


def transport_of(name: str, entry: Entry) -> Transport:
    """Return the transport of a section of ``transports.yaml``; figures that it does not have are those of verbs."""
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
