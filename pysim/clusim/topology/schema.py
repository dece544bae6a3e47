"""Schema of topology files, and of the hardware presets, which use the same keys.

A file defines graph nodes and links; types of chips, switches, links, formats and protocols are presets
by name or are defined in the file, each on top of a ``base``. `Topology.model_json_schema()` is the JSON
schema for editors.

Schema of ``network:`` and ``cluster:`` sections: nodes, and the network that joins them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from clusim.base.errors import one_line
from clusim.base.units import parse_size, parse_time
from clusim.topology.model import MOST_QUEUES, GdrLevel, P2pLevel, PathChoice
from clusim.topology.node import UNBOUNDED_BYTES
from clusim.topology.packets import PacketKind
from clusim.topology.quantities import (
    Amount,
    Bandwidth,
    Count,
    KindOrDefault,
    Latency,
    Length,
    LineTime,
    LinkRate,
    Order,
    PositiveSmallSize,
    Requester,
    Share,
    Size,
    SmallSize,
    Spec,
    Tier,
    Time,
    TrafficClass,
    Weight,
    base_or_mapping,
    default_of,
    example,
    no_drop,
    no_ecn,
    no_pfc,
    no_schedule,
    one_or_more,
    policy_or_mapping,
    positive_size,
    read_with,
    small_size,
)

NetworkKind = Literal[
    "single",
    "rail",
    "fat-tree",
    "superpod",
    "multi-plane",
    "dual-tor",
    "dragonfly",
    "torus",
]

NETWORK_KINDS: tuple[str, ...] = get_args(NetworkKind)

Radix = Annotated[int, Field(ge=2, le=65_536)]
Ratio = Annotated[float, Field(ge=0.01, le=1024)]


class LengthsSpec(Spec):
    """Cable lengths of each tier; by default the latency is that of the link type.

    ``nic`` is NIC to first switch; ``spine`` leaf to spine, ``core`` spine to core; ``local`` and ``global``
    are the links in and between the groups of a dragonfly; ``torus`` those between neighbours.
    """

    nic: Length | None = None
    spine: Length | None = None
    core: Length | None = None
    local: Length | None = None
    global_: Annotated[Length | None, Field(alias="global")] = None
    torus: Length | None = None


class NetworkSpec(Spec):
    """Network between nodes; all keys but the kind have a default that fits the nodes.

    In the file of a single node it is the usual network of such nodes.
    """

    kind: NetworkKind = "rail"
    link: str | None = None
    trunk: str | None = None
    switch: str | None = None
    spine_switch: str | None = None
    core_switch: str | None = None
    radix: Radix | None = None
    nics: Count | None = None
    rails: Count | None = None
    unit: Count | None = None
    levels: Annotated[int, Field(ge=1, le=3)] | None = None
    oversubscription: Ratio | None = None
    core_oversubscription: Ratio | None = None
    uplinks: Count | None = None
    spines: Annotated[int, Field(ge=0, le=65_536)] | None = None
    cores: Count | None = None
    groups: Count | None = None
    group_switches: Count | None = None
    switch_nics: Count | None = None
    global_links: Count | None = None
    local_links: Count | None = None
    shape: (
        Annotated[list[Count], one_or_more, Field(min_length=1, max_length=6)] | None
    ) = None
    torus_links: Count | None = None
    lengths: LengthsSpec | None = None

    def plain(self) -> dict[str, Any]:
        """Return the given keys as plain data, as in a file."""
        return self.model_dump(exclude_none=True, by_alias=True)


class ClusterSpec(Spec):
    """`nodes` nodes of one kind: `node` is a preset, or a file relative to the cluster's file."""

    node: Annotated[str, Field(min_length=1, max_length=1000)]
    nodes: Annotated[int, Field(ge=1, le=65_536)]
    network: NetworkSpec | None = None


