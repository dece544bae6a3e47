"""JSON forms of nccl-tests (``-J``)."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from clusim.nccltests.table import PerfDevice
from clusim.results.diagnosis import Verdict
from clusim.simulation.expected import ErrorClass, UnknownError


class PerfConfigJson(TypedDict):
    """Arguments of the program, by the names of nccl-tests.

    Attributes
    ----------
    minimum_bytes, maximum_bytes : int
        Sizes [bytes].
    step_bytes, step_factor : int
        Increment [bytes] or factor from one size to the next.
    validation, graph : int
        As ``-c`` and ``-G``.
    """

    nthreads: int
    ngpus: int
    minimum_bytes: int
    maximum_bytes: int
    step_bytes: NotRequired[int]
    step_factor: NotRequired[int]
    warmup_iters: int
    iterations: int
    aggregated_iterations: int
    validation: int
    graph: int
    blocking_collectives: str
    parallel_init: str
    devices: list[PerfDevice]


class PerfHalfJson(TypedDict):
    """Out of place, or in place.

    Attributes
    ----------
    time, cpu_time : float
        Time of an iteration [us]; with ``-C`` the time of the host's thread.
    alg_bw, bus_bw : float
        As nccl-tests defines them [10^9 bytes/s].
    nwrong : float or None
        Wrong elements; None if they were not checked.
    """

    time: NotRequired[float]
    cpu_time: NotRequired[float]
    alg_bw: float
    bus_bw: float
    nwrong: float | None


class PerfResultJson(TypedDict):
    """A row of the table.

    Attributes
    ----------
    size : int
        As nccl-tests counts it [bytes].
    count : int
        Elements.
    root : str
        As printed; -1 without a root.
    granularity : str
        Granularity of the simulation.
    """

    size: int
    count: int
    type: str
    redop: str
    root: str
    out_of_place: PerfHalfJson
    in_place: PerfHalfJson
    actual_iterations: int
    experiment_name: str
    granularity: str


class OutOfBoundsJson(TypedDict):
    """Number of row halves with wrong values, and the result of the check."""

    count: int
    okay: str


class AverageBandwidthJson(TypedDict):
    """Mean bus bandwidth over all halves of rows.

    Attributes
    ----------
    bandwidth : float
        The mean [10^9 bytes/s].
    """

    bandwidth: float
    okay: str


class PerfJson(TypedDict):
    """Output of an nccl-tests program with ``-J``; clusim's keys follow `end_time`.

    Attributes
    ----------
    version : int
        Of the format.
    nccl_version : int
        As in NCCL's header: 22703 is 2.27.3.
    includes : str
        Scope of the times.
    expected_errors : list
        Expected errors of the rows, each once.
    verdicts : list
        Of every row, with ``--explain``.
    """

    version: int
    start_time: str
    args: list[str]
    env: list[str]
    nccl_version: int
    config: PerfConfigJson
    results: list[PerfResultJson]
    out_of_bounds: OutOfBoundsJson
    average_bus_bandwidth: AverageBandwidthJson
    errors: list[str]
    end_time: str
    includes: str
    faults: NotRequired[list[str]]
    notes: NotRequired[list[str]]
    expected_errors: list[ErrorClass | UnknownError]
    verdicts: NotRequired[list[Verdict]]
    doubts: NotRequired[list[str]]
