"""A run's numbers in JSON (`clusim.results.result.Result.to_json`), and partial results.

A result is partial if its run was ended early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NotRequired

from typing_extensions import TypedDict

from clusim.base.errors import TimeLimitReached
from clusim.base.units import format_time


class EndedJson(TypedDict):
    """Progress of a run that was ended early.

    Attributes
    ----------
    complete : bool
        False: it was ended.
    ended_by : str
        Reason for its end.
    part_done : float
        Share of the work that was done, an estimate from 0 to 1.
    least_time_ps : int
        Lower limit of the time of the complete run [ps].
    expected_time_ps : int or None
        Time of the complete run at the same progress [ps]; None if the progress was too small.
    simulated_ps_per_s : int or None
        Simulated time per second of wall-clock time [ps/s].
    """

    complete: NotRequired[bool]
    ended_by: NotRequired[str]
    part_done: NotRequired[float]
    least_time_ps: NotRequired[int]
    expected_time_ps: NotRequired[int | None]
    simulated_ps_per_s: NotRequired[int | None]


class CallJson(TypedDict):
    """Keys of a run that is one collective.

    Attributes
    ----------
    algbw_GBps, busbw_GBps : float or None
        As nccl-tests defines them [10^9 bytes/s]; None if the run was ended.
    collective, algorithm, protocol, dtype : str
        Simulated collective, in clusim's spelling.
    size_bytes : int
        As nccl-tests counts it [bytes].
    ranks, channels : int
        Number of participants.
    includes : str
        Content of `time_ps`.
    launched_us : float or None
        Time with launch overhead, as nccl-tests reports it [us]; None if unknown.
    model_time_us : float or None
        Estimate of NCCL's tuner [us]; None if NCCL did not choose.
    """

    algbw_GBps: NotRequired[float | None]
    busbw_GBps: NotRequired[float | None]
    collective: NotRequired[str]
    algorithm: NotRequired[str]
    protocol: NotRequired[str]
    dtype: NotRequired[str]
    size_bytes: NotRequired[int]
    ranks: NotRequired[int]
    channels: NotRequired[int]
    includes: NotRequired[str]
    launched_us: NotRequired[float | None]
    model_time_us: NotRequired[float | None]


class MovedJson(TypedDict):
    """Work of the engine, and its speed.

    Attributes
    ----------
    packets, packet_hops, grants : int or None
        Simulated traffic; None for an extrapolated time.
    packet_hops_per_s, grants_per_s : int or None
        Per second of wall-clock time; None for a run that was ended.
    wall_s : float or None
        Wall-clock time of the engine [s]; None for a run that was ended.
    fingerprint : str or None
        Hash of the event sequence, 16 hexadecimal digits; None for a run that was ended or extrapolated.
    followed : str or None
        Runs from which the time was extrapolated; None if it was simulated in full.
    """

    packets: int | None
    packet_hops: int | None
    grants: int | None
    packet_hops_per_s: int | None
    grants_per_s: int | None
    wall_s: float | None
    fingerprint: str | None
    followed: str | None


class ResultJson(EndedJson, CallJson, MovedJson):
    """Result of a run.

    Attributes
    ----------
    time_ps : int
        From its start to the end of the simulated work [ps].
    verified : bool or None
        True if the data are right; None if no data were simulated.
    fabric, engine : str
        Topology and engine of the run.
    granularity : str
        Requested granularity: a word or bytes.
    burst_packets : int
        Packets in a burst; 1 is exact.
    granularity_note : str
        Simulated granularity.
    error_bound : float or None
        Error limit of the granularity as a share of the time: 0 is exact; otherwise a limit that held for random
        systems and collectives. The limit of an extrapolated time is relative to the runs that were used. None if
        no limit is known.
    seed : int
        Seed of the random numbers.
    faults, notes : list of str
        Faults, and remarks on the plan.
    version : str
        Version of clusim.
    """

    time_ps: int
    verified: bool | None
    fabric: str
    engine: str
    granularity: str
    burst_packets: int
    granularity_note: str
    error_bound: float | None
    seed: int
    faults: list[str]
    notes: list[str]
    version: str


LEAST_PART = 0.01
"""Share of the work from which on the rest may be guessed."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Partial result of a run that was ended early.

    Attributes
    ----------
    why : str
        Reason for its end.
    part_done : float
        Share of the work that was done, an estimate from 0 to 1.
    least_ps : int
        Lower limit of the complete run [ps]: the simulated time, and the time in which the wires of the busiest
        endpoint transmit its data.
    """

    why: str
    part_done: float
    least_ps: int

    def words(self, time_ps: int) -> str:
        """Return the reason for the end of the run at `time_ps` [ps], in words."""
        at = f"{format_time(time_ps)} simulated, {self.part_done:.1%} of the work"
        return f"{self.why}: ended at {at}"

    def reached(self, where: str) -> TimeLimitReached:
        """Return the error of a result that needs this run; `where` names the run."""
        return TimeLimitReached(
            f"{self.why}: reached in {where}, of which {self.part_done:.0%} was done; use a longer limit"
        )

    def expected_ps(self, time_ps: int) -> int | None:
        """Return the time of the complete run at the same progress [ps]; None if unknown.

        It is unknown if hardly any work was done.
        """
        if self.part_done < LEAST_PART:
            return None
        return max(self.least_ps, round(time_ps / self.part_done))

    def to_json(self, time_ps: int, wall_s: float) -> EndedJson:
        """Return the progress of the run: `time_ps` [ps] simulated in `wall_s` [s]."""
        return {
            "complete": False,
            "ended_by": self.why,
            "part_done": round(self.part_done, 6),
            "least_time_ps": self.least_ps,
            "expected_time_ps": self.expected_ps(time_ps),
            "simulated_ps_per_s": round(time_ps / wall_s) if wall_s > 0 else None,
        }