class ChipSpec(Spec):
    """Endpoint chip: GPU, host or the DRAM of a host."""

    base: str | None = None
    architecture: str | None = None
    compute_capability: Annotated[float, Field(ge=1, le=99)] | None = None
    peer_access: bool | None = None
    memory: Size | None = None
    gemm_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    power: Annotated[float, Field(gt=0, le=100_000)] | None = None
    kernels: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    sms: Annotated[int, Field(ge=1, le=65_536)] | None = None
    cta_slots: Annotated[int, Field(ge=1, le=256)] | None = None
    write_latency: Latency | None = None
    read_latency: Latency | None = None
    response_latency: Latency | None = None
    memory_rate: Bandwidth | None = None
    memory_efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    memory_quantum: Annotated[Latency, Field(le=10**12)] | None = None
    l2: Size | None = None
    memory_per_delivered: Share | None = None
    memory_per_read: Share | None = None
    memory_per_injected: Share | None = None
    slowdown: Annotated[float, Field(ge=0.01, le=1024)] | None = None
    peak_flops: dict[str, Annotated[float, Field(gt=0)]] | None = None
    links: Annotated[int, Field(ge=0, le=65_536)] | None = None
    pcie_rate: Bandwidth | None = None


class PolicySpec(Spec):
    """Policy of a switch or of receivers, and its constants."""

    policy: str
    constants: dict[str, int | str] | None = None


class SwitchSpec(Spec):
    """Switch chip, PCIe switch or root complex; any of its keys creates the reduction unit."""

    base: str | None = None
    ports: Count | None = None
    latency: Latency | None = None
    store_and_forward: bool | None = None
    reduction_latency: Latency | None = None
    reduction_capacity: Size | None = None
    reduction_rate: Bandwidth | None = None
    reduction_slots: Annotated[int, Field(ge=1, le=65_536)] | None = None
    cpu: Annotated[str, Field(max_length=64)] | None = None
    peer_payload: Annotated[int, read_with(small_size), example("64B")] | None = None
    thread: Time | None = None
    thread_after: Time | None = None
    look: LineTime | None = None
    buffer: Amount | None = None
    path_policy: Annotated[PolicySpec | None, policy_or_mapping] = None
    tier: Tier | None = None


class RateControlSpec(Spec):
    """Reaction of a NIC to congestion marks: DCQCN, or a sender policy."""

    base: str | None = None
    policy: str | None = None
    constants: dict[str, int | str] | None = None
    receiver: Annotated[PolicySpec | None, policy_or_mapping] = None
    g: Annotated[float, Field(ge=0, le=1)] | None = None
    alpha_timer: Latency | None = None
    increase_timer: Latency | None = None
    cnp_interval: Time | None = None
    cnp_delay: Time | None = None
    byte_counter: Size | None = None
    additive: Bandwidth | None = None
    hyper: Bandwidth | None = None
    min_rate: Bandwidth | None = None
    fast_recovery: Annotated[int, Field(ge=1, le=1000)] | None = None
    kept: Annotated[float, Field(ge=0, le=1)] | None = None
    clamp: bool | None = None


class NicSpec(Spec):
    """NIC."""

    base: str | None = None
    latency: Latency | None = None
    mtu: (
        Annotated[int, read_with(positive_size), Field(le=65_536), example("4096")]
        | None
    ) = None
    gpudirect: bool | None = None
    post: Time | None = None
    eager: Size | None = None
    rendezvous: Time | None = None
    progress: Time | None = None
    progress_simple: Time | None = None
    control: Time | None = None
    control_flush: Time | None = None
    ack: Time | None = None
    completion: Time | None = None
    flush: Time | None = None
    transit: Time | None = None
    rate_control: Annotated[RateControlSpec | None, base_or_mapping] = None
    adaptive: bool | None = None
    reorder: Order | None = None
    retransmission: Literal["go-back-n", "selective"] | None = None
    timeout: Annotated[Time, Field(ge=1)] | None = None
    retries: Annotated[int, Field(ge=0, le=65_536)] | None = None
    traffic_class: TrafficClass | None = None
    speed: Bandwidth | None = None
    plugin: Literal["verbs", "sockets", "efa", "cxi", "fastrak", "tcpx"] | None = (
        None
    )
    plugin_latency: Time | None = None
    ports: Count | None = None


class FormatSpec(Spec):
    """Packet format.

    ``header``, ``control``, ``service`` and ``limit`` may differ per packet kind.
    """

    base: str | None = None
    flit: (
        Annotated[int, read_with(positive_size), Field(le=65_536), example("16B")]
        | None
    ) = None
    header: Annotated[dict[KindOrDefault, SmallSize], default_of] | None = None
    control: dict[PacketKind, Annotated[float, Field(ge=0, le=65_536)]] | None = None
    service: dict[PacketKind, Annotated[float, Field(ge=1, le=1024)]] | None = None
    payload: (
        dict[Requester, Annotated[int, read_with(small_size), Field(ge=1)]] | None
    ) = None
    limit: Annotated[dict[KindOrDefault, PositiveSmallSize], default_of] | None = (
        None
    )


