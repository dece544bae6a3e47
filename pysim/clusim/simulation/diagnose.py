"""Inputs for the diagnosis of a run, kept until it is asked for: image, completed slices, expected error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from clusim.analysis.judge import Judged, judged, without_path
from clusim.analysis.whatif import changed_image
from clusim.base.errors import DeadlockError, RangeExceeded, TraceError
from clusim.engine.image import DTYPES, Image
from clusim.lowering import Fault, Lowered, lower
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result
from clusim.results.trace.held import HeldRecords, Inputs
from clusim.schedule import Schedule
from clusim.simulation.rerun import run_image
from clusim.simulation.session import EngineName
from clusim.topology import Fabric

COARSE_INSTANCES = 4_096
"""Programs up to which a run is put on its fabric in coarse bursts: 0.2 s."""

Columns = Callable[[], dict[str, NDArray[Any] | list[str]]]

CHEAP_GRANTS = 400_000
"""Packets and bursts of a run up to which it is simulated again without its first cause: 0.1 s."""

COARSE_GRANTS = 1_000_000
"""Bursts up to which a larger run is simulated twice in coarse ones, as it is and without its first cause: 0.5 s."""


class Evidence:
    """Makes the verdict of a run when it is asked for, once; see `clusim.results.result.Result.verdict`.

    Parameters
    ----------
    inputs : callable
        Makes the run's inputs as a trace repeats them.
    records : HeldRecords or str
        Its completed slices, or why there are none.
    expected : callable
        Says what error to expect.
    confirm : bool or None
        Whether to simulate the run again without its first cause; None: if it has at most `CHEAP_GRANTS`, or in bursts
        if these are at most `COARSE_GRANTS`.
    coarser : callable or None
        Puts the run on its fabric in coarse bursts; None where it cannot be told apart so.
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
        """Return the verdict on the run whose result this is."""
        if self._found is None:
            found = self._judge(result)
            self._found = replace(found, expected=self._expected())
            # Nothing is asked of them again, and they are large.
            self._inputs, self._records, self._coarser = _gone, "known", None
        return self._found

    def __reduce__(self) -> tuple[type[KnownVerdict], tuple[Verdict | None]]:
        """Be sent to other processes as the verdict, if there is one; inputs and slices stay here."""
        return KnownVerdict, (self._found,)

    def _judge(self, result: Result) -> Verdict:
        if isinstance(self._records, str):
            return without_path(result, self._records)
        inputs = self._inputs()
        return judge_held(result, inputs, self._records, self._confirm, self._coarser)


class KnownVerdict:
    """A verdict that is known; None where the run was made in another process, which was not asked for it."""

    def __init__(self, found: Verdict | None) -> None:
        self._found = found

    def __call__(self, result: Result) -> Verdict:
        """Return it."""
        return self._found or without_path(result, "the run was made in another process")


def judge_held(
    result: Result,
    inputs: Inputs,
    records: HeldRecords,
    confirm: bool | None,
    coarser: Callable[[], Lowered] | None = None,
) -> Verdict:
    """Return the verdict on a run from what is held of it in memory."""
    from clusim.analysis.critical import Traced, critical_of

    try:
        found = judged(
            critical_of(Traced.of(Path(result.provenance.fabric), result, inputs), records)
        )
    except TraceError as error:
        return without_path(result, str(error).partition(": ")[2])
    own = result.provenance.engine
    if not result.complete:  # what it would have been is not known
        return found.verdict.without_savings()
    if confirm or (confirm is None and own == "c" and result.grants <= CHEAP_GRANTS):
        return confirmed(found, inputs, own)
    if confirm is None and own == "c" and coarser is not None and found.changes:
        return _coarsely(found, inputs, result.grants, coarser())
    return found.verdict


def confirmed(found: Judged, inputs: Inputs, engine: str) -> Verdict:
    """Simulate a run again without its first cause, and return the verdict with what that saves."""
    after_ps = _changed_ps(found, inputs.image, inputs, engine)
    if after_ps is None:
        return found.verdict
    return found.verdict.simulated(found.verdict.time_ps - after_ps)


def _coarsely(found: Judged, inputs: Inputs, grants: int, coarse: Lowered) -> Verdict:
    """Return the verdict with what is saved in coarse bursts: the same part of the run."""
    hops = coarse.grain.grant_hops
    if hops > COARSE_GRANTS or 2 * hops > grants:
        return found.verdict
    image = {name: getattr(coarse.image, name) for name in DTYPES}
    after_ps = _changed_ps(found, image, inputs, "c")
    if after_ps is None:
        return found.verdict
    before_ps = run_image(image, inputs).time_ps
    saving_ps = round(found.verdict.time_ps * (before_ps - after_ps) / before_ps)
    return found.verdict.simulated(saving_ps, f"in bursts of {coarse.grain.burst_bytes[1]} B")


def _changed_ps(
    found: Judged, image: Mapping[str, NDArray[Any]], inputs: Inputs, engine: str
) -> int | None:
    """Return the time of an image without the first cause [ps]; None if there is none to change, or no end."""
    change = found.changes[0] if found.changes else None
    if change is None:
        return None
    own: EngineName = "reference" if engine == "reference" else "c"
    try:
        return run_image(changed_image(image, change), inputs, own).time_ps
    except (DeadlockError, RangeExceeded):
        # What was changed was not all that such a machine would need.
        return None


def _gone() -> Inputs:
    raise AssertionError("inputs of a run whose verdict is known")


def inputs_of(image: Image, made: Columns | None) -> Inputs:
    """Return a run's inputs as a trace has them, from its image and what makes the columns that repeat the others."""
    columns: Any = made() if made is not None else {}
    parts = {
        group: {
            name.removeprefix(group): own for name, own in columns.items() if name.startswith(group)
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
    """Return what puts a run on its fabric in coarse bursts; None where that takes long."""
    if len(schedule.instances) > COARSE_INSTANCES:
        return None
    return partial(lower, fabric, schedule, "coarse", seed, faults=faults)
