"""JSON form of a replay (`clusim.replays.report`)."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from clusim.results.diagnosis import VerdictJson
from clusim.results.resultjson import EndedJson


class OtherCallJson(TypedDict):
    """The same call on the other system.

    Attributes
    ----------
    ratio : float
        Time on the other system over the time on the first.
    """

    time_us: float
    algorithm: str
    protocol: str
    channels: int
    ratio: float


class ReplayedCallJson(TypedDict):
    """Distinct call of a replay.

    Attributes
    ----------
    bytes : int
        Size as counted by nccl-tests [bytes].
    count : int
        Number of times the job issued it.
    chosen_by : str
        Source of algorithm and protocol: ``recording`` or ``tuner``.
    kernel_us, time_us : float
        Simulated kernel time, and time with launch overhead as nccl-tests reports it [us].
    measured_us : float or None
        Time measured by the recording [us].
    error : float or None
        Predicted over measured time, less one; None also if the measured time is not that of the call: it includes
        waiting for ranks that did not record, or no GPU's memory is as fast.
    nccl_model_us : float or None
        Time expected by NCCL's tuner [us]; None if it was not printed.
    granularity : str
        Granularity, if not exact packets.
    """

    communicator: int
    ranks: int
    operation: str
    bytes: int
    dtype: str
    count: int
    algorithm: str
    protocol: str
    channels: int
    chosen_by: str
    kernel_us: float
    time_us: float
    algbw_GBps: float
    busbw_GBps: float
    measured_us: float | None
    error: float | None
    nccl_model_us: float | None
    note: NotRequired[str]
    granularity: NotRequired[str]
    other: NotRequired[OtherCallJson]


class ReplayedCommJson(TypedDict):
    """Communicator of a replay.

    Attributes
    ----------
    graphs : str
        Source of its rings and trees.
    calls : int
        Number of its calls.
    time_us : float
        Sum of their times [us].
    """

    number: int
    ranks: int
    machines: int
    channels: int
    graphs: str
    calls: int
    time_us: float


class WireShareJson(TypedDict):
    """Wire, and the share of time in which it was busy."""

    wire: str
    busy: float


class ReplayJson(EndedJson):
    """Result of a replay; if ended early, with the calls completed from the start of the job.

    Attributes
    ----------
    kind, source : str
        Format of the recording, and its files.
    machine : list of str
        How the system was found.
    total_us : float
        Time from the first call to the end of the last [us].
    bounds_us : list of float or None
        Bounds of that time, if not everything was simulated together [us].
    recorded_us, compute_us : float or None
        The same as recorded, and the compute time in it [us]; None if unknown.
    mean_abs_error : float or None
        Mean of the absolute errors of measured calls, as a share.
    other, other_total_us : str or None, float or None
        The other system and the time on it [us].
    doubts : list of str
        Why the result may be unusable, and which option settles it.
    skipped : dict
        Entries that were skipped -> number of them.
    """

    kind: str
    source: str
    fabric: str
    machine: list[str]
    ranks: int
    machines: int
    nccl_version: str
    communicators: list[ReplayedCommJson]
    calls: list[ReplayedCallJson]
    total_calls: int
    total_us: float
    bounds_us: list[float] | None
    recorded_us: float | None
    compute_us: float | None
    mean_abs_error: float | None
    other: str | None
    other_total_us: float | None
    busiest_wires: list[WireShareJson]
    verdict: VerdictJson | None
    faults: list[str]
    doubts: list[str]
    notes: list[str]
    skipped: dict[str, int]