class PfcSpec(Spec):
    """Pause thresholds of the receive buffer, per VC; ``none`` is an ``xoff`` of 0."""

    xoff: Amount
    xon: Amount | None = None


class EcnSpec(Spec):
    """Marks on packets that find a long queue; ``none`` is a ``max`` of 0."""

    min: Amount = 0
    max: Amount
    probability: Annotated[float, Field(ge=0, le=1)] = 1.0
    at: Literal["arrival", "departure"] = "arrival"


class DropSpec(Spec):
    """Drops of switches instead of pauses and credits; ``none`` is a ``queue`` of 0."""

    queue: Annotated[Amount, Field(le=UNBOUNDED_BYTES)] = UNBOUNDED_BYTES
    alpha: Annotated[float, Field(ge=0, le=1024)] = 0.0
    red: bool = False
    trim: Annotated[int, read_with(small_size), Field(le=65_536), example("64B")] = 0


class ScheduleSpec(Spec):
    """Order of the classes of traffic on a link, by their numbers; ``none`` serves all in turn."""

    priority: Annotated[list[TrafficClass], Field(max_length=7)] | None = None
    weights: Annotated[list[Weight], Field(max_length=7)] | None = None


class LinkTypeSpec(Spec):
    """Type of link, or the changes of one entry of ``links`` to its type."""

    base: str | None = None
    rate: LinkRate | None = None
    latency: Latency | None = None
    format: str | None = None
    buffer: Size | None = None
    replay: Time | None = None
    error_rate: Annotated[float, Field(ge=0, lt=1)] | None = None
    length: Length | None = None
    medium: Literal["fibre", "copper"] | None = None
    pfc: Annotated[PfcSpec | None, no_pfc] = None
    ecn: Annotated[EcnSpec | None, no_ecn] = None
    drop: Annotated[DropSpec | None, no_drop] = None
    schedule: Annotated[ScheduleSpec | None, no_schedule] = None
    queue_policy: Annotated[PolicySpec | None, policy_or_mapping] = None
    schedule_policy: Annotated[PolicySpec | None, policy_or_mapping] = None
    weight: Annotated[int, Field(ge=1, le=64)] | None = None
    class_: Annotated[
        str | None, Field(alias="class", min_length=1, max_length=64)
    ] = None


class ProtocolSpec(Spec):
    """CTA costs under one protocol."""

    base: str | None = None
    fixed: Time | None = None
    throughput: dict[str, Bandwidth] | None = None
    expand: Annotated[int, Field(ge=120, le=12_000)] | None = None
    tail_fence: Time | None = None
    head_fence: Time | None = None
    buffer: Size | None = None
    slots: Annotated[int, Field(ge=1, le=1024)] | None = None
    chunk_steps: Annotated[int, Field(ge=1, le=1024)] | None = None
    slice_steps: Annotated[int, Field(ge=1, le=1024)] | None = None
    grain: Size | None = None
    message_start: Time | None = None
    crowding: Annotated[float, Field(ge=0, le=100)] | None = None
    round: Time | None = None
    grid_start: Time | None = None


class NodeSpec(Spec):
    """Graph node, or a range of equal graph nodes (``gpu0..7``)."""

    kind: Literal["gpu", "host", "memory", "switch", "nic"]
    chip: str | None = None
    switch: str | None = None
    nic: str | None = None
    zone: Annotated[int, Field(ge=-1, le=65_536)] = 0
    latency: Latency | None = None
    store_and_forward: bool | None = None
    relay: bool = False
    tier: Tier | None = None


class LinkSpec(LinkTypeSpec):
    """Links between two nodes or two ranges of nodes."""

    from_: Annotated[str, Field(alias="from")]
    to: str
    pair: Literal["all", "zip", "blocks"] = "all"
    count: Annotated[list[Count], one_or_more] = Field(default_factory=lambda: [1])
    type: str | None = None
    dim: Annotated[int, Field(ge=0, le=15)] = 0
    dateline: Literal["none", "forward", "backward", "both"] = "none"


class PathSpec(Spec):
    """Switches that flows pass in order, to a NIC or from one NIC to another."""

    from_: Annotated[str, Field(alias="from", max_length=64)] = ""
    to: Annotated[str, Field(max_length=64)]
    via: Annotated[list[str], Field(min_length=2, max_length=64)]


