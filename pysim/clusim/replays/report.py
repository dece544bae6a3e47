"""Result of a replay: calls, their bottleneck, and the JSON form.

Calls that were simulated in isolation are weighted by their counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NotRequired

from typing_extensions import TypedDict

from clusim.base.display import Columns, Shown, Summary
from clusim.base.terms.operations import bus_factor
from clusim.base.units import Rate, format_time, parse_rate
from clusim.hardware import GPUS
from clusim.results.diagnosis import (
    CauseKind,
    Key,
    Verdict,
    VerdictCause,
    VerdictJson,
    diagnose,
    remedied_ps,
    scaled,
)
from clusim.results.resultjson import EndedJson, Unfinished


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


@cache
def fastest_memory() -> Rate:
    """Return the highest memory bandwidth of all known GPUs, in one direction."""
    rates = [parse_rate(str(chip.figures["memory_rate"].value)) for chip in GPUS.values()]
    return max(rates, key=lambda rate: rate.bytes_per_s)


@dataclass(frozen=True, slots=True)
class Other:
    """The same call on the other system."""

    time_ps: int
    algorithm: str
    protocol: str
    channels: int


@dataclass(slots=True)
class CallResult:
    """Distinct call of a replay.

    Attributes
    ----------
    count : int
        Number of times the job issued it.
    kernel_ps, time_ps : int
        Simulated kernel time, and time with launch overhead as nccl-tests reports it [ps].
    measured_us : float or None
        Time measured by the recording [us].
    model_us : float
        Time expected by NCCL's tuner [us]; -1 if it was not printed.
    from_log : bool
        True if algorithm and protocol are the recording's.
    verdict : Verdict or None
        Bottleneck of its kernel; None unless that was simulated in isolation.
    recorded_by : int
        Minimum number of ranks that recorded `measured_us`; -1 for a benchmark. If only part of the ranks recorded,
        the time includes waiting for the others and is only an upper bound of the call's time.
    """

    comm: int
    num_ranks: int
    operation: str
    bytes: int
    dtype: str
    count: int
    algorithm: str
    protocol: str
    channels: int
    kernel_ps: int
    time_ps: int
    from_log: bool = False
    measured_us: float | None = None
    model_us: float = -1.0
    note: str = ""
    other: Other | None = None
    granularity: str = ""
    verdict: Verdict | None = None
    recorded_by: int = -1

    @property
    def waits(self) -> bool:
        """True if the measured time includes waiting for ranks that did not record."""
        return bool(self.measured_us) and 0 <= self.recorded_by < self.num_ranks

    @property
    def impossible(self) -> bool:
        """True if no GPU's memory could read or write the data in the measured time."""
        if not self.measured_us or self.num_ranks < 2:
            return False
        least = self.bytes * (self.num_ranks - 1) / self.num_ranks
        return least / self.measured_us > fastest_memory().bytes_per_s / 1e6

    @property
    def algbw(self) -> float:
        """Size divided by time [GB/s]."""
        return self.bytes / self.time_ps * 1000

    @property
    def busbw(self) -> float:
        """Bus bandwidth as in nccl-tests [GB/s]."""
        return self.algbw * bus_factor(self.operation, self.num_ranks)

    @property
    def error(self) -> float | None:
        """Predicted over measured time, less one; None if the measured time is not comparable."""
        if not self.measured_us or self.impossible:
            return None
        error = self.time_ps / 1e6 / self.measured_us - 1
        return None if self.waits and error <= 0 else error

    def to_json(self) -> ReplayedCallJson:
        """Return plain values: times in us, bandwidths in GB/s."""
        result: ReplayedCallJson = {
            "communicator": self.comm,
            "ranks": self.num_ranks,
            "operation": self.operation,
            "bytes": self.bytes,
            "dtype": self.dtype,
            "count": self.count,
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "channels": self.channels,
            "chosen_by": "recording" if self.from_log else "tuner",
            "kernel_us": self.kernel_ps / 1e6,
            "time_us": self.time_ps / 1e6,
            "algbw_GBps": round(self.algbw, 4),
            "busbw_GBps": round(self.busbw, 4),
            "measured_us": self.measured_us,
            "error": None if self.error is None else round(self.error, 6),
            "nccl_model_us": None if self.model_us < 0 else self.model_us,
        }
        if self.note:
            result["note"] = self.note
        if self.granularity:
            result["granularity"] = self.granularity
        if self.other is not None:
            result["other"] = {
                "time_us": self.other.time_ps / 1e6,
                "algorithm": self.other.algorithm,
                "protocol": self.other.protocol,
                "channels": self.other.channels,
                "ratio": round(self.other.time_ps / self.time_ps, 6),
            }
        return result


@dataclass(slots=True)
class CommResult:
    """Communicator: source of its rings and trees, its calls and the sum of their times [ps]."""

    number: int
    num_ranks: int
    hosts: int
    channels: int
    used: str
    calls: int = 0
    time_ps: int = 0
    other_ps: int = 0

    def to_json(self) -> ReplayedCommJson:
        """Return plain values: times in us."""
        return {
            "number": self.number,
            "ranks": self.num_ranks,
            "machines": self.hosts,
            "channels": self.channels,
            "graphs": self.used,
            "calls": self.calls,
            "time_us": self.time_ps / 1e6,
        }


