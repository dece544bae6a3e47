"""Result of a replay: calls, their bottleneck, and the JSON form.

Calls that were simulated in isolation are weighted by their counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any

from clusim.base.display import Columns, Shown, Summary
from clusim.base.json_schema import IfKnown, JsonObject, Round6, Written
from clusim.base.terms.operations import bus_factor
from clusim.base.units import Rate, format_time, parse_rate
from clusim.hardware import GPUS
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import (
    CauseResource,
    Census,
    Key,
    PartKey,
    VerdictCause,
    divide_time,
)
from clusim.results.diagnosis import ProvableVerdict, SplitSpan, Verdict, diagnose
from clusim.results.result import Result
from clusim.results.resultjson import BusyWire, Ended, Unfinished


@cache
def fastest_memory() -> Rate:
    """Return the highest memory bandwidth of all known GPUs, in one direction."""
    rates = [
        parse_rate(str(chip.figures["memory_rate"].value)) for chip in GPUS.values()
    ]
    return max(rates, key=lambda rate: rate.bytes_per_s)


@dataclass(frozen=True, slots=True)
class Other(JsonObject):
    """The same call on the other system.

    Attributes
    ----------
    ratio : float
        Time on the other system over the time on the first.
    """

    KEYS = ("time_us", "algorithm", "protocol", "channels", "ratio")

    time_ps: int
    algorithm: str
    protocol: str
    channels: int
    ratio: Round6

    @classmethod
    def of(cls, there: Any, first_ps: int) -> Other:
        """Return the timing of a call on the other system, against its time on the first one [ps]."""
        plan = (there.algorithm, there.protocol, there.channels)
        return cls(there.time_ps, *plan, there.time_ps / first_ps)


@dataclass(slots=True)
class CallResult(JsonObject):
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
    from_log : bool
        True if algorithm and protocol are the recording's.
    verdict : Verdict or None
        Bottleneck of its kernel; None unless that was simulated in isolation.
    recorded_by : int
        Minimum number of ranks that recorded `measured_us`; -1 for a benchmark. If only part of the ranks recorded,
        the time includes waiting for the others and is only an upper bound of the call's time.
    """

    KEYS = (
        "communicator",
        "ranks",
        "operation",
        "bytes",
        "dtype",
        "count",
        "algorithm",
        "protocol",
        "channels",
        "chosen_by",
        "kernel_us",
        "time_us",
        "algbw_GBps",
        "busbw_GBps",
        "measured_us",
        "error",
        "nccl_model_us",
        "note",
        "granularity",
        "other",
    )

    communicator: int
    ranks: int
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
    nccl_model_us: float | None = None
    note: IfKnown[str] = ""
    other: IfKnown[Other | None] = None
    granularity: IfKnown[str] = ""
    verdict: Verdict | None = None
    recorded_by: int = -1

    @property
    def chosen_by(self) -> str:
        """Source of algorithm and protocol."""
        return "recording" if self.from_log else "tuner"

    @property
    def waits(self) -> bool:
        """True if the measured time includes waiting for ranks that did not record."""
        return bool(self.measured_us) and 0 <= self.recorded_by < self.ranks

    @property
    def impossible(self) -> bool:
        """True if no GPU's memory could read or write the data in the measured time."""
        if not self.measured_us or self.ranks < 2:
            return False
        min_bytes = self.bytes * (self.ranks - 1) / self.ranks
        return min_bytes / self.measured_us > fastest_memory().bytes_per_s / 1e6

    @property
    def algbw_GBps(self) -> Annotated[float, Written(4)]:
        """Size divided by time [GB/s]."""
        return self.bytes / self.time_ps * 1000

    @property
    def busbw_GBps(self) -> Annotated[float, Written(4)]:
        """Bus bandwidth as in nccl-tests [GB/s]."""
        return self.algbw_GBps * bus_factor(self.operation, self.ranks)

    @property
    def error(self) -> Round6 | None:
        """Predicted over measured time, less one; None if the measured time is not comparable."""
        if not self.measured_us or self.impossible:
            return None
        error = self.time_ps / 1e6 / self.measured_us - 1
        return None if self.waits and error <= 0 else error


@dataclass(slots=True)
class CommResult(JsonObject):
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

    KEYS = ("number", "ranks", "machines", "channels", "graphs", "calls", "time_us")

    number: int
    ranks: int
    machines: int
    channels: int
    graphs: str
    calls: int = 0
    time_ps: int = 0
    other_ps: int = 0


