"""Diagnosis of a run from its kept inputs, and re-simulation of traced runs.

The inputs (image, completed slices, expected error) are kept until requested. A traced run is re-simulated from the
inputs in its trace, unchanged or with a change. Analyses are imported when they are needed, after the time of a run
is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.arrays import Array
from clusim.base.errors import (
    DeadlockError,
    InputError,
    TimeLimitReached,
    TraceError,
)
from clusim.base.records import dataclass
from clusim.base.units import format_time
from clusim.engine.abi import Engine, FaultKind, Stop
from clusim.engine.image import DTYPES, Image, image_of
from clusim.results.bins import MAX_BINS, BinRecorder
from clusim.results.diagnosis import Verdict
from clusim.results.flows import flows_of
from clusim.results.result import Result, Wires, mean_rates_Bps
from clusim.results.sensitivity import Sensitivity
from clusim.results.trace.held import HeldRecords, Inputs
from clusim.simulation.session import (
    EngineName,
    Progress,
    Session,
    Sink,
    Watch,
    start_engine,
)

if TYPE_CHECKING:
    from clusim.analysis.critical import Critical
    from clusim.analysis.judge import Judged
    from clusim.analysis.remedies import Remedy
    from clusim.analysis.whatif import Change
    from clusim.base.tables import ColumnTable
    from clusim.simulation.intervals import Variants
    from clusim.simulation.proof import RemedyTrial


CHEAP_GRANTS = 20_000_000
"""Maximum packets and bursts of the runs without faults, and of a job's re-simulations, by default: about 2 s."""

CHECKED_GRANTS = CHEAP_GRANTS // 20
"""Maximum of a run that is re-simulated about 50 times for its derivatives by default."""

PROOF_GRANTS = 4_000_000, 60_000_000
"""Least and most packets and bursts that the remedies of a run may move together by default."""

PROOF_RUNS = 3
"""Runs of the same size that they may move between these."""


class Budget:
    """Packets and bursts that the re-simulations of a run may move together, if they were not requested."""

    def __init__(self) -> None:
        self._left = CHEAP_GRANTS

    def allows(self, result: Result, runs: int = 1) -> bool:
        """Return True, and spend them, if `runs` repetitions of a run in the C engine are affordable."""
        cost = runs * result.grants
        if result.provenance.engine != "c" or cost > self._left:
            return False
        self._left -= cost
        return True


def proof_runs(result: Result) -> int:
    """Return the number of remedies of a run that are simulated by default."""
    if result.provenance.engine != "c":
        return 0
    return affordable_runs(
        result.grants, 0 if result.messages is not None else PROOF_RUNS
    )


