"""Windows of time give what an event for every packet gives, and what the reference gives."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest

from clusim.engine.abi import Stop
from clusim.engine.ranges import DURATION_END_PS
from clusim.engine.simulation import Simulation
from support.covering import THOROUGH
from support.engines import Wanted, events_of
from support.random_senders import controlled
from support.shifted import later, without_times
from support.windowed import choosing_image, led_image, paired_image, windowed_image

CASES = 2000 if THOROUGH else 20
BATCH = 20
LIMIT_PS = 40_000_000  # far beyond the end of nearly every case
COUNTERS_OF_NOW = ("busy_ps", "stall_credit_ps", "stall_arbitration_ps")

MAKERS = {
    name: cache(make)  # tests share the images: most are thrown away before one is as it shall be
    for name, make in {
        "switches": windowed_image,
        "some switches": choosing_image,
        "endpoints": led_image,
        "pairs": paired_image,
    }.items()
}

BATCHES = [
    (what, batch)
    for what in MAKERS
    for batch in range(CASES // BATCH if what != "some switches" else CASES // BATCH // 4 + 1)
]

events = partial(Simulation, windows=False)
windows = partial(Simulation, windows=True)
threads = partial(Simulation, windows=True, threads=4, least_shared=0)


def _assert_same(a, b, stop: Stop) -> None:
    for x, y in zip(a.task_times(), b.task_times(), strict=True):
        assert np.array_equal(x, y)
    order = ["time_ps", "instance", "seq"]
    assert np.array_equal(np.sort(a.records(), order=order), np.sort(b.records(), order=order))
    assert np.array_equal(a.message_times(), b.message_times())
    assert np.array_equal(a.mem_bytes_256(), b.mem_bytes_256())
    assert np.array_equal(a.orders(), b.orders())
    wires = a.wires(), b.wires()
    for name in wires[0].dtype.names:
        # After a deadlock `now_ps` is the time of an engine's own last event, and these depend on it.
        if stop != Stop.DEADLOCK or name not in COUNTERS_OF_NOW:
            assert np.array_equal(wires[0][name], wires[1][name]), name
    if stop != Stop.DEADLOCK:
        assert a.now_ps == b.now_ps
    if stop == Stop.DONE:
        assert a.fingerprint() == b.fingerprint()
        b.check_conservation()


@pytest.fixture(params=MAKERS)
def image_of(request):
    """What makes a random image on which switches, endpoints too, or these and their routers, work in windows."""
    return MAKERS[request.param]


@pytest.mark.parametrize(("what", "batch"), BATCHES)
def test_windows_equal_the_reference(what, batch):
    fewer, reached = 0, set()
    step = 1 if THOROUGH else 2  # the reference takes most of the time
    for seed in range(batch * BATCH, (batch + 1) * BATCH, step):
        image = MAKERS[what](seed)
        sims = Wanted(image), windows(image), events(image)
        stops = [sim.run(until_ps=LIMIT_PS) for sim in sims]
        assert stops == stops[:1] * 3, f"{MAKERS[what].__name__}({seed})"
        fewer += events_of(sims[1]) < events_of(sims[2])
        reached.add(sims[1].windows)
        try:
            _assert_same(sims[0], sims[1], stops[0])
        except BaseException as error:
            error.add_note(f"{MAKERS[what].__name__}({seed})")
            raise
    assert what.removeprefix("some ") in reached
    assert fewer > BATCH // 4 // step, "nothing was windowed"


@pytest.mark.parametrize(("what", "batch"), BATCHES)
def test_threads_change_nothing(what, batch):
    shared = 0
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        image = MAKERS[what](seed)
        alone = windows(image)
        together = Simulation(image, windows=True, threads=2 + seed % 7, least_shared=0)
        stop = alone.run(until_ps=LIMIT_PS)
        assert together.run(until_ps=LIMIT_PS) == stop, f"{MAKERS[what].__name__}({seed})"
        assert events_of(together) == events_of(alone)
        assert together.instance_states().tolist() == alone.instance_states().tolist()
        shared += together.threads > 1
        try:
            _assert_same(alone, together, stop)
        except BaseException as error:
            error.add_note(f"{MAKERS[what].__name__}({seed})")
            raise
    assert shared > BATCH // 4, "nothing was shared by threads"


@pytest.mark.parametrize("seed", range(CASES // 8))
def test_windows_may_be_cut_anywhere(image_of, seed):
    image = image_of(seed)
    whole, sliced, counted = events(image), windows(image), threads(image)
    stop = whole.run(until_ps=LIMIT_PS)
    paused = events(image)
    for part in range(1, 8):
        until_ps = whole.now_ps * part // 8
        stops = [sim.run(until_ps=until_ps) for sim in (paused, sliced)]
        assert stops[0] == stops[1]
        _assert_same(paused, sliced, Stop.TIME if stops[0] == Stop.TIME else Stop.DEADLOCK)
    assert sliced.run(until_ps=LIMIT_PS) == paused.run(until_ps=LIMIT_PS) == stop
    _assert_same(paused, sliced, stop)
    while (reason := counted.run(until_ps=LIMIT_PS, max_events=7)) == Stop.EVENTS:
        pass
    assert reason == stop
    _assert_same(whole, counted, stop)


@pytest.mark.parametrize("seed", range(CASES // 8))
def test_samples_equal_the_counters_of_a_run_that_pauses(image_of, seed):
    """Turns of nodes split at sampled times; windows and runs continue."""
    image, times = image_of(seed), 20
    whole, paused = events(image), events(image)
    stop = whole.run(until_ps=LIMIT_PS)
    width_ps = max(1, whole.now_ps // (times + seed % 5 - 1))
    sims = events(image), windows(image), threads(image), Wanted(image)
    for sim in sims:
        sim.sample(width_ps, width_ps, times, controlled(image))
        while (found := sim.run(until_ps=LIMIT_PS, max_events=997)) == Stop.EVENTS:
            pass
        assert found == stop
        if stop == Stop.DONE:
            assert len(sim.samples()[0]) == min(times, (whole.now_ps - 1) // width_ps)
    samples = [sim.samples() for sim in sims]
    paused.sample(10**12, 1, 0, controlled(image))
    for k in range(times):
        paused.run(until_ps=(k + 1) * width_ps)
        wires, memory = paused.wires(), paused.mem_bytes_256()
        for found in samples:
            if k >= len(found[0]):
                continue
            assert np.array_equal(found[1][k], memory)
            assert np.array_equal(found[2][k], paused.flows())
            for name in found[0].dtype.names:
                assert np.array_equal(found[0][name][k], wires[name]), name
    if stop != Stop.DEADLOCK:
        _assert_same(whole, sims[1], stop)


@pytest.mark.parametrize("seed", range(CASES // 8))
def test_windows_end_before_the_end_of_time(image_of, seed):
    """Past half of all time there are only events; the run goes on as if nothing had happened."""
    image = without_times(image_of(seed))
    early = events(image)
    early.run(until_ps=LIMIT_PS)
    for before_ps in (0, early.now_ps // 3, early.now_ps // 2, LIMIT_PS):
        late_image = later(image, DURATION_END_PS - before_ps)
        until_ps = DURATION_END_PS - before_ps + LIMIT_PS
        sims = events(late_image), threads(late_image)
        width_ps = max(1, early.now_ps // 7)
        for sim in sims:
            sim.sample(until_ps - LIMIT_PS + width_ps, width_ps, 6, controlled(late_image))
        stops = [sim.run(until_ps=until_ps) for sim in sims]
        assert stops[0] == stops[1]
        _assert_same(sims[0], sims[1], stops[0])
        for known, found in zip(*(sim.samples() for sim in sims), strict=True):
            assert stops[0] == Stop.DEADLOCK or np.array_equal(known, found)
