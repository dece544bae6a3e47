"""Gates of policies of schedules: the class of the next packet, against rules of the engine and by hand.

Packets last 1000 ps. The wire to the receiver is granted anew every 1000 ps from 1100 on; what is granted there at t is
complete at t + 2010.
"""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError, ScheduleError
from clusim.engine.simulation import Simulation
from clusim.policies.choice import Sender
from support import wire_policies
from support.gates import assert_messages_at, finish
from support.images import ImageBuilder


def classes(name: str, packets: tuple[int, ...], late_ps: int = 0) -> ImageBuilder:
    """Endpoints send messages of classes 0, 1, ... over a switch to another, the last one later."""
    builder = ImageBuilder(nvc=len(packets))
    places = [builder.endpoint() for _ in range(len(packets) + 1)]
    switch = builder.switch()
    for place in places:
        builder.link(place, switch)
    if name:
        row = builder.control(Sender(f"{wire_policies.PLACE}:{name}"))
        number = builder.schedule()
        builder.rows["schedules"][-1]["policy"] = row + 1
        builder.rows["wires"][2 * len(packets) + 1]["schedule"] = number
    for vc, count in enumerate(packets):
        start_ps = late_ps if vc == len(packets) - 1 else 0
        builder.source(places[vc], [(start_ps, 99 * count, places[-1])], vc=vc)
    return builder


def granted_at(slot: int) -> int:
    """Return when a message is complete whose last packet leaves the switch in a slot."""
    return 1100 + 1000 * slot + 2010


def test_the_highest_class_first_is_strict_priority(engine):
    """The second class has slots 0 to 9, the first one the others, as in the gates of schedules."""
    builder = classes("Highest", (10, 10))
    assert_messages_at(engine, builder, granted_at(19), granted_at(9))


def test_the_oldest_packet_first_is_first_in_first_out(engine):
    """The class that arrives later waits for all that is older: ten packets of the first two, until slot 9."""
    builder = classes("Oldest", (5, 5, 1), 4000)
    assert_messages_at(engine, builder, granted_at(8), granted_at(9), granted_at(10))
    plain = finish(engine, classes("", (5, 5, 1), 4000)).message_times().tolist()
    assert plain[2] < granted_at(10)  # round robin lets it leave earlier


def test_the_longest_class_first_uses_the_bytes_of_the_queues(engine):
    """The first slot goes to the first of equal queues; then each second one, as the other queue is longer."""
    builder = classes("Longest", (4, 4))
    assert_messages_at(engine, builder, granted_at(6), granted_at(7))


WRONG = [
    ("Absent", "answer = 1 at 1.1 ns, wire 5; must be a class with a packet"),
    ("Uneven", "failed at 1.1 ns, wire 5; divided by zero"),
]


@pytest.mark.parametrize(("name", "words"), WRONG)
def test_an_illegal_answer_names_function_line_wire_and_time(engine, name, words):
    line = getattr(wire_policies, name).next.__code__.co_firstlineno
    builder = classes(name, (2, 2), 5000)
    with pytest.raises(InputError) as caught:
        engine(builder.build()).run()
    assert f": {name}.next, line {line}: {words}" in str(caught.value)


def test_a_policy_of_schedules_is_of_switches_and_of_its_kind():
    builder = classes("Oldest", (1, 1))
    builder.rows["wires"][0]["schedule"] = 1
    with pytest.raises(ScheduleError, match=r"wires\[0\].*policy of switches"):
        Simulation(builder.build())
    builder = classes("AtOnce", (1, 1))
    with pytest.raises(ScheduleError, match=r"wires\[5\].*another kind"):
        Simulation(builder.build())
    builder = classes("Oldest", (1, 1))
    builder.rows["sources"][0]["control"] = 0
    with pytest.raises(ScheduleError, match=r"sources\[0\].*policy of queues"):
        Simulation(builder.build())