def affordable_runs(grants: int, runs: int = PROOF_RUNS) -> int:
    """Return the number of simulations by default of `grants` packets and bursts each; `runs` if these are many."""
    low, high = PROOF_GRANTS
    return min(high, max(low, runs * grants)) // max(1, grants)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Settings of the re-simulations of a run.

    Attributes
    ----------
    confirm : bool or None
        Whether to simulate all remedies (True) or no remedy (False); None: `proof_runs` remedies.
    progress : callable or None
        Progress of the re-simulations.
    watch : Watch
        Wall-clock limit, which ends a re-simulation with `TimeLimitReached`.
    """

    confirm: bool | None = None
    progress: Progress | None = None
    watch: Watch = field(default_factory=Watch)
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True, slots=True)
class Rerun:
    """Time [ps] and fingerprint of a repeated run."""

    time_ps: int
    fingerprint: int


def rerun(path: str | Path, change: Change | None = None) -> Rerun:
    """Re-simulate the run of a trace, exactly, or with `change` applied to its image.

    Raises
    ------
    DeadlockError
        The changed run cannot end.
    """
    from clusim.analysis.whatif import changed_image
    from clusim.results.trace.inputs import read_inputs

    inputs = read_inputs(path)
    arrays = inputs.image if change is None else changed_image(inputs.image, change)
    return run_image(arrays, inputs)


def run_image(
    arrays: Mapping[str, Array],
    inputs: Inputs,
    engine: EngineName = "c",
    progress: Progress | None = None,
) -> Rerun:
    """Simulate the arrays of an image, which may differ from the image in `inputs`.

    Raises
    ------
    DeadlockError
        The run cannot end.
    """
    session = _simulate(
        _image(arrays, inputs), engine, how=Repeats(progress=progress)
    )
    return Rerun(session.engine.now_ps, session.engine.fingerprint())


def _image(arrays: Mapping[str, Array], inputs: Inputs) -> Image:
    """Return the image of changed arrays; traces have no sender policies."""
    return image_of(arrays, inputs.nvc, inputs.seed, inputs.senders)


def _simulate(
    image: Image,
    engine: EngineName,
    records: HeldRecords | None = None,
    how: Repeats | None = None,
    wires: Sequence[str] = (),
) -> Session:
    """Simulate an image; with the names of its wires, flows with rate control have histories."""
    how = how or Repeats()
    recorder = BinRecorder(
        len(image.wires), len(image.endpoints), 16 if records is None else MAX_BINS
    )
    if wires:
        recorder.follow(flows_of(image.tables(), image.senders, wires))
    session = Session(
        image, start_engine(image, engine, records is not None, None), recorder
    )
    sinks: list[Sink] = [] if records is None else [records]
    stop = session.run(sinks, how.progress, how.watch)
    if stop is Stop.DEADLOCK:
        raise DeadlockError(
            f"deadlock at {session.engine.now_ps} ps of the repeated run"
        )
    if stop is not Stop.DONE:
        raise TimeLimitReached(how.watch.words)
    return session


def without_first_stall(path: str | Path, blamed: ColumnTable) -> str:
    """Re-simulate a run with its first stalled link repaired; return a sentence about it.

    Both directions of the link get the highest rate of their class, for the complete run. A link that already has this
    rate gets twice its rate.
    """
    from clusim.analysis.whatif import Change, changed_image, repair_change
    from clusim.results.trace.inputs import read_run

    stalled = [r for r in blamed.rows() if r["group"] == "stall" and r["wires"]]
    if not stalled:
        return "no confirmation: no link stalls the critical path"
    result, inputs = read_run(path)
    wires, faults = inputs.image["wires"], inputs.image["faults"]
    change = repair_change(
        wires,
        result.wires.classes,
        map(result.wires.names.index, stalled[0]["wires"]),
    )
    repaired = list(change.wires)
    broken = np.isin(faults["index"], repaired) & (faults["kind"] == FaultKind.RATE)
    if not broken.any() and all(
        _rate(wires[wire]) == _rate(wires[best]) for wire, best in change.like
    ):
        change = Change("wires", Fraction(2), change.wires)
    arrays = changed_image(inputs.image, change)
    time_ps = run_image(arrays, inputs).time_ps
    before = result.time_ps
    rate_GBps = float(max(_rate(arrays["wires"][wire]) for wire in repaired)) * 1000
    blamed.facts["simulated_ps"] = time_ps
    return (
        f"simulated with {stalled[0]['resource']} at {rate_GBps:.2f} GB/s: {format_time(time_ps)};"
        f" it costs {(before - time_ps) / max(1, before):.1%} of the run"
    )


def _rate(wire: Any) -> Fraction:
    return Fraction(int(wire["rate_num"]), int(wire["rate_den"]))


Columns = Callable[[], dict[str, NDArray[Any] | list[str]]]

_KNOWN, _ELSEWHERE = "known", "the run was in another process"


class Evidence:
    """Verdict of a run by its critical path, and proven by simulations of remedies; each is computed once.

    See `clusim.results.result.Result.diagnose`.

    Parameters
    ----------
    inputs : callable
        Returns the inputs of the run as stored in a trace.
    records : HeldRecords or str
        Its completed slices, or the reason why they were not kept.
    expected : callable
        Returns the expected error.
    how : Repeats or None
        Settings of re-simulations.

    Attributes
    ----------
    variants : Variants or None
        The run with other figures, for its interval.
    """

    variants: Variants | None = None

    def __init__(
        self,
        inputs: Callable[[], Inputs],
        records: HeldRecords | str,
        expected: Callable[[], str],
        how: Repeats | None = None,
    ) -> None:
        self._inputs, self._records, self._expected = inputs, records, expected
        self._how = how or Repeats()
        self._judged: Judged | None = None
        self._found: Verdict | None = None

    def __call__(self, result: Result) -> Verdict:
        """Return the verdict on the run with this result, to the extent known without a simulation."""
        if self._found is not None:
            return self._found
        return self.path(result).verdict

    def prove(self, result: Result) -> Verdict:
        """Simulate the remedies of the run with this result; return the verdict that this proves."""
        if self._found is None:
            diagnosis = self.path(result)
            self._found = self._proven(result, diagnosis)
            if result.grants > CHECKED_GRANTS:
                # Large, and not needed again.
                self._inputs, self._records = _gone, _KNOWN
        return self._found

    @property
    def _is_known(self) -> bool:
        """True if the inputs of the run are not in this process, or not any more."""
        return self._records in (_KNOWN, _ELSEWHERE)

    def path(self, result: Result) -> Judged:
        """Return the diagnosis by critical path."""
        from clusim.analysis.critical import Traced
        from clusim.analysis.judge import (
            Judged,
            judged,
            judged_by_servers,
            without_path,
        )
        from clusim.analysis.limits import uneven_paths

        if self._judged is None:
            try:
                if isinstance(self._records, HeldRecords):
                    diagnosis = judged(
                        _critical(result, self._inputs(), self._records)
                    )
                elif self._is_known or not result.complete:
                    diagnosis = Judged(without_path(result, self._records))
                else:
                    traced = Traced.of(
                        Path(result.provenance.fabric), result, self._inputs()
                    )
                    diagnosis = judged_by_servers(traced, self._records)
            except TraceError as error:
                diagnosis = Judged(
                    without_path(result, str(error).partition(": ")[2])
                )
            uneven = tuple(uneven_paths(result))
            verdict = replace(
                diagnosis.verdict, expected=self._expected(), uneven=uneven
            )
            self._judged = Judged(verdict, diagnosis.remedies)
        return self._judged

    def _proven(self, result: Result, judged: Judged) -> Verdict:
        from clusim.simulation.proof import ProofRule, proven

        how = self._how
        if self._is_known or not result.complete:  # the complete time is unknown
            return judged.verdict
        budget = (
            proof_runs(result) if how.confirm is None else None if how.confirm else 0
        )
        inputs = self._inputs()

        def trial(remedy: Remedy) -> RemedyTrial:
            return _trial(result, inputs, self._image_with(inputs, remedy), how)

        rule = ProofRule(budget, every=bool(how.confirm))
        return proven(judged.verdict, judged.remedies, trial, rule)

    def _image_with(self, inputs: Inputs, remedy: Remedy) -> Image:
        """Return the image of the run with a remedy, as of ``clusim what-if``.

        Flags and the cost of CTAs beside a NIC depend on links, so faster links are lowered again where the plan is
        known.
        """
        from clusim.analysis.whatif import changed_image

        change = remedy.change
        if change.what == "wires" and self.variants is not None:
            return self.variants.with_links(
                remedy.words.removesuffix(" x2"), change.factor
            )
        return _image(changed_image(inputs.image, change), inputs)

    def sensitivity(self, result: Result) -> Sensitivity:
        """Return the derivatives of the run with this result; see `Result.sensitivity`."""
        from clusim.analysis.whatif import changed_image
        from clusim.simulation.derivatives import derivatives
        from clusim.simulation.intervals import interval_of, measured_interval

        if self._records == _KNOWN:
            raise InputError(
                "sensitivity: the completed slices of this run were dropped; call sensitivity() before diagnose(),"
                " and in the process of the run"
            )
        if isinstance(self._records, str) or not result.complete:
            why = (
                self._records
                if isinstance(self._records, str)
                else "the run is incomplete"
            )
            return Sensitivity(result.time_ps, note=f"no critical path: {why}")
        inputs, engine = self._inputs(), _engine_of(result)
        checked = self._how.confirm
        if checked is None:
            checked = engine == "c" and result.grants <= CHECKED_GRANTS

        def simulate(arrays: Mapping[str, Array]) -> int:
            return _simulate(
                _image(arrays, inputs), engine, how=self._how
            ).engine.now_ps

        def changed(change: Change) -> int:
            return simulate(changed_image(inputs.image, change))

        try:
            run = _critical(result, inputs, self._records)
            rows = derivatives(run, changed if checked else None)
        except TraceError as error:
            rows = Sensitivity(result.time_ps, note=str(error).partition(": ")[2])
        if self.variants is not None:
            rows = replace(
                rows, measured=measured_interval(self.variants.planned, result, None)
            )
        if not checked or self.variants is None or rows.unfinished:
            return rows
        try:
            limits = interval_of(
                self.variants, inputs.image, result.time_ps, simulate
            )
        except TimeLimitReached as error:
            return replace(rows, unfinished=f"interval; {error}")
        measured = measured_interval(self.variants.planned, result, limits)
        return replace(rows, interval=limits, measured=measured)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the verdict, if computed, without inputs and slices."""
        diagnosis = self._found
        if diagnosis is None and self._judged is not None:
            diagnosis = self._judged.verdict
        return Evidence.known, (diagnosis,)

    @classmethod
    def known(cls, verdict: Verdict | None) -> Evidence:
        """Return the evidence of a computed verdict; None if another process computed none."""
        result = cls(_gone, _KNOWN if verdict is not None else _ELSEWHERE, str)
        result._found = verdict
        return result


