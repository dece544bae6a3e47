"""Diagnosis of a run from its kept inputs, and re-simulation of traced runs.

The inputs (image, completed slices, expected error) are kept until requested. A traced run is re-simulated from the
inputs in its trace, unchanged or with a change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.judge import Judged, judged, without_path
from clusim.analysis.whatif import changed_image
from clusim.base.errors import DeadlockError, RangeExceeded, TraceError
from clusim.engine.abi import FaultKind
from clusim.engine.image import DTYPES, Image
from clusim.lowering import Fault, Lowered, lower
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result
from clusim.results.trace.held import HeldRecords, Inputs
from clusim.schedule import Schedule
from clusim.simulation.session import EngineName
from clusim.topology import Fabric

if TYPE_CHECKING:
    from clusim.analysis.whatif import Change
    from clusim.base.tables import ColumnTable
    from clusim.results.trace.held import Inputs
    from clusim.simulation.session import EngineName, Progress

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rerun:
    """Time [ps] and fingerprint of a repeated run."""

    time_ps: int
    fingerprint: int


def rerun(
    path: str | Path,
    change: Change | None = None,
    *,
    engine: EngineName = "c",
    progress: Progress | None = None,
) -> Rerun:
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
    return run_image(arrays, inputs, engine, progress)


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
    from clusim.base.errors import DeadlockError
    from clusim.engine.abi import Stop
    from clusim.engine.image import DTYPES, Image
    from clusim.results.bins import BinRecorder
    from clusim.simulation.session import Session, start_engine

    fields = {name: values.astype(DTYPES[name]) for name, values in arrays.items()}
    image = Image(nvc=inputs.nvc, seed=inputs.seed, **fields)
    recorder = BinRecorder(len(image.wires), len(image.endpoints), 16)
    session = Session(image, start_engine(image, engine, False), recorder)
    if session.run([], progress) is Stop.DEADLOCK:
        raise DeadlockError(f"deadlock at {session.engine.now_ps} ps of the repeated run")
    return Rerun(session.engine.now_ps, session.engine.fingerprint())


def without_first_stall(path: str | Path, blamed: ColumnTable) -> str:
    """Re-simulate a run with its first stalled link repaired; return a sentence about it.

    Both directions of the link get the highest rate of their class, for the complete run. A link that already has this
    rate gets twice its rate.
    """
    from clusim.analysis.whatif import Change, changed_image, mended
    from clusim.base.units import format_time
    from clusim.results.trace.inputs import read_run

    stalled = [r for r in blamed.rows() if r["group"] == "stall" and r["wires"]]
    if not stalled:
        return "no confirmation: no link stalls the critical path"
    result, inputs = read_run(path)
    wires, faults = inputs.image["wires"], inputs.image["faults"]
    change = mended(wires, result.wires.classes, map(result.wires.names.index, stalled[0]["wires"]))
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


COARSE_INSTANCES = 4_096
"""Maximum programs of a run for a second lowering in coarse bursts: 0.2 s."""

Columns = Callable[[], dict[str, NDArray[Any] | list[str]]]

CHEAP_GRANTS = 400_000
"""Maximum packets and bursts of a run that is re-simulated without its bottleneck: 0.1 s."""

COARSE_GRANTS = 1_000_000
"""Maximum bursts for the two coarse runs, unchanged and without the bottleneck, of a larger run: 0.5 s."""


class Evidence:
    """Verdict of a run, computed once at the first call.

    See `clusim.results.result.Result.verdict`.

    Parameters
    ----------
    inputs : callable
        Returns the inputs of the run as stored in a trace.
    records : HeldRecords or str
        Its completed slices, or the reason why they were not kept.
    expected : callable
        Returns the expected error.
    confirm : bool or None
        Whether to re-simulate the run without its bottleneck; None: if it has at most `CHEAP_GRANTS`, or in coarse
        bursts if these are at most `COARSE_GRANTS`.
    coarser : callable or None
        Lowers the run onto its fabric in coarse bursts; None if that is not possible.
    """

    def __init__(
        self,
        inputs: Callable[[], Inputs],
        records: HeldRecords | str,
        expected: Callable[[], str],
        confirm: bool | None,
        coarser: Callable[[], Lowered] | None = None,
    ) -> None:
        self._inputs, self._records, self._expected = inputs, records, expected
        self._confirm, self._coarser = confirm, coarser
        self._found: Verdict | None = None

    def __call__(self, result: Result) -> Verdict:
        """Return the verdict on the run with this result."""
        if self._found is None:
            results = self._judge(result)
            self._found = replace(results, expected=self._expected())
            # Large, and not needed again.
            self._inputs, self._records, self._coarser = _gone, "known", None
        return self._found

    def __reduce__(self) -> tuple[type[KnownVerdict], tuple[Verdict | None]]:
        """Pickle only the verdict, if computed, without inputs and slices."""
        return KnownVerdict, (self._found,)

    def _judge(self, result: Result) -> Verdict:
        if isinstance(self._records, str):
            return without_path(result, self._records)
        inputs = self._inputs()
        return judge_held(result, inputs, self._records, self._confirm, self._coarser)


class KnownVerdict:
    """A computed verdict; None if the run was in another process that computed no verdict."""

    def __init__(self, verdict: Verdict | None) -> None:
        self._found = verdict

    def __call__(self, result: Result) -> Verdict:
        """Return the verdict."""
        return self._found or without_path(result, "the run was in another process")


def judge_held(
    result: Result,
    inputs: Inputs,
    records: HeldRecords,
    confirm: bool | None,
    coarser: Callable[[], Lowered] | None = None,
) -> Verdict:
    """Return the verdict on a run from its records in memory."""
    from clusim.analysis.critical import Traced, critical_of

    try:
        results = judged(
            critical_of(Traced.of(Path(result.provenance.fabric), result, inputs), records)
        )
    except TraceError as error:
        return without_path(result, str(error).partition(": ")[2])
    engine = result.provenance.engine
    if not result.complete:  # the complete time is unknown
        return results.verdict.without_savings()
    if confirm or (confirm is None and engine == "c" and result.grants <= CHEAP_GRANTS):
        return confirmed(results, inputs, engine)
    if confirm is None and engine == "c" and coarser is not None and results.changes:
        return _coarsely(results, inputs, result.grants, coarser())
    return results.verdict


def confirmed(finding: Judged, inputs: Inputs, engine: str) -> Verdict:
    """Re-simulate a run without its bottleneck, and return the verdict with the saving."""
    after_ps = _changed_ps(finding, inputs.image, inputs, engine)
    if after_ps is None:
        return finding.verdict
    return finding.verdict.simulated(finding.verdict.time_ps - after_ps)


def _coarsely(finding: Judged, inputs: Inputs, grants: int, coarse: Lowered) -> Verdict:
    """Return the verdict with the relative saving of a re-simulation in coarse bursts."""
    hops = coarse.grain.grant_hops
    if hops > COARSE_GRANTS or 2 * hops > grants:
        return finding.verdict
    image = {name: getattr(coarse.image, name) for name in DTYPES}
    after_ps = _changed_ps(finding, image, inputs, "c")
    if after_ps is None:
        return finding.verdict
    before_ps = run_image(image, inputs).time_ps
    saving_ps = round(finding.verdict.time_ps * (before_ps - after_ps) / before_ps)
    return finding.verdict.simulated(saving_ps, f"in bursts of {coarse.grain.burst_bytes[1]} B")


def _changed_ps(
    finding: Judged, image: Mapping[str, NDArray[Any]], inputs: Inputs, engine: str
) -> int | None:
    """Return the time of an image without the bottleneck [ps], or None.

    None: there is no change to apply, or the changed run cannot end.
    """
    change = finding.changes[0] if finding.changes else None
    if change is None:
        return None
    engine_name: EngineName = "reference" if engine == "reference" else "c"
    try:
        return run_image(changed_image(image, change), inputs, engine_name).time_ps
    except (DeadlockError, RangeExceeded):
        # The changed system would need further changes.
        return None


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
    )


def coarser_of(
    fabric: Fabric, schedule: Schedule, seed: int, faults: Sequence[Fault]
) -> Callable[[], Lowered] | None:
    """Return a callable that lowers a run in coarse bursts; None if that is slow."""
    if len(schedule.instances) > COARSE_INSTANCES:
        return None
    return partial(lower, fabric, schedule, "coarse", seed, faults=faults)
