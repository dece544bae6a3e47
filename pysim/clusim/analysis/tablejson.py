"""The forms of what analyses say in JSON: facts about the whole, notes, and rows with a key for each column."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from clusim.analysis.limits import ClassTraffic, Limit, TierTraffic
from clusim.base.json_schema import FieldsOf
from clusim.results.diagnosis import VerdictJson


class BrokenWireJson(TypedDict):
    """A wire that a fault touched: its rate, and what was left of it on average [10^9 bytes/s]."""

    name: str
    rate_GBps: float
    effective_GBps: float


class LimitsJson(TypedDict):
    """Traffic over the wires of a run.

    Attributes
    ----------
    machines : int
        How many machines the fabric joins.
    limit : object or None
        The wire that was busy longest; None if nothing crossed any.
    tiers, classes : list
        What crossed each tier, and each class of wires.
    broken_wires : list
        Those that faults touched.
    """

    machines: int
    limit: Annotated[dict[str, Any], FieldsOf(Limit)] | None
    tiers: list[Annotated[dict[str, Any], FieldsOf(TierTraffic)]]
    classes: list[Annotated[dict[str, Any], FieldsOf(ClassTraffic)]]
    broken_wires: list[BrokenWireJson]


class LatencyJson(TypedDict):
    """Latency of messages, from their due time until their last byte is visible.

    Attributes
    ----------
    messages : int
        How many arrived.
    throughput_GBps, per_source_GBps : float
        Payload over the whole time, of all sources together and of one on average [10^9 bytes/s].
    """

    messages: int
    message_bytes: int
    throughput_GBps: float
    per_source_GBps: float
    latency_mean_ps: float
    latency_p50_ps: int
    latency_p90_ps: int
    latency_p99_ps: int
    latency_p99_9_ps: int
    latency_max_ps: int


class _Answer(TypedDict):
    """Common keys of analyses.

    Attributes
    ----------
    time_ps : int
        Of the run [ps].
    complete : bool
        Whether it came to its end.
    notes : list of str
        What people should know, the most important first.
    """

    time_ps: int
    complete: bool
    notes: list[str]


_OfClass = TypedDict("_OfClass", {"class": str})


class CongestionRowJson(_OfClass):
    """A tier, a group of parallel wires that are used unevenly, or a wire.

    Attributes
    ----------
    level : str
        ``tier``, ``group`` or ``wire``.
    wires : int
        How many it stands for.
    busy, peak : float
        Part of the run in which it served packets, and of the fullest time bin.
    no_credit, contended : float
        Parts of the run in which it stood still for want of credit, and in which a packet waited while another was
        served.
    full : float
        Part of the run in bins at least 95% busy.
    imbalance : float
        The busiest wire over the mean of its tier or group.
    sources : int
        Endpoints whose traffic may cross it; 0 where they are not counted.
    bytes : int
        What crossed it [bytes].
    """

    level: str
    name: str
    wires: int
    rate_GBps: float
    busy: float
    peak: float
    no_credit: float
    contended: float
    queue_max_bytes: int
    full: float
    imbalance: float
    sources: int
    bytes: int


class CongestionJson(_Answer):
    """Use of wires, the busiest first."""

    rows: list[CongestionRowJson]


class HistoryRowJson(TypedDict):
    """A wire, or a tier as the mean of its wires, in a time bin; shares are those of the bin.

    Attributes
    ----------
    level : str
        ``tier`` or ``wire``.
    busy, no_credit, contended : float
        Parts in which it served packets, stood still for want of credit, and let a packet wait while it served another.
    bytes : int
        What crossed it [bytes].
    """

    level: str
    name: str
    start_ps: int
    end_ps: int
    busy: float
    no_credit: float
    contended: float
    bytes: int
    queue_bytes: int


class HistoryJson(TypedDict):
    """Use of wires over time."""

    time_ps: int
    notes: list[str]
    rows: list[HistoryRowJson]


class OverlapRowJson(TypedDict):
    """Compute and communication of all ranks in the mean, of a rank, of one of its streams, or of a kind of calls.

    Attributes
    ----------
    level, of : str
        What it is a row of, and which.
    compute_ps, communication_ps, both_ps, neither_ps : int
        Time with either, with both and with none [ps].
    exposed_ps : int
        Communication that nothing hides [ps].
    worst_rank : int
        Where most of it is exposed.
    """

    level: str
    of: str
    ranks: int
    compute_ps: int
    communication_ps: int
    both_ps: int
    neither_ps: int
    exposed_ps: int
    worst_rank: int


class OverlapJson(_Answer):
    """Overlap of compute and communication."""

    rows: list[OverlapRowJson]


class BlameRowJson(_OfClass):
    """Something that the critical path was charged to.

    Attributes
    ----------
    group : str
        ``stall``, ``cost`` (latencies and fixed costs) or ``work``.
    share : float
        Its part of the run, 0 to 1.
    steps : int
        Steps of the path that it has.
    wires : list of str
        Links that stalled it.
    """

    group: str
    resource: str
    reason: str
    time_ps: int
    share: float
    steps: int
    wires: list[str]


class BlameJson(_Answer):
    """Time breakdown of a run along its critical path.

    Attributes
    ----------
    simulated_ps : int
        Of the run with its first stalled link mended, if that was simulated [ps].
    """

    stall_ps: int
    cost_ps: int
    work_ps: int
    simulated_ps: NotRequired[int]
    rows: list[BlameRowJson]


class StepRowJson(TypedDict):
    """A step of the critical path.

    Attributes
    ----------
    kind : str
        ``transfer``, ``pace``, ``fixed``, ``flight``, ``tail``, ``head``, ``launch``, ``slot``, ``kernel``,
        ``delay`` or ``task``.
    rank, channel, slice, peer : int
        -1 where there is none; the peer is the rank at the other end of the connection.
    wire : str
        Which the data crossed last; empty for none.
    """

    start_ps: int
    end_ps: int
    time_ps: int
    kind: str
    rank: int
    task: str
    channel: int
    slice: int
    primitive: str
    wire: str
    peer: int


class PathJson(_Answer):
    """The critical path: steps whose times add up to the run.

    Attributes
    ----------
    kinds_ps : dict
        Time by kind of step [ps].
    """

    steps: int
    kinds_ps: dict[str, int]
    rows: list[StepRowJson]


class EstimatedJson(TypedDict):
    """Estimated time of a run with faster hardware.

    Attributes
    ----------
    what, factor : str
        What, and by how much: ``x2``.
    time_ps, estimate_ps : int
        Of the run as it was, and with it, in first order [ps].
    simulated_ps : int
        With it, if that was simulated [ps].
    """

    what: str
    factor: str
    time_ps: int
    estimate_ps: int
    simulated_ps: NotRequired[int]


class EstimateJson(EstimatedJson):
    """Estimated time of a run with faster hardware; the one row has the same numbers."""

    notes: list[str]
    rows: list[EstimatedJson]


class PipelineRowJson(TypedDict):
    """Kernels of a rank over the run.

    Attributes
    ----------
    bubble_ps : int
        Time without a kernel [ps].
    bubble : float
        The same as a part of the run.
    fill_ps, drain_ps, gaps_ps : int
        Of it, before the first kernel, after the last and between [ps].
    waits_exposed_ps : int
        Of it, with communication [ps].
    """

    rank: int
    compute_ps: int
    bubble_ps: int
    bubble: float
    fill_ps: int
    drain_ps: int
    gaps_ps: int
    gaps: int
    waits_exposed_ps: int
    kernels: int


class PipelineJson(_Answer):
    """Bubbles of every rank."""

    rows: list[PipelineRowJson]


class CollectiveRowJson(TypedDict):
    """A collective call; bandwidths count from the start of its last rank, and are 0 of one that did not end.

    Attributes
    ----------
    times : int
        How often it was done: the calls of a folded block are one row, with the start and end of the first.
    skew_ps : int
        How much later the last rank started than the first [ps].
    limit, limit_busy, bound_GBps : str, float, float
        The wire that was busiest meanwhile, the part in which it was, and the bus bandwidth if it were never idle
        [10^9 bytes/s].
    exposed_ps : int
        What no kernel hides, in the mean over ranks [ps].
    """

    call: int
    operation: str
    algorithm: str
    protocol: str
    dtype: str
    size_bytes: int
    ranks: int
    channels: int
    stream: str
    times: int
    start_ps: int
    end_ps: int
    time_ps: int
    skew_ps: int
    algbw_GBps: float
    busbw_GBps: float
    limit: str
    limit_busy: float
    bound_GBps: float
    exposed_ps: int


class CollectivesJson(_Answer):
    """Collective calls in the order of their start; `collectives` counts each as often as it was done."""

    collectives: int
    rows: list[CollectiveRowJson]


class MemoryRowJson(TypedDict):
    """The use of an endpoint's memory; shares are parts of what it could move in the run.

    Attributes
    ----------
    rank : int
        -1 where it is none.
    communication, kernels, left : float
        Shares of both, and what they left.
    peak : float
        Share of communication in its fullest time bin, which starts at `peak_at_ps`.
    """

    endpoint: str
    rank: int
    rate_GBps: float
    communication_bytes: int
    communication_GBps: float
    communication: float
    peak: float
    peak_at_ps: int
    kernel_bytes: int
    kernel_GBps: float
    kernels: float
    left: float


class MemoryJson(_Answer):
    """Use of memories."""

    rows: list[MemoryRowJson]


class DiffRowJson(TypedDict):
    """Something that two runs have in common.

    Attributes
    ----------
    level : str
        ``run``, ``phase`` (tasks of one name), ``blame`` (what the critical path was charged to), ``tier`` or ``wire``
        (busy time).
    change_ps : int
        How much longer it is in B [ps].
    """

    level: str
    name: str
    a_ps: int
    b_ps: int
    change_ps: int


class DiffJson(TypedDict):
    """Run B against run A, the largest changes first."""

    time_a_ps: int
    time_b_ps: int
    complete: bool
    verdict_a: VerdictJson
    verdict_b: VerdictJson
    notes: list[str]
    rows: list[DiffRowJson]