def judged_run(result: Result) -> Judged:
    """Return the diagnosis of a run by its critical path, with its remedies; without re-simulation."""
    from clusim.analysis.judge import Judged

    evidence = result.judge
    return (
        evidence.path(result)
        if isinstance(evidence, Evidence)
        else Judged(result.verdict)
    )


def _critical(result: Result, inputs: Inputs, records: HeldRecords) -> Critical:
    from clusim.analysis.critical import Traced, critical_of

    traced = Traced.of(Path(result.provenance.fabric), result, inputs)
    return critical_of(traced, records)


def _engine_of(result: Result) -> EngineName:
    return "reference" if result.provenance.engine == "reference" else "c"


def _trial(
    result: Result, inputs: Inputs, image: Image, how: Repeats
) -> RemedyTrial:
    """Simulate a run with a changed image."""
    from clusim.simulation.proof import RemedyTrial

    records = HeldRecords()
    session = _simulate(image, _engine_of(result), records, how, result.wires.names)
    after = _changed_result(result, session)
    tables = {name: getattr(image, name) for name in DTYPES}

    def diagnose() -> Verdict | None:
        from clusim.analysis.judge import judged

        try:
            return judged(
                _critical(after, replace(inputs, image=tables), records)
            ).verdict
        except TraceError:
            return None

    return RemedyTrial(result.time_ps - after.time_ps, diagnose)


