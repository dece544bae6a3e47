"""Both engines agree, to the picosecond and in every counter, on random images.

30 cases by default, 2,000 with CLUSIM_THOROUGH=1.
"""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from clusim.engine.abi import NONE, State, Stop
from clusim.engine.image import Image
from support.covering import THOROUGH
from support.engines import Wanted
from support.random_images import images, random_image
from support.random_losses import lossy_image
from support.random_policies import (
    chosen_image,
    granted_image,
    joined_image,
    late_image,
    pathed_image,
)
from support.random_queues import judged_image
from support.random_schedules import scheduled_image
from support.random_senders import sender_image

CASES = 2000 if THOROUGH else 30
BATCH = 10
LIMIT_PS = 20_000_000  # far beyond the end of nearly every case


def _sorted_records(sim):
    return np.sort(sim.records(), order=["time_ps", "instance", "seq"])


def _equal(name, a, b):
    __tracebackhide__ = True
    if not np.array_equal(a, b):
        where = np.nonzero(a != b)[0] if len(a) == len(b) else f"lengths {len(a)}, {len(b)}"
        pytest.fail(f"{name}: the engines differ at {where}:\n{a}\n{b}")


def _assert_same_wires(a, b, deadlock):
    wires = a.wires(), b.wires()
    for name in wires[0].dtype.names:
        # After a deadlock `now_ps` is the time of an engine's own last event, and these depend on it.
        if not (deadlock and name in ("busy_ps", "stall_credit_ps", "stall_arbitration_ps")):
            _equal(f"wires.{name}", wires[0][name], wires[1][name])


def _assert_same_states(a, b):
    states = a.instance_states(), b.instance_states()
    _equal("state", states[0]["state"], states[1]["state"])
    blocked = np.isin(states[0]["state"], [State.WAIT_RECV, State.WAIT_SEND])
    active = blocked | (states[0]["state"] == State.BUSY)
    for name in ("prim", "seq", "loop"):
        _equal(f"state.{name}", states[0][name][active], states[1][name][active])
    _equal("state.conn", states[0]["conn"][blocked], states[1]["conn"][blocked])


def assert_same(a, b, stop):
    """Everything two finished or paused simulations show is equal."""
    _equal("records", _sorted_records(a), _sorted_records(b))
    _equal("task starts", a.task_times()[0], b.task_times()[0])
    _equal("task ends", a.task_times()[1], b.task_times()[1])
    _equal("messages", a.message_times(), b.message_times())
    _equal("memory", a.mem_bytes_256(), b.mem_bytes_256())
    _equal("orders", a.orders(), b.orders())
    _assert_same_wires(a, b, stop == Stop.DEADLOCK)
    _assert_same_states(a, b)
    if stop != Stop.DEADLOCK:
        assert a.now_ps == b.now_ps
    if stop == Stop.DONE:
        assert a.fingerprint() == b.fingerprint()


class Shown:
    """What a simulation shows now, read once for several comparisons: records are forgotten when they are read."""

    def __init__(self, sim) -> None:
        self.now_ps, self.fingerprint = sim.now_ps, sim.fingerprint
        for name in (
            "records",
            "task_times",
            "message_times",
            "mem_bytes_256",
            "wires",
            "orders",
            "instance_states",
        ):
            setattr(self, name, partial(_given, getattr(sim, name)()))


def _given(value):
    return value


def compare(image: Image, every_compiled) -> None:
    """Run an image on the reference and on every other engine, and compare all they show."""
    sim = Wanted(image)
    stop = sim.run(until_ps=LIMIT_PS)
    if stop == Stop.DONE:
        sim.check_conservation()
    shown, paused = Shown(sim), {}
    for name, compiled in every_compiled.items():
        try:
            _compare_one(image, shown, stop, compiled, paused)
        except BaseException as error:
            error.add_note(f"engine {name}")
            raise


def _compare_one(
    image: Image, shown: Shown, stop: Stop, compiled, paused: dict[int, Shown]
) -> None:
    other = compiled(image)
    assert other.run(until_ps=LIMIT_PS) == stop
    assert_same(shown, other, stop)
    if stop == Stop.DONE:
        other.check_conservation()
    if stop == Stop.DEADLOCK:
        until_ps = min(shown.now_ps, other.now_ps) - 1
        if until_ps not in paused:
            sim = Wanted(image)
            assert sim.run(until_ps=until_ps) == Stop.TIME
            paused[until_ps] = Shown(sim)
        again = compiled(image)
        assert again.run(until_ps=until_ps) == Stop.TIME
        assert_same(paused[until_ps], again, Stop.TIME)


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_engines_agree_on_random_images(every_compiled, batch):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        try:
            compare(random_image(random.Random(seed)), every_compiled)
        except BaseException as error:
            error.add_note(f"random_image(random.Random({seed}))")
            raise


def with_further_policies(image: Image, seed: int) -> Image:
    """Return the image with some of: policies of receivers, schedules, paths, senders and receivers; late marks."""
    rng = random.Random(f"policies {seed}")
    image = chosen_image(image, rng) if rng.random() < 0.5 else image
    image = granted_image(image, rng) if rng.random() < 0.5 else image
    image = pathed_image(image, rng) if rng.random() < 0.5 else image
    image = joined_image(image, rng) if rng.random() < 0.5 else image
    return late_image(image, rng) if rng.random() < 0.5 else image


