"""The form of a replay in JSON (`clusim.replays.report`)."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from clusim.results.diagnosis import VerdictJson
from clusim.results.resultjson import EndedJson


class OtherCallJson(TypedDict):
    """The same call on the other machine.

    Attributes
    ----------
    ratio : float
        Its time there over that on the machine itself.
    """

    time_us: float
    algorithm: str
    protocol: str
    channels: int
    ratio: float


class ReplayedCallJson(TypedDict):
    """A distinct call.

    Attributes
    ----------
    bytes : int
        Its size as nccl-tests counts it [bytes].
    count : int
        How often it was made.
    chosen_by : str
        Who chose algorithm and protocol: ``recording`` or ``tuner``.
    kernel_us, time_us : float
        Simulated; and with launching, as nccl-tests would report it [us].
    measured_us : float or None
        What the recording measured [us].
    error : float or None
        Predicted over measured time, less one; None also if the measured time is not that of the call: it includes
        waiting for ranks that did not record, or no GPU's memory is as fast.
    nccl_model_us : float or None
        What NCCL's own tuner expected [us]; None if it was not printed.
    granularity : str
        How it was simulated, if not in exact packets.
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
    """A communicator.

    Attributes
    ----------
    graphs : str
        Where its rings and trees come from.
    calls : int
        How many it made.
    time_us : float
        The sum of their times [us].
    """

    number: int
    ranks: int
    machines: int
    channels: int
    graphs: str
    calls: int
    time_us: float


class WireShareJson(TypedDict):
    """A wire and the share of the time in which it was busy."""

    wire: str
    busy: float


class ReplayJson(EndedJson):
    """A recorded job again; of a replay that was ended, the calls that were done, in time from the first on.

    Attributes
    ----------
    kind, source : str
        Format of the recording, and its files.
    machine : list of str
        How the machine was found.
    total_us : float
        From the first call to the end of the last [us].
    bounds_us : list of float or None
        Between which times that is, where not everything was simulated together [us].
    recorded_us, compute_us : float or None
        The same as recorded, and what of it computes [us]; None where that is not known.
    mean_abs_error : float or None
        Mean of the absolute errors of calls that were measured, as a share.
    other, other_total_us : str or None, float or None
        The other machine and the time on it [us].
    doubts : list of str
        Why the result may be of no use, and which option settles it.
    skipped : dict
        What was left out, and how often.
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
