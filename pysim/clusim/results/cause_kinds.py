"""Kinds of causes of a run's time, and their words."""

from __future__ import annotations

from enum import StrEnum


class CauseKind(StrEnum):
    """Kinds of causes."""

    LATENCY = "latency"
    STEP = "step"
    LAUNCH = "launch"
    PROXY = "proxy"
    WIRE = "wire"
    NIC = "nic"
    PCIE = "pcie"
    CTA = "cta"
    MEMORY = "memory"
    UNIT = "unit"
    STRAGGLER = "straggler"
    FAULT = "fault"
    CONTENTION = "contention"
    SHARING = "sharing"
    CREDIT = "credit"
    WINDOW = "window"
    RATE = "rate"
    TIMEOUT = "timeout"
    SLOTS = "slots"
    COMPUTE = "compute"
    EXPOSED = "exposed"
    HOST = "host"
    BUBBLE = "bubble"
    IDLE = "idle"
    OTHER = "other"


WORDS = {
    CauseKind.LATENCY: (
        "latency (propagation, flags, round trips)",
        "if half as long",
    ),
    CauseKind.STEP: ("per-slice CTA overhead", "if half as much"),
    CauseKind.LAUNCH: ("staggered CTA start and pauses", "if half as long"),
    CauseKind.PROXY: ("proxy threads of the host", "if 2x faster"),
    CauseKind.WIRE: ("bandwidth", "if 2x faster"),
    CauseKind.NIC: ("bandwidth at the NICs", "if 2x faster"),
    CauseKind.PCIE: ("bandwidth", "if 2x faster"),
    CauseKind.CTA: ("CTA copy/reduce throughput", "if 2x faster"),
    CauseKind.MEMORY: ("memory bandwidth", "if 2x faster"),
    CauseKind.UNIT: ("in-switch reduction units", "if 2x faster"),
    CauseKind.STRAGGLER: ("slow rank:", "if as fast as its peers"),
    CauseKind.FAULT: ("degraded link:", "if repaired"),
    CauseKind.CONTENTION: ("links shared with other collectives:", "without them"),
    CauseKind.SHARING: (
        "GPU sharing of kernels and communication",
        "without sharing",
    ),
    CauseKind.CREDIT: ("credit stalls on", "without them"),
    CauseKind.WINDOW: ("in-flight window full", "with twice the window"),
    CauseKind.RATE: ("rate control by", "without it"),
    CauseKind.TIMEOUT: ("retransmission timeouts", "if half as long"),
    CauseKind.SLOTS: ("CTA slots in use", "with twice the slots"),
    CauseKind.COMPUTE: ("compute", "if 2x faster"),
    CauseKind.EXPOSED: ("exposed communication", "if all hidden"),
    CauseKind.HOST: (
        "waiting for kernel launches by the host",
        "with launches in time",
    ),
    CauseKind.BUBBLE: ("pipeline bubble", "without a bubble"),
    CauseKind.IDLE: ("waiting for other ranks", "without waiting"),
    CauseKind.OTHER: ("unattributed", ""),
}
"""Kind -> its label, and the fix."""

SETTINGS = {
    CauseKind.LATENCY: "an algorithm of fewer steps (tree, NVLS), protocol LL or LL128, a larger size",
    CauseKind.STEP: "larger slices (NCCL_BUFFSIZE, a larger size), more channels, protocol LL128",
    CauseKind.LAUNCH: "fewer channels (NCCL_MAX_NCHANNELS)",
    CauseKind.PROXY: "fewer, larger messages: fewer channels, NCCL_BUFFSIZE, a larger size, tree or NVLSTree",
    CauseKind.WIRE: "an algorithm that sends less over these links (NVLS, tree), protocol Simple",
    CauseKind.NIC: "an algorithm that sends less between nodes (NVLSTree, SHARP), protocol Simple",
    CauseKind.PCIE: "paths around these links (NCCL_NET_GDR_LEVEL, NCCL_P2P_LEVEL), protocol Simple",
    CauseKind.CTA: "more channels (NCCL_MIN_NCHANNELS), protocol Simple, NVLS",
    CauseKind.MEMORY: "an algorithm of fewer copies (NVLS, registered buffers)",
    CauseKind.UNIT: "an algorithm without in-switch reduction (ring, tree)",
    CauseKind.CREDIT: "no setting of NCCL: buffers of receivers are hardware",
    CauseKind.WINDOW: "more channels (NCCL_MIN_NCHANNELS), writes instead of reads (NCCL_P2P_READ_ENABLE=0)",
    CauseKind.TIMEOUT: "`timeout` and `retransmission` of NICs, `trim` or a longer `queue` of links",
    CauseKind.SLOTS: "fewer channels (NCCL_MAX_NCHANNELS), fewer concurrent collectives",
}
"""Kind -> the settings that change it."""

WHAT_IF = {
    CauseKind.LATENCY: "latency x2",
    CauseKind.STEP: "step x2",
    CauseKind.LAUNCH: "launch x2",
    CauseKind.PROXY: "proxy x2",
    CauseKind.CTA: "cta x2",
    CauseKind.MEMORY: "hbm x2",
    CauseKind.UNIT: "unit x2",
    CauseKind.COMPUTE: "compute x2",
    CauseKind.WINDOW: "window x2",
    CauseKind.TIMEOUT: "timeout x2",
    CauseKind.SLOTS: "slots x2",
}
"""Kind -> its remedy in the words of ``clusim what-if``, if it depends on the kind only."""

APART = (CauseKind.EXPOSED, CauseKind.BUBBLE, CauseKind.IDLE)
"""Kinds with a comma between label and detail."""

BANDWIDTHS = (CauseKind.WIRE, CauseKind.NIC, CauseKind.PCIE)
"""Kinds with the link name before the label: ``NVLink bandwidth, GPU-NVSwitch``."""
