"""Re-simulation of a traced run from the inputs in its trace, unchanged or with a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clusim.engine.abi import FaultKind

if TYPE_CHECKING:
    from clusim.analysis.columns import ColumnTable
    from clusim.analysis.whatif import Change
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
        return "nothing to confirm: no link stalls the critical path"
    result, inputs = read_run(path)
    wires, faults = inputs.image["wires"], inputs.image["faults"]
    change = mended(wires, result.wires.classes, map(result.wires.names.index, stalled[0]["wires"]))
    own = list(change.wires)
    broken = np.isin(faults["index"], own) & (faults["kind"] == FaultKind.RATE)
    if not broken.any() and all(
        _rate(wires[wire]) == _rate(wires[best]) for wire, best in change.like
    ):
        change = Change("wires", Fraction(2), change.wires)
    arrays = changed_image(inputs.image, change)
    time_ps = run_image(arrays, inputs).time_ps
    before = result.time_ps
    rate_GBps = float(max(_rate(arrays["wires"][wire]) for wire in own)) * 1000
    blamed.facts["simulated_ps"] = time_ps
    return (
        f"simulated with {stalled[0]['resource']} at {rate_GBps:.2f} GB/s: {format_time(time_ps)};"
        f" it costs {(before - time_ps) / max(1, before):.1%} of the run"
    )


def _rate(wire: Any) -> Fraction:
    return Fraction(int(wire["rate_num"]), int(wire["rate_den"]))