def compare_with_losses(seed: int, every_compiled) -> None:
    rng = random.Random(seed)
    image = lossy_image(scheduled_image(random_image(rng), rng), rng)
    try:
        image = sender_image(image, rng) if seed % 2 else image
        image = judged_image(image, rng) if seed % 3 == 0 else image
        compare(with_further_policies(image, seed), every_compiled)
    except BaseException as error:
        error.add_note(f"lossy_image of scheduled_image of random_image(random.Random({seed}))")
        raise


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_engines_agree_on_random_images_with_losses(every_compiled, batch):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        compare_with_losses(seed, every_compiled)


@pytest.mark.parametrize("seed", [588, 1174, 1671])
def test_engines_agree_where_they_did_not(every_compiled, seed):
    """Headers in a queue that marks only; messages over one adapter as their first and as their last one."""
    compare_with_losses(seed, every_compiled)


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_engines_agree_on_random_images_with_schedules(every_compiled, batch):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        rng = random.Random(seed)
        try:
            compare(scheduled_image(random_image(rng), rng), every_compiled)
        except BaseException as error:
            error.add_note(f"scheduled_image of random_image(random.Random({seed}))")
            raise


@settings(
    max_examples=CASES // 4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(image=images())
def test_engines_agree_on_drawn_images(every_compiled, image):
    compare(image, every_compiled)


def _mechanisms(image: Image, wires) -> set[str]:
    """Name the mechanisms that an image uses, and that showed in its counters."""
    levels = image.vertices["parent"][image.vertices["parent"] != NONE]
    used = {
        "zones": len(np.unique(image.nodes["zone"])) > 1,
        "limits": (image.formats["limit_bytes"] < image.conns["packet_bytes"].max(initial=1)).any(),
        "fetch": (image.conns["via_first"] != NONE).any(),
        "message vias": (image.messages["via_first"] != NONE).any(),
        "last via only": (
            (image.conns["via_first"] == NONE) & (image.conns["via_last"] != NONE)
        ).any(),
        "stage": (image.conns["stage"] != NONE).any(),
        "connection control": (image.conns["control"] != NONE).any(),
        "source control": (image.sources["control"] != NONE).any(),
        "tree": len(image.vertices) > 0,
        "order": (image.spreads["ordered"] != 0).any(),
        "flowlets": (image.spreads["gap_ps"] > 0).any(),
        "credit": (image.spreads["estimate"] > 0).any(),
        "detours": (image.spreads["detour_lo"] < image.spreads["detour_hi"]).any(),
        "minimal paths": (image.spreads["minimal_vc"] > 0).any(),
        "deep tree": (image.vertices["parent"][levels] != NONE).any(),
        **{name: wires[name].any() for name in ("pauses", "overflows", "marks", "replays")},
    }
    return {name for name, value in used.items() if value}


def test_random_images_use_every_mechanism(compiled):
    counts: dict[str, int] = {}
    for seed in range(CASES):
        image = random_image(random.Random(seed))
        sim = compiled(image)
        sim.run(until_ps=LIMIT_PS)
        for name in _mechanisms(image, sim.wires()):
            counts[name] = counts.get(name, 0) + 1
    seldom = {name: n for name, n in counts.items() if n < CASES // 40}
    assert len(counts) == 19
    assert not seldom, f"of {CASES} images: {counts}"


def _slices(rng: random.Random, end_ps: int) -> list[int]:
    return sorted(rng.randrange(end_ps + 1) for _ in range(5))


@pytest.mark.parametrize("seed", range(CASES // 10))
def test_slices_of_time_equal_one_run(engine, seed):
    image = random_image(random.Random(seed))
    whole, sliced = engine(image), engine(image)
    stop = whole.run(until_ps=LIMIT_PS)
    for until_ps in _slices(random.Random(seed), whole.now_ps):
        sliced.run(until_ps=until_ps)
    assert sliced.run(until_ps=LIMIT_PS) == stop
    assert_same(whole, sliced, stop)


@pytest.mark.parametrize("seed", range(CASES // 10))
def test_slices_of_events_equal_one_run(engine, seed):
    image = random_image(random.Random(seed))
    whole, sliced = engine(image), engine(image)
    stop = whole.run(until_ps=LIMIT_PS)
    while (reason := sliced.run(until_ps=LIMIT_PS, max_events=37)) == Stop.EVENTS:
        pass
    assert reason == stop
    assert_same(whole, sliced, stop)


@pytest.mark.parametrize("seed", range(CASES // 10))
def test_engines_agree_in_the_middle_of_a_run(every_compiled, seed):
    image = random_image(random.Random(seed))
    whole, paused = Wanted(image), Wanted(image)
    whole.run(until_ps=LIMIT_PS)
    sims = {name: compiled(image) for name, compiled in every_compiled.items()}
    for until_ps in _slices(random.Random(seed), whole.now_ps):
        stop = paused.run(until_ps=until_ps)
        shown = Shown(paused)
        for name, sim in sims.items():
            assert sim.run(until_ps=until_ps) == stop, name
            if stop == Stop.TIME:
                assert_same(shown, sim, stop)
