"""Network interfaces (NICs): message costs between host memory and the wire.

**Hardware** A process posts a work request; the NIC fetches data over PCIe, cuts them into packets and
sends. The receiving NIC writes them to memory, then a completion; data for a GPU are flushed by a read
before the GPU may look. NCCL's proxy thread on the CPU posts and watches on both sides.
**Model** A forwarding latency in each direction; message costs of its transport
(`clusim.hardware.nic`): `post` before the first fetch and `completion` after the last packet, each
with the share of the proxy thread, `flush` for GPUDirect. Rate control reacts to congestion marks.
**Not modelled** Separate doorbells and queues, address translation misses, message rates, retransmission.
**Parameters** The figures of `Nic`; a section of ``nics.yaml`` for each.

Network transports: message costs and the effects of their plugins on NCCL.

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

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from clusim.base.datafiles import Entry, pci_id
from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.hardware.figures import (
    OPTIONAL,
    UNITS,
    Preset,
    Sourced,
    assumed,
    build,
    check_figures,
    figures,
    published,
)

MESSAGE_UNITS = UNITS["message"]
"""Costs of a message by transport, and its packet order; keys of NICs in topology files."""


def plugin_release(text: str) -> tuple[int, ...]:
    """Return a release of a network plugin, such as ``1.16`` or ``v1.13.2-aws``, as numbers.

    Raises
    ------
    InputError
        The text is not a release.
    """
    match = re.fullmatch(
        r"v?(\d{1,4}(?:\.\d{1,4}){0,3})(?:-\w{1,20})?", text.strip()
    )
    if match is None:
        raise InputError(
            f"plugin release {text[:40]!r}: must be numbers, for example 1.16 or 1.13.2"
        )
    return tuple(int(number) for number in match.group(1).split("."))


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
    paired : mapping
        The same for nodes whose PCIe switches have several GPUs.
    since : mapping
        Variable -> first release of the plugin that sets it, such as ``1.16``; others are set by all.
    mailbox : str
        First release of the plugin that writes control messages to the sender's memory, and reads the result of a
        flush there; earlier ones send them and poll for completions, which costs the host thread `control` per message,
        and `control_flush` per message of Simple. Empty: none.
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
    paired: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    since: Mapping[str, str] = field(default_factory=dict)
    mailbox: str = ""
    stripe_bytes: int = 0
    old_latency_us: float = 0.0

    def __post_init__(self) -> None:
        """Check the figures."""
        check_figures(self.figures, MESSAGE_UNITS, OPTIONAL["message"])

    def stripes(self, num_bytes: int, rails: int) -> int:
        """Return the number of rails of a NIC over which a message is spread."""
        if not self.stripe_bytes:
            return 1
        max_stripes = max(1, min(-(-num_bytes // self.stripe_bytes), rails))
        return next(
            count for count in range(max_stripes, 0, -1) if rails % count == 0
        )

    def sends_control(self, release: tuple[int, ...]) -> bool:
        """Return True if a release of the plugin sends control messages; empty is the newest release."""
        return bool(release and self.mailbox) and release < plugin_release(
            self.mailbox
        )

    def environment(
        self, capability: int, release: tuple[int, ...], *, paired: bool = False
    ) -> dict[str, str]:
        """Return the variables that a release of the plugin sets on nodes with GPUs of a compute capability.

        An empty release is the newest. `paired` is True if the PCIe switches of the nodes have several GPUs.
        """
        result: dict[str, str] = {}
        for table in (self.variables, self.paired if paired else {}):
            for min_size, variables in sorted(table.items()):
                if capability >= min_size:
                    result |= variables
        return {
            name: value
            for name, value in result.items()
            if not release or release >= plugin_release(self.since.get(name, "0"))
        }


def transport_of(name: str, entry: Entry, usual: Entry) -> Transport:
    """Return the transport of a section of ``transports.yaml``.

    Missing figures default to verbs'.
    """
    costs = {
        "plugin": published(name, "how NCCL reaches the NIC"),
        **figures(usual["figures"]),
        **figures(entry.get("figures", {})),
    }
    tables = {
        table: {
            int(min_size): some for min_size, some in entry.get(table, {}).items()
        }
        for table in ("variables", "paired")
    }
    return build(Transport, {**entry, **tables, "name": name}, figures=costs)


AdapterKind = Literal["ib", "roce", "efa", "slingshot", "tcp"]
"""Network type of a NIC."""

_UNITS = {**MESSAGE_UNITS, **UNITS["nic"]}
_OPTIONAL = (*OPTIONAL["message"], *OPTIONAL["nic"])


@dataclass(frozen=True, slots=True)
class Pci:
    """Identity of a PCI device: NIC family, whether it is Ethernet only, rate of a port [Gb/s]."""

    vendor: int
    device: int
    family: str
    gbps: int
    ethernet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic(Sourced):
    """NIC model.

    Attributes
    ----------
    name : str
        Name in topology files.
    figures : Preset
        Its figures.
    kind : str
        Network type.
    family : str
        Generation, identified by PCI IDs.
    gbps : int
        Rate of a port [Gb/s].
    usual : bool
        True if it represents unnamed NICs of this network and rate.
    """

    name: str
    figures: Preset
    kind: AdapterKind = "ib"
    family: str = ""
    gbps: int = 0
    usual: bool = False

    def __post_init__(self) -> None:
        """Check the figures."""
        check_figures(self.figures, _UNITS, _OPTIONAL)

    @property
    def plugin(self) -> str:
        """Return the transport by which NCCL reaches it."""
        return str(self.figures["plugin"].value)


def nic_of(name: str, entry: Entry, transports: Mapping[str, Transport]) -> Nic:
    """Return the NIC of a section of ``nics.yaml``; missing figures are its transport's.

    `gbps` is the rate reported to NCCL; 0 reports the rate of the cable.
    """
    entry = dict(entry)
    measured = figures(entry.pop("figures"))
    preset = {
        **transports[entry.pop("transport")].figures,
        "mtu": published(4096, "largest InfiniBand and RoCE MTU"),
        "ports": published(1, "network ports of the NIC"),
        "latency": measured["latency"],
    }
    if gbps := entry.get("gbps", 0):
        rate = published(f"{gbps} Gb/s", "rate of the NIC, as it reports it to NCCL")
        preset["speed"] = rate
    return build(Nic, {**entry, "name": name}, figures={**preset, **measured})


def pci_of(entry: Entry) -> Pci:
    """Return the PCI identity of an entry of ``nics.yaml``."""
    vendor, device = pci_id(entry["id"])
    other_keys = {key: value for key, value in entry.items() if key != "id"}
    return build(Pci, other_keys, vendor=vendor, device=device)


_PAPER = "DCQCN (Zhu et al., SIGCOMM 2015)"
_NVIDIA = "NVIDIA, DCQCN CC parameters of ConnectX-4 and later: default"
_TUNED = "Barre (Peng et al., USENIX ATC 2025), table 2, tuned for BlueField-3 at 400 Gb/s"


def _paper_dcqcn() -> Preset:
    """Return DCQCN with the parameters of its paper, for 40 Gb/s."""
    return {
        "g": published(1 / 256, _PAPER),
        "alpha_timer": published("55us", _PAPER),
        "increase_timer": published("55us", _PAPER),
        "cnp_interval": published("50us", _PAPER),
        "cnp_delay": assumed(
            "2us", "notification packet back to the sender over an idle network"
        ),
        "byte_counter": published("10MB", _PAPER),
        "additive": published("40 Mb/s", _PAPER),
        "hyper": published("200 Mb/s", _PAPER),
        "min_rate": assumed(
            "100 Mb/s", "HPCC's simulator (SIGCOMM 2019): lowest rate of a flow"
        ),
        "fast_recovery": published(5, _PAPER),
        "clamp": published(
            True, f"{_PAPER}: each notification sets the target rate"
        ),
    }


def _nic_dcqcn(gbps: float) -> Preset:
    """Return DCQCN of 400 Gb/s NICs as tuned in production; its steps are scaled with the rate.

    With the defaults of the firmware (timer 300 us, step 5 Mb/s, half of the rate kept) the same source measures 198 of
    400 Gb/s and unequal shares for seconds.
    """
    step = published if gbps == 400 else assumed
    return {
        **_paper_dcqcn(),
        "g": published(5 / 1024, f"{_NVIDIA} dce_tcp_g 1019/1024"),
        "alpha_timer": published("1us", f"{_NVIDIA} dce_tcp_rtt"),
        "increase_timer": published(
            "50us", f"{_TUNED}: rpg_time_reset 20 to 100 us"
        ),
        "cnp_interval": published(
            "2us", f"{_TUNED}: min_time_between_cnps 0 to 2 us"
        ),
        "byte_counter": assumed(
            "2097088B", f"{_NVIDIA} rpg_byte_reset 32767, in units of 64 B"
        ),
        "additive": step(
            f"{gbps / 20:g} Mb/s",
            f"{_TUNED}: rpg_ai_rate 8 to 20 Mb/s, with the rate",
        ),
        "hyper": step(
            f"{gbps / 8:g} Mb/s",
            f"{_NVIDIA} rpg_hai_rate 50 Mb/s, here with the rate",
        ),
        "fast_recovery": published(1, f"{_NVIDIA} rpg_threshold"),
        "kept": published(0.98, f"{_TUNED}: rpg_min_dec_fac 80 to 98%"),
        "clamp": published(
            False, f"{_NVIDIA} clamp_tgt_rate 0, clamp_tgt_rate_after_time_inc 1"
        ),
    }


RATE_CONTROLS: dict[str, Preset] = {
    "dcqcn": _paper_dcqcn(),
    **{f"dcqcn-{gbps}": _nic_dcqcn(gbps) for gbps in (25, 50, 100, 200, 400, 800)},
}
"""Rate controls by name: the paper's, and NICs' by the rate of their port."""
