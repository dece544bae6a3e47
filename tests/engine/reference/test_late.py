"""Both engines agree however late a run starts, and refuse alike what would pass the end of time.

Every default case of the other suite starts late on the C engine, which must give every time of the early run plus
the delay; the reference is compared at one of the starts (at all of them with CLUSIM_THOROUGH=1).
"""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from clusim.base.errors import RangeExceeded
from clusim.engine.abi import Stop
from clusim.engine.image import Image
from clusim.engine.ranges import DURATION_END_PS, TIME_END_PS
from support.covering import THOROUGH
from support.engines import Wanted
from support.random_images import random_image
from support.shifted import later, without_times

CASES = 2000 if THOROUGH else 20
BATCH = 20
LIMIT_PS = 20_000_000  # far beyond the end of nearly every case
STARTS_PS = [2**40, 2**46, 2**47 - 1, 2**47, 2**47 + 1, 2**50, DURATION_END_PS - LIMIT_PS]
SEARCHED_PS = 2**42  # times that are looked ahead for, at most


@cache
def _image(seed: int) -> Image:
    return random_image(random.Random(seed))


class Outcome:
    """All that a run shows, with the times of its tasks and slices; or the words with which it was refused."""

    def __init__(self, engine, image: Image, until_ps: int, tasks: int) -> None:
        sim = engine(image)
        self.refused = ""
        try:
            self.stop = sim.run(until_ps=until_ps)
            self.now_ps = sim.now_ps
            self.records = np.sort(sim.records(), order=["time_ps", "instance", "seq"])
            self.task_ps = np.stack([times[:tasks] for times in sim.task_times()])
            self.message_ps, self.wires = sim.message_times(), sim.wires()
            self.memory, self.fingerprint = sim.mem_bytes_256(), sim.fingerprint()
            if self.stop == Stop.DONE:
                sim.check_conservation()
        except RangeExceeded as error:
            self.refused = str(error)


def _moved(times_ps, shift_ps: int):
    return np.where(times_ps < 0, times_ps, times_ps + shift_ps)


def _assert_moved(early: Outcome, late: Outcome, shift_ps: int) -> None:
    assert (late.refused, late.stop) == ("", early.stop)
    assert np.array_equal(late.task_ps, _moved(early.task_ps, shift_ps))
    assert np.array_equal(late.message_ps, _moved(early.message_ps, shift_ps))
    moved = early.records.copy()
    moved["time_ps"] += shift_ps
    moved["gate_ps"] += shift_ps
    assert np.array_equal(late.records, moved)
    assert np.array_equal(late.memory, early.memory)
    if early.stop != Stop.DEADLOCK:  # the time of which is not defined
        assert late.now_ps == early.now_ps + shift_ps
        assert np.array_equal(late.wires, early.wires)


def _assert_equal(a: Outcome, b: Outcome) -> None:
    assert a.refused == b.refused
    if a.refused:
        return
    assert a.stop == b.stop
    for name in ("records", "task_ps", "message_ps", "memory"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    if a.stop != Stop.DEADLOCK:
        assert (a.now_ps, a.fingerprint) == (b.now_ps, b.fingerprint)
        assert np.array_equal(a.wires, b.wires)


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_a_later_run_is_the_same_run_later(compiled, batch):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        image = _image(seed)
        early = Outcome(compiled, image, LIMIT_PS, len(image.tasks))
        for shift_ps in STARTS_PS:
            moved = later(image, shift_ps)
            late = Outcome(compiled, moved, LIMIT_PS + shift_ps, len(image.tasks))
            try:
                _assert_moved(early, late, shift_ps)
            except AssertionError as error:
                error.add_note(f"random_image(random.Random({seed})), {shift_ps} ps later")
                raise


@pytest.mark.parametrize("seed", range(CASES // 4))
def test_engines_agree_on_late_runs(every_compiled, seed):
    image = _image(seed)
    for shift_ps in STARTS_PS if THOROUGH else [STARTS_PS[seed % len(STARTS_PS)]]:
        moved = later(image, shift_ps)
        until_ps = LIMIT_PS + shift_ps
        wanted = Outcome(Wanted, moved, until_ps, len(image.tasks))
        for compiled in every_compiled.values():
            _assert_equal(wanted, Outcome(compiled, moved, until_ps, len(image.tasks)))


def _latest_ps(compiled, image: Image, end_ps: int) -> int:
    """Return the latest start at which the C engine does not refuse a run, by bisection."""
    good, bad = TIME_END_PS - end_ps - SEARCHED_PS, TIME_END_PS - end_ps
    while bad - good > 1:
        middle = (good + bad) // 2
        refused = Outcome(compiled, later(image, middle), TIME_END_PS, len(image.tasks)).refused
        good, bad = (good, middle) if refused else (middle, bad)
    return good


@pytest.mark.parametrize("seed", range(CASES // 4))
def test_engines_refuse_the_same_runs_at_the_end_of_time(every_compiled, seed):
    image = without_times(_image(seed))
    wanted: dict[int, Outcome] = {}  # of the reference, by start
    for compiled in every_compiled.values():
        early = Outcome(compiled, image, LIMIT_PS, len(image.tasks))
        if early.stop != Stop.DONE:
            continue  # it never comes near its end
        latest_ps = _latest_ps(compiled, image, early.now_ps)
        last = Outcome(compiled, later(image, latest_ps), TIME_END_PS, len(image.tasks))
        _assert_moved(early, last, latest_ps)
        middle_ps = TIME_END_PS - 1 - early.now_ps // 2
        for shift_ps in (latest_ps, latest_ps + 1, middle_ps, TIME_END_PS - 1):
            moved = later(image, shift_ps)
            if shift_ps not in wanted:
                wanted[shift_ps] = Outcome(Wanted, moved, TIME_END_PS, len(image.tasks))
            assert bool(wanted[shift_ps].refused) == (shift_ps > latest_ps)
            found = Outcome(compiled, moved, TIME_END_PS, len(image.tasks))
            _assert_equal(wanted[shift_ps], found)


def test_a_refused_run_stays_refused(engine):
    image = without_times(_image(0))
    sim = engine(later(image, TIME_END_PS - 2))
    words = []
    for _ in range(2):
        with pytest.raises(RangeExceeded, match="2\\^62 ps") as caught:
            sim.run()
        words.append(str(caught.value))
    assert words[0] == words[1]