@dataclass(slots=True, repr=False)
class Replay(Shown, JsonObject):
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
    wires : list of (name, share)
        Busiest wires and the part of the time in which they are busy.
    family : str
        Architecture of the oldest GPU.
    judged : Result or ProvableVerdict or None
        Source of the verdict.
    unfinished : Unfinished or None
        Progress of a replay that was ended early: `calls` are those completed, `total_calls` the number of
        completed calls from the start of the job, and `total_ps` their time.
    """

    KEYS = (
        "*ended",
        "kind",
        "source",
        "fabric",
        "machine",
        "ranks",
        "machines",
        "nccl_version",
        "communicators",
        "calls",
        "total_calls",
        "total_us",
        "bounds_us",
        "recorded_us",
        "compute_us",
        "mean_abs_error",
        "other",
        "other_total_us",
        "busiest_wires",
        "verdict",
        "faults",
        "doubts",
        "notes",
        "skipped",
    )

    kind: str
    source: str
    fabric: str
    ranks: int
    machines: int
    nccl_version: str
    machine: list[str] = field(default_factory=list)
    calls: list[CallResult] = field(default_factory=list)
    communicators: list[CommResult] = field(default_factory=list)
    total_calls: int = 0
    total_ps: int = 0
    other: str | None = None
    other_total_ps: int | None = None
    recorded_ps: int | None = None
    compute_ps: int | None = None
    wires: list[tuple[str, float]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    family: str = ""
    doubts: list[str] = field(default_factory=list)
    bounds_ps: list[int] | None = None
    judged: Result | ProvableVerdict | None = None
    unfinished: Unfinished | None = None

    @property
    def verdict(self) -> Verdict | None:
        """Verdict on the job, proven after `diagnose`; None if it is unknown."""
        return None if self.judged is None else self.judged.verdict

    def diagnose(self) -> Verdict | None:
        """Simulate changes of the job (number: its `confirm`); the bottleneck has the largest saving."""
        return None if self.judged is None else self.judged.diagnose()

    def summary(self) -> Summary:
        """Return job, system and time."""
        words = [f"{self.total_calls:,} calls", format_time(self.total_ps)]
        rows = {"format": self.kind, "release": self.nccl_version, "time": words[1]}
        if self.recorded_ps is not None:
            rows["recorded"] = format_time(self.recorded_ps)
            words.append(f"{rows['recorded']} recorded")
        if self.other_total_ps is not None:
            rows[f"on {self.other}"] = format_time(self.other_total_ps)
        rows |= {
            f"busiest wire {name}": f"{part:.1%} of the time"
            for name, part in self.wires[:3]
        }
        title = f"{self.source} on {self.ranks} ranks of {self.fabric}"
        return Summary(
            title, tuple(words), " ".join([*self.doubts, *self.notes]), rows
        )

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return its distinct calls and its communicators, as in JSON.

        Times are in us, bandwidths in 10^9 bytes/s.
        """
        return {
            "calls": lambda: _columns([call.to_json() for call in self.calls]),
            "communicators": lambda: _columns(
                [comm.to_json() for comm in self.communicators]
            ),
        }

    @property
    def ended(self) -> Ended | None:
        """Progress of a replay that was ended early."""
        return (
            None
            if self.unfinished is None
            else self.unfinished.progress_at(self.total_ps, 0.0)
        )

    @property
    def errors(self) -> list[float]:
        """Absolute errors of the measured calls."""
        return [abs(call.error) for call in self.calls if call.error is not None]

    @property
    def mean_abs_error(self) -> Round6 | None:
        """Mean of `errors`; None without any."""
        return sum(self.errors) / len(self.errors) if self.errors else None

    @property
    def busiest_wires(self) -> list[BusyWire]:
        """Busiest wires."""
        return [BusyWire(*row) for row in self.wires]


def _columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return rows as columns; missing values are None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def calls_verdict(calls: Sequence[CallResult], job_ps: int | None = None) -> Verdict:
    """Return the time breakdown of a job's calls.

    Time between kernels is launch overhead; kernels that were not analysed are unattributed. Causes are in the order
    of their shares.

    Parameters
    ----------
    job_ps : int or None
        Time of the job [ps]. Shares of concurrent calls are of the sum of their times, and time without a call is
        between kernels. None: calls are in sequence.
    """
    total = sum(call.time_ps * call.count for call in calls)
    judged_calls = [
        call for call in calls if call.verdict is not None and call.verdict.causes
    ]
    if not judged_calls:
        return Verdict(total, (), basis="no call was analysed")
    parts: Counter[PartKey] = Counter()
    also: dict[Key, dict[str, str]] = defaultdict(dict)
    resource_of: dict[tuple[Key, str], CauseResource] = {}
    settings: dict[Key, str] = {}
    for call in calls:
        kernel = call.verdict or Verdict(0, ())
        kernel_ps = min(call.kernel_ps, call.time_ps)
        mine = divide_time(kernel.parts, kernel_ps)
        mine[*BETWEEN, "", ""] = call.time_ps - kernel_ps
        mine[CauseKind.OTHER, "", "", ""] = call.time_ps - sum(mine.values())
        parts.update({key: ps * call.count for key, ps in mine.items() if ps})
        for cause in kernel.causes:
            settings[cause.key] = cause.settings
            also[cause.key] |= {
                link.rpartition(" (")[0]: link for link in cause.also
            }
            for row in cause.resources:
                place = cause.key, row.name
                resource_of[place] = max(
                    resource_of.get(place, row), row, key=lambda one: one.time_ps
                )
    job_ps = total if job_ps is None else job_ps
    parts[*BETWEEN, "", ""] += max(0, job_ps - total)
    spent = divide_time(parts, job_ps)

    def order(sums: Mapping[Key, int]) -> list[Key]:
        return sorted(sums, key=lambda key: (-sums[key], key))

    def census(key: Key, name: str) -> Census:
        row = resource_of[key, name]
        return Census(row.unit, row.in_class, down=row.down, parts=row.down_parts)

    def finish(cause: VerdictCause) -> VerdictCause:
        rows = ((row, resource_of[cause.key, row.name]) for row in cause.resources)
        resources = tuple(
            row
            if one.limiting is None
            else replace(row, limiting=one.limiting, named=one.named)
            for row, one in rows
        )
        more = tuple(also[cause.key].values())
        words = settings.get(cause.key, "")
        return replace(cause, resources=resources, also=more, settings=words)

    verdict = diagnose([SplitSpan("", 0, job_ps, spent)], order, census, finish)
    return replace(verdict, basis="the critical paths of calls, each in isolation")


BETWEEN = CauseKind.LAUNCH, "between kernels"
"""Kind and detail of the time between kernels."""
