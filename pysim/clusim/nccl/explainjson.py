"""JSON form of NCCL's decisions (`clusim.nccl.explain`)."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class AdapterJson(TypedDict):
    """A NIC of a node as seen by NCCL.

    Attributes
    ----------
    fabric_nodes : list of str
        Its graph nodes in the topology; several if NCCL merges NICs.
    gpu : int or None
        The GPU next to it; None if it is local to no GPU.
    """

    name: str
    fabric_nodes: list[str]
    speed_GBps: float
    gpu: int | None


class GraphJson(TypedDict):
    """Result of NCCL's search for a pattern.

    Attributes
    ----------
    intra_GBps, inter_GBps : float
        Bandwidth of a channel inside a node and between nodes [10^9 bytes/s].
    type_intra, type_inter : str
        The farthest path types, in NCCL's notation.
    cross_nic : int
        As NCCL_CROSS_NIC.
    log_line : str
        The corresponding line of NCCL's log.
    """

    pattern: str
    channels: int
    intra_GBps: float
    inter_GBps: float
    type_intra: str
    type_inter: str
    cross_nic: int
    same_channels: bool
    log_line: str


class ChannelsJson(TypedDict):
    """Number of channels by use."""

    coll: int
    collnet: int
    nvls: int
    p2p: int
    p2p_per_peer: int


class TreeJson(TypedDict):
    """The tree of a channel: who each rank reduces into, -1 for the root, and from whom."""

    root: int
    parent: list[int]
    children: list[list[int]]


class CostJson(TypedDict):
    """A cell of NCCL's cost table.

    Attributes
    ----------
    why_not : str
        Why it cannot be chosen; empty if it can.
    """

    algorithm: str
    protocol: str
    latency_us: float
    bandwidth_GBps: float
    why_not: str


class ChoiceJson(TypedDict):
    """NCCL's choice at a size, and its rules.

    Attributes
    ----------
    threads : int
        Of a CTA.
    model_time_us, model_busbw_GBps : float
        NCCL's estimate.
    gpu_bytes, adapter_bytes : float or None
        Bytes sent by the busiest GPU and NIC [bytes]; None if unknown.
    """

    size_bytes: int
    algorithm: str
    protocol: str
    channels: int
    threads: int
    chunk_bytes: int
    model_time_us: float
    model_busbw_GBps: float
    gpu_bytes: float | None
    adapter_bytes: float | None
    why: str
    why_channels: str
    why_chunk: str


class SwitchPointJson(TypedDict):
    """From which size on another algorithm or protocol is chosen."""

    from_bytes: int
    choice: str


class SymmetricChoiceJson(TypedDict):
    """NCCL's choice for symmetric buffers at a size, or the reason for none.

    Attributes
    ----------
    channels : int
        CTAs.
    model_us : dict
        NCCL's estimate for every applicable kernel [us].
    """

    size_bytes: int
    why_not: NotRequired[str]
    kernel: NotRequired[str]
    algorithm: NotRequired[str]
    channels: NotRequired[int]
    model_us: NotRequired[dict[str, float]]


class ExplainJson(TypedDict):
    """NCCL's decisions on a system.

    Attributes
    ----------
    includes : str
        Components of the times.
    compute_capability : int
        The lowest of its GPUs, in NCCL's notation: 90 is 9.0.
    ignored_env, plugin_env : list of str
        Variables without effect, and variables set by the network's plugin.
    graphs : dict
        Search results, by pattern.
    rings : list
        Of every channel, the ranks in order.
    ring_adapters : list
        Of every channel, the pairs of NICs by which it leaves and enters.
    nvls_heads : list
        Ranks whose memory the switches write to, by node.
    symmetric : list or None
        By size; None if buffers are not symmetric.
    """

    topology: str
    nccl_version: str
    library: str
    collective: str
    includes: str
    num_ranks: int
    num_nodes: int
    compute_capability: int
    cpu: str
    ignored_env: list[str]
    plugin_env: list[str]
    faults: list[str]
    notes: list[str]
    adapters: list[AdapterJson]
    graphs: dict[str, GraphJson]
    channels: ChannelsJson
    rings: list[list[int]]
    ring_adapters: list[list[list[int]]]
    trees: list[TreeJson]
    nvls_heads: list[list[int]]
    costs: list[CostJson]
    choices: list[ChoiceJson]
    switch_points: list[SwitchPointJson]
    symmetric: list[SymmetricChoiceJson] | None