def _changed_result(result: Result, session: Session) -> Result:
    """Return the result of a changed run: times, counters and histories of `session`."""
    start_ps, end_ps = (
        times[: len(result.tasks.names)] for times in session.engine.task_times()
    )
    image = session.image
    rate_Bps = image.wires["rate_num"] / image.wires["rate_den"] * 1e12
    wires = run_wires(
        replace(result.wires, rate_Bps=rate_Bps), image.faults, session.engine
    )
    return replace(
        result,
        time_ps=session.engine.now_ps,
        tasks=replace(result.tasks, start_ps=start_ps, end_ps=end_ps),
        wires=wires,
        bins=session.recorder.bins(),
    )


def run_wires(wires: Wires, faults: Array, engine: Engine) -> Wires:
    """Return the wires of a run with its counters and, after a fault, their mean rate."""
    mean_Bps = None
    if (faults["kind"] == FaultKind.RATE).any():
        mean_Bps = mean_rates_Bps(wires.rate_Bps, faults, engine.now_ps)
    return replace(wires, counters=engine.wires(), mean_Bps=mean_Bps)


def _gone() -> Inputs:
    raise AssertionError("inputs of a run with a known verdict")


def inputs_of(image: Image, made: Columns | None) -> Inputs:
    """Return a run's inputs as stored in a trace, from its image and its text columns."""
    columns: Any = made() if made is not None else {}
    parts = {
        group: {
            name.removeprefix(group): column
            for name, column in columns.items()
            if name.startswith(group)
        }
        for group in ("/fabric/", "/schedule/")
    }
    names = parts["/fabric/"]
    return Inputs(
        {name: getattr(image, name) for name in DTYPES},
        image.nvc,
        image.seed,
        parts["/schedule/"],
        names["node"],
        names["node_kind"],
        names["rank_endpoint"],
        names["node_tier"],
        image.senders,
    )
