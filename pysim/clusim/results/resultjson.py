"""Parts of a result (`clusim.results.result.Result`) and its JSON; partial results.

A result is partial if its run was ended early.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusim.base.errors import TimeLimitReached
from clusim.base.json_schema import JsonObject, Round3, Round6
from clusim.base.records import dataclass
from clusim.base.units import format_size, format_time


@dataclass(frozen=True, slots=True)
class Ended(JsonObject):
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

    complete: bool
    ended_by: str
    part_done: Round6
    least_time_ps: int
    expected_time_ps: int | None
    simulated_ps_per_s: int | None


@dataclass(frozen=True, slots=True)
class InOrderNic(JsonObject):
    """Price of order at a NIC, or an endpoint without NICs, that accepts packets in order only.

    Attributes
    ----------
    nic : str
        Graph node.
    packets, early : int
        Packets or bursts that arrived for it, and those out of order: kept or dropped.
    repeats : int
        Packets or bursts that it sent again.
    kept_max_bytes : int
        Most payload that it kept until earlier packets arrived [bytes].
    repeated_bytes : int
        Payload that it sent again [bytes].
    timeouts : int
        Times without progress after which it repeated packets.
    timeout_ps : int
        Time in which one of its queue pairs waited for such a timeout [ps].
    trimmed : int
        Headers of trimmed packets or bursts that arrived.
    """

    nic: str
    packets: int
    early: int
    repeats: int
    kept_max_bytes: int
    repeated_bytes: int
    timeouts: int
    timeout_ps: int
    trimmed: int


def in_order_text(nics: Sequence[InOrderNic]) -> str:
    """Return the price of order at all NICs in words; empty without packets out of order."""
    names = ("packets", "early", "repeats", "timeouts", "trimmed")
    sums = (sum(getattr(nic, name) for nic in nics) for name in names)
    packets, early, repeats, timeouts, trimmed = sums
    if not early and not repeats:
        return ""
    buffered = format_size(max(nic.kept_max_bytes for nic in nics))
    text = f"{early:,} of {packets:,} early ({early / max(1, packets):.1%}), {repeats:,} repeated"
    more = ((timeouts, "timeouts"), (trimmed, "headers"))
    causes = ", ".join(f"{count:,} {word}" for count, word in more if count)
    return f"{text}{f' ({causes})' if causes else ''}, at most {buffered} kept"


@dataclass(frozen=True, slots=True)
class Call(JsonObject):
    """Requested collective.

    Attributes
    ----------
    collective, algorithm, protocol, dtype : str
        Simulated collective, in clusim's spelling.
    size_bytes : int
        As nccl-tests counts it [bytes].
    ranks, channels : int
        Number of participants.
    """

    KEYS = (
        "collective=operation",
        "algorithm",
        "protocol",
        "dtype",
        "size_bytes",
        "ranks",
        "channels",
    )

    operation: str
    algorithm: str
    protocol: str
    dtype: str
    size_bytes: int
    ranks: int
    channels: int
    root: int = 0


@dataclass(frozen=True, slots=True)
class CallTimes(JsonObject):
    """Keys of a run that is one collective.

    Attributes
    ----------
    algbw_GBps, busbw_GBps : float or None
        As nccl-tests defines them [10^9 bytes/s]; None if the run was ended.
    includes : str
        Content of `time_ps`.
    launched_us : float or None
        Time with launch overhead, as nccl-tests reports it [us]; None if unknown.
    model_time_us : float or None
        Estimate of NCCL's tuner [us]; None if NCCL did not choose.
    """

    KEYS = (
        "algbw_GBps",
        "busbw_GBps",
        "*call",
        "includes",
        "launched_us",
        "model_time_us",
    )

    algbw_GBps: Round6 | None
    busbw_GBps: Round6 | None
    call: Call
    includes: str
    launched_us: float | None
    model_time_us: Round3 | None


@dataclass(frozen=True, slots=True)
class EngineWork(JsonObject):
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
    wall_s: Round6 | None
    fingerprint: str | None
    followed: str | None


@dataclass(frozen=True, slots=True)
class BusyWire(JsonObject):
    """Wire, and the share of time in which it was busy."""

    wire: str
    busy: Round6


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

    def limit_error(self, where: str) -> TimeLimitReached:
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

    def progress_at(self, time_ps: int, wall_s: float) -> Ended:
        """Return the progress of the run: `time_ps` [ps] simulated in `wall_s` [s]."""
        speed = round(time_ps / wall_s) if wall_s > 0 else None
        expected_ps = self.expected_ps(time_ps)
        return Ended(
            False, self.why, self.part_done, self.least_ps, expected_ps, speed
        )
