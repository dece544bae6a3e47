"""Run a traced run again from the inputs in its trace, as it was or with something changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from clusim.analysis.whatif import Change
    from clusim.session import EngineName, Progress

__all__ = ["Rerun", "rerun"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rerun:
    """What a repeated run gave: its time [ps] and fingerprint."""

    time_ps: int
    fingerprint: int


def rerun(
    path: str | Path,
    change: Change | None = None,
    *,
    engine: EngineName = "c",
    progress: Progress | None = None,
) -> Rerun:
    """Simulate the run of a trace again, exactly, or with `change` made to its image.

    Raises
    ------
    DeadlockError
        The changed run cannot end.
    """
    from clusim.analysis.whatif import changed_image
    from clusim.bins import BinRecorder
    from clusim.errors import DeadlockError
    from clusim.image import DTYPES, Image
    from clusim.outcome import Stop
    from clusim.session import Session, start_engine
    from clusim.trace.inputs import read_inputs

    inputs = read_inputs(path)
    arrays: Mapping[str, Array] = inputs.image
    if change is not None:
        arrays = changed_image(arrays, change)
    image = Image(
        nvc=inputs.nvc, seed=inputs.seed, **{n: v.astype(DTYPES[n]) for n, v in arrays.items()}
    )
    recorder = BinRecorder(len(image.wires), len(image.endpoints), 16)
    session = Session(image, start_engine(image, engine, False), recorder)
    if session.run([], progress) is Stop.DEADLOCK:
        raise DeadlockError(f"deadlock at {session.engine.now_ps} ps of the repeated run")
    return Rerun(session.engine.now_ps, session.engine.fingerprint())
