"""Diagnosis of a run from its kept inputs, and re-simulation of traced runs.

The inputs (image, completed slices, expected error) are kept until requested. A traced run is re-simulated from the
inputs in its trace, unchanged or with a change. Analyses are imported when they are needed, after the time of a run
is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from clusim.base.arrays import Array
from clusim.base.errors import (
    InputError,
    TimeLimitReached,
    TraceError,
)
from clusim.engine.abi import Engine, FaultKind
from clusim.engine.image import DTYPES, Image
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result, Wires, mean_rates_Bps
from clusim.results.sensitivity import Sensitivity
from clusim.results.trace.held import HeldRecords, Inputs
from clusim.simulation.reruns import (
    CHEAP_GRANTS,
    Repeats,
    input_image,
    proof_runs,
    simulate_inputs,
)
from clusim.simulation.session import (
    EngineName,
    Session,
)

if TYPE_CHECKING:
    from clusim.analysis.critical import Critical
    from clusim.analysis.judge import Judged
    from clusim.analysis.remedies import Remedy
    from clusim.analysis.whatif import Change
    from clusim.simulation.intervals import Variants
    from clusim.simulation.proof import RemedyTrial

CHECKED_GRANTS = CHEAP_GRANTS // 20
"""Maximum of a run that is re-simulated about 50 times for its derivatives by default."""

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
        return input_image(changed_image(inputs.image, change), inputs)

    def sensitivity(self, result: Result) -> Sensitivity:
        """Return the derivatives of the run with this result; see `Result.sensitivity`."""
        from clusim.analysis.whatif import changed_image
        from clusim.simulation.derivatives import derivatives

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
            return simulate_inputs(
                input_image(arrays, inputs), engine, how=self._how
            ).engine.now_ps

        def changed(change: Change) -> int:
            return simulate(changed_image(inputs.image, change))

        try:
            run = _critical(result, inputs, self._records)
            rows = derivatives(run, changed if checked else None)
        except TraceError as error:
            rows = Sensitivity(result.time_ps, note=str(error).partition(": ")[2])
        if self.variants is not None:
            rows = replace(rows, measured=self.variants.nccl_interval(result))
        if not checked or self.variants is None or rows.unfinished:
            return rows
        try:
            limits = self.variants.interval(inputs.image, result.time_ps, simulate)
        except TimeLimitReached as error:
            return replace(rows, unfinished=f"interval; {error}")
        measured = self.variants.nccl_interval(result, limits)
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
    session = simulate_inputs(
        image, _engine_of(result), records, how, result.wires.names
    )
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