@dataclass(slots=True, repr=False)
class Replay(Shown):
    """Result of a replay.

    Attributes
    ----------
    kind : str
        Format of the recording.
    machine : list of str
        How the system was found.
    total_ps, other_ps : int
        Time from the first call to the end of the last, on the system and on the other one [ps].
    recorded_ps : int
        The same as recorded; -1 if unknown.
    wires : list of (name, share)
        Busiest wires and the part of the time in which they are busy.
    faults : list of str
        Faults, and the rates that they change.
    family : str
        Architecture of the oldest GPU.
    doubts : list of str
        Why the result may be unusable, and which option settles it.
    bounds_ps : tuple of int or None
        Bounds of `total_ps`, if not everything was simulated together [ps].
    verdict : Verdict or None
        Bottleneck of the job, or of its calls in sequence.
    unfinished : Unfinished or None
        Progress of a replay that was ended early: `calls` are those completed, `total_calls` the number of
        completed calls from the start of the job, and `total_ps` their time.
    """

    kind: str
    source: str
    fabric: str
    num_ranks: int
    num_machines: int
    version: str
    machine: list[str] = field(default_factory=list)
    calls: list[CallResult] = field(default_factory=list)
    comms: list[CommResult] = field(default_factory=list)
    total_calls: int = 0
    total_ps: int = 0
    other: str = ""
    other_ps: int = 0
    recorded_ps: int = -1
    compute_ps: int = -1
    wires: list[tuple[str, float]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    family: str = ""
    doubts: list[str] = field(default_factory=list)
    bounds_ps: tuple[int, int] | None = None
    verdict: Verdict | None = None
    unfinished: Unfinished | None = None

    def summary(self) -> Summary:
        """Return job, system and time."""
        said = [f"{self.total_calls:,} calls", format_time(self.total_ps)]
        rows = {"format": self.kind, "release": self.version, "time": said[1]}
        if self.recorded_ps >= 0:
            rows["recorded"] = format_time(self.recorded_ps)
            said.append(f"{rows['recorded']} recorded")
        if self.other:
            rows[f"on {self.other}"] = format_time(self.other_ps)
        rows |= {f"busiest wire {name}": f"{part:.1%} of the time" for name, part in self.wires[:3]}
        title = f"{self.source} on {self.num_ranks} ranks of {self.fabric}"
        return Summary(title, tuple(said), " ".join([*self.doubts, *self.notes]), rows)

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return its distinct calls and its communicators, as in JSON.

        Times are in us, bandwidths in 10^9 bytes/s.
        """
        return {
            "calls": lambda: _columns([call.to_json() for call in self.calls]),
            "communicators": lambda: _columns([comm.to_json() for comm in self.comms]),
        }

    def to_json(self) -> ReplayJson:
        """Return the numbers for scripts."""
        errors = [abs(c.error) for c in self.calls if c.error is not None]
        ended: EndedJson = {}
        if self.unfinished is not None:
            ended = self.unfinished.to_json(self.total_ps, 0.0)
        return {
            **ended,
            "kind": self.kind,
            "source": self.source,
            "fabric": self.fabric,
            "machine": self.machine,
            "ranks": self.num_ranks,
            "machines": self.num_machines,
            "nccl_version": self.version,
            "communicators": [comm.to_json() for comm in self.comms],
            "calls": [call.to_json() for call in self.calls],
            "total_calls": self.total_calls,
            "total_us": self.total_ps / 1e6,
            "bounds_us": None if self.bounds_ps is None else [at / 1e6 for at in self.bounds_ps],
            "recorded_us": None if self.recorded_ps < 0 else self.recorded_ps / 1e6,
            "compute_us": None if self.compute_ps < 0 else self.compute_ps / 1e6,
            "mean_abs_error": round(sum(errors) / len(errors), 6) if errors else None,
            "other": self.other or None,
            "other_total_us": self.other_ps / 1e6 if self.other else None,
            "busiest_wires": [{"wire": name, "busy": round(part, 6)} for name, part in self.wires],
            "verdict": None if self.verdict is None else self.verdict.to_json(),
            "faults": self.faults,
            "doubts": self.doubts,
            "notes": self.notes,
            "skipped": self.skipped,
        }


def _columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return rows as columns; missing values are None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def calls_verdict(calls: Sequence[CallResult]) -> Verdict:
    """Return the time breakdown of a job's calls in sequence.

    Time between kernels is launch overhead; kernels that were not analysed are unattributed.
    """
    total = sum(call.time_ps * call.count for call in calls)
    told = [call for call in calls if call.verdict is not None and call.verdict.causes]
    if not told:
        return Verdict(total, (), basis="no call was analysed")
    sums: Counter[Key] = Counter()
    saving_ps: Counter[Key] = Counter()
    also: dict[Key, dict[str, str]] = defaultdict(dict)
    for call in calls:
        kernel = call.verdict or Verdict(0, ())
        kernel_ps = min(call.kernel_ps, call.time_ps)
        parts = scaled(kernel.parts, kernel_ps)
        parts[CauseKind.LAUNCH, "between kernels"] = call.time_ps - kernel_ps
        parts[CauseKind.OTHER, ""] = call.time_ps - sum(parts.values())
        known = {(cause.kind, cause.what): cause for cause in kernel.causes}
        for key, ps in parts.items():
            cause = known.get(key, VerdictCause(*key, (), ps))
            saving = remedied_ps(key[0], ps) if cause.saving_ps is None else cause.saving_ps
            sums[key] += ps * call.count
            saving_ps[key] += saving * call.count
            also[key] |= {link.rpartition(" (")[0]: link for link in cause.also}
    order = sorted(sums, key=lambda key: (-saving_ps[key], -sums[key], key))

    def cause_of(key: Key) -> VerdictCause:
        return VerdictCause(*key, (), sums[key], saving_ps[key], also=tuple(also[key].values()))

    verdict = diagnose((), {key: sums[key] for key in order if sums[key]}, cause_of)
    return replace(verdict, basis="the critical paths of calls, each in isolation")
