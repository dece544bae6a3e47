"""Gates of policies of queues: answers of their functions, against rules of the engine and by hand."""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError, ScheduleError
from clusim.engine.simulation import Simulation
from clusim.policies.choice import Sender
from support import sender_policies
from support.gates import counters, finish
from support.images import ImageBuilder

SPREAD = {"ordered": 1, "selective": 1, "timeout_ps": 20_000, "retries": 100}


def incast(name: str = "", shared: int = 0, trimmed: int = 0, **wire: int) -> ImageBuilder:
    """Three endpoints send 20 packets each at once to a fourth, over a switch with a policy of its queues."""
    builder = ImageBuilder(nvc=2)
    places = [builder.endpoint() for _ in range(4)]
    switch = builder.switch()
    for place in places:
        builder.link(place, switch)
    builder.rows["nodes"][4]["shared_bytes"] = shared
    constants = {key: wire.pop(key) for key in list(wire) if key in CONSTANTS}
    builder.rows["wires"][7].update(wire)
    if name:
        sender = Sender(f"{sender_policies.PLACE}:{name}", tuple(constants.items()))
        builder.rows["wires"][7]["policy"] = 1 + builder.control(sender)
    row = builder.spread(**SPREAD, trimmed=trimmed)
    for place in places[:3]:
        builder.source(place, [(0, 20 * 99, places[3])], spread=row)
    return builder


CONSTANTS = ("mark_bytes", "drop_bytes", "alpha_1024", "answer")


def shown(engine, builder: ImageBuilder) -> tuple[object, ...]:
    """Return the end of a run and the counters of the wire with the policy."""
    sim = finish(engine, builder)
    sim.check_conservation()
    names = ("marks", "drops", "dropped_bytes", "trims", "queued_max")
    return sim.now_ps, *counters(sim, 7, *names)


def test_a_policy_marks_as_the_thresholds_of_the_engine_do(engine):
    rule = incast(ecn_min_bytes=300, ecn_max_bytes=300)
    found = shown(engine, incast("Step", mark_bytes=300))
    assert found == shown(engine, rule)
    assert found[1] > 0


def test_a_policy_drops_as_the_dynamic_threshold_of_the_engine_does(engine):
    builder = incast("Threshold", shared=1000, queue_bytes=10_000, alpha_1024=512)
    rule = incast(shared=1000, queue_bytes=10_000)
    rule.rows["wires"][7]["alpha_1024"] = 512
    found = shown(engine, builder)
    assert found == shown(engine, rule)
    assert found[2] > 0


def test_a_policy_trims_as_the_dynamic_threshold_of_the_engine_does(engine):
    fields = {"shared": 1000, "trimmed": 1, "queue_bytes": 10_000, "trim_vc": 1}
    builder = incast("Threshold", **fields, alpha_1024=512, answer=2)
    rule = incast(**fields)
    rule.rows["wires"][7]["alpha_1024"] = 512
    found = shown(engine, builder)
    assert found == shown(engine, rule)
    assert found[4] > 0


def test_a_policy_that_drops_does_not_trim(engine):
    fields = {"shared": 1000, "trimmed": 1, "queue_bytes": 10_000, "trim_vc": 1}
    found = shown(engine, incast("Threshold", **fields, alpha_1024=512, answer=3))
    assert found[2] > 0
    assert found[4] == 0


def test_a_full_queue_drops_whatever_its_policy_says(engine):
    assert shown(engine, incast("Step", queue_bytes=500)) == shown(engine, incast(queue_bytes=500))


def test_packets_without_retransmission_are_only_marked(engine):
    builder = incast("Step", queue_bytes=10_000, drop_bytes=99, mark_bytes=0)
    for source in builder.rows["sources"]:
        source["spread"] = 0xFFFFFFFF
    builder.rows["spreads"].clear()
    assert counters(finish(engine, builder), 7, "drops", "marks") == (0, 0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Wrong", "answer = 4 at 1.1 ns, wire 7; must be 0 to 3"),
        ("Divided", "failed at 1.1 ns, wire 7; divided by zero"),
    ],
)
def test_an_illegal_answer_names_function_line_wire_and_time(engine, name, words):
    line = getattr(sender_policies, name).enqueue.__code__.co_firstlineno
    with pytest.raises(InputError) as caught:
        engine(incast(name).build()).run()
    assert f": {name}.enqueue, line {line}: {words}" in str(caught.value)


def test_a_policy_of_queues_is_no_rate_control():
    builder = incast("Step")
    builder.rows["sources"][0]["control"] = 0
    with pytest.raises(ScheduleError, match=r"sources\[0\].*policy of queues"):
        Simulation(builder.build())


def test_a_policy_of_senders_is_none_of_queues():
    builder = incast("Free")
    with pytest.raises(ScheduleError, match=r"wires\[7\].*policy is of senders"):
        Simulation(builder.build())
