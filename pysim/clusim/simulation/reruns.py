"""Repeated runs from kept inputs, with changes, within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import DeadlockError, TimeLimitReached
from clusim.base.records import dataclass
from clusim.base.units import format_time
from clusim.engine.abi import FaultKind, Stop
from clusim.engine.image import Image, image_of
from clusim.results.bins import MAX_BINS, BinRecorder
from clusim.results.flows import flows_of
from clusim.results.result import Result
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
    from clusim.analysis.whatif import Change
    from clusim.base.tables import ColumnTable

CHEAP_GRANTS = 20_000_000
"""Maximum packets and bursts of the runs without faults, and of a job's re-simulations, by default: about 2 s."""

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


def run_image(arrays: Mapping[str, Array], inputs: Inputs) -> Rerun:
    """Simulate the arrays of an image, which may differ from the image in `inputs`.

    Raises
    ------
    DeadlockError
        The run cannot end.
    """
    session = simulate_inputs(input_image(arrays, inputs), "c")
    return Rerun(session.engine.now_ps, session.engine.fingerprint())


def input_image(arrays: Mapping[str, Array], inputs: Inputs) -> Image:
    """Return the image of changed arrays; traces have no sender policies."""
    return image_of(arrays, inputs.nvc, inputs.seed, inputs.senders)


def simulate_inputs(
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
