"""Both engines agree, to the picosecond and in every counter, on random images.

200 cases by default, 2,000 with CLUSIM_THOROUGH=1.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from clusim.engine.abi import NONE, State, Stop
from clusim.engine.image import Image
from clusim.engine.reference import ReferenceSimulation
from support.random_images import images, random_image

THOROUGH = os.environ.get("CLUSIM_THOROUGH") == "1"
CASES = 2000 if THOROUGH else 200
BATCH = 20
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
    _assert_same_wires(a, b, stop == Stop.DEADLOCK)
    _assert_same_states(a, b)
    if stop != Stop.DEADLOCK:
        assert a.now_ps == b.now_ps
    if stop == Stop.DONE:
        assert a.fingerprint() == b.fingerprint()


def compare(image: Image, compiled) -> Stop:
    """Run an image on both engines and compare all they show."""
    sims = ReferenceSimulation(image), compiled(image)
    stops = [sim.run(until_ps=LIMIT_PS) for sim in sims]
    assert stops[0] == stops[1]
    assert_same(*sims, stops[0])
    if stops[0] == Stop.DONE:
        for sim in sims:
            sim.check_conservation()
    if stops[0] == Stop.DEADLOCK:
        until_ps = min(sim.now_ps for sim in sims) - 1
        again = ReferenceSimulation(image), compiled(image)
        stops_again = [sim.run(until_ps=until_ps) for sim in again]
        assert stops_again == [Stop.TIME, Stop.TIME]
        assert_same(*again, Stop.TIME)
    return stops[0]


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_engines_agree_on_random_images(compiled, batch):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        try:
            compare(random_image(random.Random(seed)), compiled)
        except BaseException as error:
            error.add_note(f"random_image(random.Random({seed}))")
            raise


@settings(
    max_examples=CASES // 4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(image=images())
def test_engines_agree_on_drawn_images(compiled, image):
    compare(image, compiled)


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
    assert len(counts) == 14
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
def test_engines_agree_in_the_middle_of_a_run(compiled, seed):
    image = random_image(random.Random(seed))
    sims = ReferenceSimulation(image), compiled(image)
    sims[0].run(until_ps=LIMIT_PS)
    end_ps = sims[0].now_ps
    paused = ReferenceSimulation(image)
    for until_ps in _slices(random.Random(seed), end_ps):
        stops = [sim.run(until_ps=until_ps) for sim in (paused, sims[1])]
        assert stops[0] == stops[1]
        if stops[0] == Stop.TIME:
            assert_same(paused, sims[1], stops[0])
