"""Both engines agree on damaged images: they refuse the same numbers, or give the same result.

Images that the C engine refuses because rows do not belong together are left out: the reference checks numbers
only. 75 cases by default, 5,000 with CLUSIM_THOROUGH=1.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from clusim.base.errors import RangeExceeded, ScheduleError
from clusim.engine.abi import Stop
from clusim.engine.image import Image
from clusim.engine.reference import ReferenceSimulation
from support.covering import THOROUGH
from support.mutations import mutated
from support.random_images import random_image

CASES = 5000 if THOROUGH else 25
BATCH = 25
LIMIT_PS = 5_000_000  # most cases are over by then; the slow engine goes no further
MOST_EVENTS = 3000
MOST_STEPS = 20_000  # of an instance, which the reference takes one by one


def _steps(image: Image) -> int:
    """Return about how many pieces the reference looks at for the longest instance."""
    repeats = np.concatenate([[0], np.cumsum(image.prims["repeat"], dtype=np.int64)])
    most = 0
    for row in image.instances:
        template = image.templates[row["template"]]
        span = int(row["chunk_bytes"]) * (1 if template["mode"] else int(template["nchunks"]))
        loops = int(row["length"]) // span + 1
        steps = repeats[template["prim_hi"]] - repeats[template["prim_lo"]]
        most = max(most, loops * int(steps) * int(row["slices"]))
    return most


def _shown(sim, stop: Stop) -> list[bytes]:
    """Return what a run shows, of what does not depend on an engine's own last event."""
    records = np.sort(sim.records(), order=["time_ps", "instance", "seq"])
    wires = sim.wires()
    parts = [records, *sim.task_times(), sim.message_times(), sim.mem_bytes_256(), wires["bytes"]]
    if stop != Stop.DEADLOCK:
        parts += [wires[name] for name in wires.dtype.names]
    if stop == Stop.DONE:
        parts += [np.array([sim.fingerprint()], np.uint64), np.array([sim.now_ps])]
    return [np.ascontiguousarray(part).tobytes() for part in parts]


def _outcome(engine, image: Image) -> tuple[str, list[bytes]]:
    """Return how a run ended, and what it showed; a refusal shows its words."""
    try:
        sim = engine(image)
        stop = sim.run(until_ps=LIMIT_PS)
    except (ScheduleError, RangeExceeded) as error:
        return str(error), []
    return stop.name, _shown(sim, stop)


def agree(seed: int, compiled) -> str:
    """Compare one case; return what became of it."""
    image = mutated(random_image(random.Random(seed % 400)), random.Random(seed))
    try:
        sim = compiled(image, records=False)
        if sim.run(until_ps=LIMIT_PS, max_events=MOST_EVENTS) == Stop.EVENTS:
            return "too long"
    except ScheduleError as error:
        if "; must be" not in str(error):
            return "refused"
    except RangeExceeded:
        pass
    else:
        if _steps(image) > MOST_STEPS:
            return "too long"
    found = [_outcome(ReferenceSimulation, image), _outcome(compiled, image)]
    if {found[0][0], found[1][0]} == {
        "TIME",
        "DEADLOCK",
    }:  # the last events of a deadlock are an engine's own
        found = [("DEADLOCK", shown[:6]) for _, shown in found]
    assert found[0] == found[1], f"seed {seed}"
    return "ran" if found[0][1] else "out of range"


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_engines_agree_on_damaged_images(compiled, batch):
    ends = [agree(seed, compiled) for seed in range(batch * BATCH, (batch + 1) * BATCH)]
    assert ends.count("ran") >= BATCH // 8, ends