class ForwardingSpec(Spec):
    """Choice among equal paths by the switches between nodes, and queue pairs of a connection."""

    choice: PathChoice = "auto"
    gap: Latency | None = None
    fields: Literal["five-tuple", "addresses", "queue-pair"] = "five-tuple"
    seeds: Literal["switch", "equal"] = "switch"
    ports: Literal["turn", "hash"] = "turn"
    paths: list[PathSpec] = Field(default_factory=list, max_length=65_536)
    queues: Annotated[int, Field(ge=1, le=MOST_QUEUES)] = 1
    split: bool = False


class FigureSpec(Spec):
    """Figure in place of one of the base's, with its origin."""

    value: str | int | float | dict[str, str | int | float]
    mark: Literal["calibrated", "assumed"]
    source: Annotated[str, Field(min_length=1)]
    bounds: str | list[str | int | float] | None = None


class LogsSpec(Spec):
    """Properties that logs of such nodes show and the topology does not."""

    buses: list[Annotated[int, Field(ge=0, le=255)]] = Field(
        default_factory=list, max_length=256
    )
    network: Literal["IB", "OFI", "FasTrak", "Socket", "none"] | None = None
    common: Annotated[int, Field(ge=0, le=1000)] = 0


_Skew = Annotated[
    int, read_with(parse_time), Field(ge=0, lt=2**40), example("100ns")
]


def _of_one_line(text: str) -> str:
    if one_line(text) != text:
        raise PydanticCustomError(
            "one_line", "a character that does not print; write one line of text"
        )
    return text


def _unit_name(text: str) -> str:
    if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", text) is None:
        raise PydanticCustomError(
            "unit_name",
            "must be small letters, digits and '-', such as superpod-h100",
        )
    return text


class Topology(Spec):
    """Complete topology file."""

    name: (
        Annotated[
            str, Field(min_length=1, max_length=200), AfterValidator(_of_one_line)
        ]
        | None
    ) = None
    description: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    base: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    figures: dict[str, FigureSpec] = Field(default_factory=dict)
    architecture: str | None = None
    p2p: Literal["read", "write"] | None = None
    window: (
        Annotated[int, read_with(parse_size), Field(lt=2**32), example("64KiB")]
        | None
    ) = None
    cta_skew: _Skew | None = None
    vcs: Annotated[int, Field(ge=1, le=16)] = 2
    p2p_level: P2pLevel = "pxb"
    gdr_level: GdrLevel = "pxb"
    gdr_read: bool = True
    acs: bool = False
    pxn: bool = True
    nvb: bool = True
    shm: bool = True
    nic_names: dict[
        str, Annotated[str, Field(pattern=r"^[\w.-]{1,64}(:[0-9]{1,3})?$")]
    ] = Field(default_factory=dict)
    routing: Literal["shortest", "dimension-order"] = "shortest"
    network_routing: Literal["shortest", "dimension-order"] = "shortest"
    forwarding: ForwardingSpec = Field(default_factory=ForwardingSpec)
    channels: dict[str, Annotated[int, Field(ge=1, le=256)]] = Field(
        default_factory=dict
    )
    rings: list[list[Annotated[int, Field(ge=0)]]] | None = None
    told_pcie: dict[
        str, Annotated[str, Field(pattern=r"^gen[1-7]-x(1|2|4|8|12|16|32)$")]
    ] = Field(default_factory=dict)
    told: dict[str, dict[str, Annotated[int, Field(ge=0, le=1024)]]] = Field(
        default_factory=dict
    )
    chips: dict[str, ChipSpec] = Field(default_factory=dict)
    switches: dict[str, SwitchSpec] = Field(default_factory=dict)
    formats: dict[str, FormatSpec] = Field(default_factory=dict)
    link_types: dict[str, LinkTypeSpec] = Field(default_factory=dict)
    nics: dict[str, NicSpec] = Field(default_factory=dict)
    protocols: dict[str, ProtocolSpec] = Field(default_factory=dict)
    nodes: Annotated[dict[str, NodeSpec], Field(min_length=1)] = Field(
        default_factory=dict
    )
    links: list[LinkSpec] = Field(default_factory=list)
    network: NetworkSpec | None = None
    cluster: ClusterSpec | None = None
    superpod: Annotated[str, AfterValidator(_unit_name)] | None = None
    logs: LogsSpec = Field(default_factory=LogsSpec)
    faults: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default_factory=list
    )
