"""JSON form of analyses: facts on the run, notes, and rows with a key for each column."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from clusim.results.diagnosis import Verdict


class _Answer(TypedDict):
    """Common keys of analyses.

    Attributes
    ----------
    time_ps : int
        Time of the run [ps].
    complete : bool
        True if the run is complete.
    notes : list of str
        Remarks for the user, the most important first.
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
        Number of wires in the row.
    busy, peak : float
        Utilisation over the run, and in the busiest time bin.
    no_credit, contended : float
        Parts of the run in credit stalls, and in which a packet waited while another was served.
    full : float
        Part of the run in bins at least 95% busy.
    imbalance : float
        The busiest wire over the mean of its tier or group.
    sources : int
        Endpoints whose traffic may cross it; 0 if not counted.
    bytes : int
        Traffic [bytes].
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


class FlowUseRowJson(TypedDict):
    """A flow with rate control.

    Attributes
    ----------
    flow : str
        Its ends.
    control : str
        Sender policy, or ``DCQCN``.
    sent_bytes : int
        Payload [bytes].
    rate_GBps : float
        Payload over the time from its first to its last payload [10^9 bytes/s].
    line, held, marked : float
        Its rate as a share of its NIC's port; part of this time in which its policy held it; part of its payload
        that was marked.
    rtt_ps, window_bytes : int or None
        Medians of samples [ps, bytes]; None without notices, or an unlimited window.
    wire : str
        Fullest wire on its way.
    busy : float
        Utilisation of this wire in this time.
    queue_max_bytes : int
        Longest queue for this wire [bytes].
    """

    flow: str
    control: str
    sent_bytes: int
    rate_GBps: float
    line: float
    held: float
    marked: float
    rtt_ps: int | None
    window_bytes: int | None
    wire: str
    busy: float
    queue_max_bytes: int


class FlowUseJson(_Answer):
    """Flows with rate control in the order of their payload, the largest first."""

    rows: list[FlowUseRowJson]


class ServerRowJson(TypedDict):
    """Serial servers of a class; shares are parts of the run.

    Attributes
    ----------
    name : str
        Link class or hardware.
    servers : int
        Number of servers with work.
    busy, mean : float
        Busy share of the busiest server, and of the mean.
    full : int
        Servers that are busy for at least 90% of the run.
    busiest : str
        The busiest one; empty if others are as busy.
    remedies : str
        Changes of ``clusim what-if`` that accelerate them.
    """

    name: str
    servers: int
    busy: float
    mean: float
    full: int
    busiest: str
    remedies: str


class ServersJson(_Answer):
    """Serial servers by class, the fullest first."""

    rows: list[ServerRowJson]


class CongestionJson(_Answer):
    """Use of wires, the busiest first."""

    rows: list[CongestionRowJson]


class HistoryRowJson(TypedDict):
    """A wire, or a tier as the mean of its wires, in a time bin; shares are parts of the bin.

    Attributes
    ----------
    level : str
        ``tier`` or ``wire``.
    busy, no_credit, contended : float
        Parts in which it served packets, was in a credit stall, and let a packet wait while it served another.
    bytes : int
        Traffic [bytes].
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
    """Compute and communication of a rank, of one of its streams, or of calls.

    Attributes
    ----------
    level, of : str
        Kind of the row (``all`` is the mean over ranks), and its name.
    compute_ps, communication_ps, both_ps, neither_ps : int
        Time with either, with both and with neither [ps].
    exposed_ps : int
        Exposed communication [ps].
    worst_rank : int
        Rank with most exposed communication.
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
    """Segment of the critical path.

    Attributes
    ----------
    kind : str
        ``transfer``, ``pace``, ``fixed``, ``flight``, ``tail``, ``head``, ``launch``, ``slot``, ``kernel``,
        ``delay`` or ``task``.
    rank, channel, slice, peer : int
        -1 if not applicable; the peer is the rank at the other end of the connection.
    wire : str
        Last wire that the data crossed; empty if not applicable.
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
    """Critical path: segments whose times add up to the run.

    Attributes
    ----------
    kinds_ps : dict
        Time by kind of segment [ps].
    """

    steps: int
    kinds_ps: dict[str, int]
    rows: list[StepRowJson]


class EstimatedJson(TypedDict):
    """Estimated time of a run with faster hardware.

    Attributes
    ----------
    what, factor : str
        Scaled resource, and its factor: ``x2``.
    time_ps, estimate_ps : int
        Time of the run, and critical-path estimate of the changed time [ps].
    simulated_ps : int
        Re-simulated time with the change; only if simulated [ps].
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
        Parts of the bubble before the first kernel, after the last and between kernels [ps].
    waits_exposed_ps : int
        Part of the bubble with communication [ps].
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
    """Collective call; bandwidths start at its last rank, 0 for a call that did not end.

    Attributes
    ----------
    times : int
        Number of repetitions: the calls of a replicated block are one row, with the start and end of the first.
    skew_ps : int
        Start of the last rank, relative to the start of the first [ps].
    limit, limit_busy, bound_GBps : str, float, float
        Busiest wire since then, its utilisation, and the bus bandwidth if it were never idle [10^9 bytes/s].
    exposed_ps : int
        Exposed communication, mean over ranks [ps].
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
    """Collective calls in the order of start; `collectives` counts all repetitions."""

    collectives: int
    rows: list[CollectiveRowJson]


class MemoryRowJson(TypedDict):
    """Use of an endpoint's memory, as shares of its capacity over the run.

    Attributes
    ----------
    rank : int
        -1 if the endpoint has no rank.
    communication, kernels, left : float
        Shares of communication and kernels, and the unused rest.
    peak : float
        Share of communication in its busiest time bin, which starts at `peak_at_ps`.
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
    """Comparison of one item of two runs.

    Attributes
    ----------
    level : str
        ``run``, ``phase`` (tasks of one name), ``blame`` (time breakdown of the critical path), ``tier`` or ``wire``
        (busy time).
    change_ps : int
        Time in B minus time in A [ps].
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
    verdict_a: Verdict
    verdict_b: Verdict
    notes: list[str]
    rows: list[DiffRowJson]
