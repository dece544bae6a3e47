"""Gates of policies of paths, of flows with two policies, and of marks at departure, by hand.

Packets of 100 bytes on the wire last 1000 ps; they arrive at a switch 1100 ps after their grant.
"""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError, ScheduleError
from clusim.engine.reference.specs import hash32
from clusim.engine.simulation import Simulation
from clusim.policies.choice import Sender
from support import path_policies, sender_policies, wire_policies
from support.gates import assert_messages_at, counters, finish
from support.images import LINE_RATE, ImageBuilder

PACKET = 99
SWITCH = 3
"""Node of the switch that chooses."""

DELAY = 5000
SEED = 7


def forked(name: str = "", senders: int = 2, policy: str = "adaptive", **fields) -> ImageBuilder:
    """Senders on a switch send to an endpoint behind another one, over three wires, the first of which is slower.

    `fields` are constants of the policy, and of the spread of the sources if it has any.
    """
    builder = ImageBuilder(seed=SEED)
    places = [builder.endpoint() for _ in range(3)]
    near, far = builder.switch(), builder.switch()
    for place in places[:2]:
        builder.link(place, near)
    builder.link(near, far, (1, 20), buffer_bytes=600)
    for _ in range(2):
        builder.link(near, far, buffer_bytes=600)
    builder.link(far, places[2], (1, 5))
    spread = {"estimate": fields.pop("estimate")} if "estimate" in fields else None
    if name:
        place = name if "-" in name else f"{path_policies.PLACE}:{name}"
        sender = Sender(place, tuple(fields.items()))
        builder.rows["nodes"][SWITCH]["policy"] = 1 + builder.control(sender)
    more = {} if spread is None else {"spread": builder.spread(**spread)}
    for place in places[:senders]:
        builder.source(place, [(0, 20 * PACKET, places[2])], policy=policy, **more)
    return builder


@pytest.mark.parametrize("by_credit", [0, 1])
def test_a_policy_chooses_as_the_engine_does_by_load(engine, by_credit):
    """Least load, with and without credit: equal fingerprints. A policy that ignores load has another one."""
    rule = finish(engine, forked(estimate=by_credit))
    found = finish(engine, forked("adaptive-policy", estimate=by_credit, by_credit=by_credit))
    assert found.fingerprint() == rule.fingerprint()
    other = finish(engine, forked("InTurn", estimate=by_credit))
    assert other.fingerprint() != rule.fingerprint()


def test_a_policy_sprays_as_the_engine_does(engine):
    """Packet i has the key i, and leaves over wire i mod 3."""
    rule = finish(engine, forked(policy="stripe"))
    found = finish(engine, forked("ByKey", policy="stripe"))
    assert found.fingerprint() == rule.fingerprint()
    assert [counters(found, wire, "grants")[0] for wire in (4, 6, 8)] == [14, 14, 12]


def test_in_turn_over_all_flows_of_the_switch(engine):
    """The state is that of the switch: 40 packets of two flows."""
    sim = finish(engine, forked("InTurn", policy="pinned"))
    assert [counters(sim, wire, "grants")[0] for wire in (4, 6, 8)] == [14, 13, 13]
    sim.check_conservation()


VALUES = [
    (0, 0, PACKET),
    (3, 1, 1),  # the second packet of the second flow: key 1
    (3, 2, 1),
    (3, 3, hash32(SEED, SWITCH, 1)),
    (0, 4, 3),
    (0, 5, 0),
    (1, 5, 100),  # both first packets arrive at 1100: the second finds the first
    (2, 5, 100),  # at 2100 one is on the wire
    (3, 5, 200),
    (3, 6, 0),
    (1, 7, 600),
    (2, 7, 500),  # the first packet left at 1100
    (0, 8, (1 << 30) // 20),
    (0, 9, 6),
]


@pytest.mark.parametrize(("packet", "value", "expected"), VALUES)
def test_values_of_a_policy_by_hand(engine, packet, value, expected):
    """All packets take the first wire until the one that tells."""
    builder = forked("Tell", packet=packet, value=value)
    with pytest.raises(InputError, match=rf"Tell.choose, line \d+: answer = {-1 - expected} at "):
        engine(builder.build()).run()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Beyond", "answer = 3 at 1.1 ns, switch 3; must be the number of a wire of `wires`"),
        ("Halved", "failed at 1.1 ns, switch 3; divided by zero"),
    ],
)
def test_an_illegal_answer_names_function_line_switch_and_time(engine, name, words):
    line = getattr(path_policies, name).choose.__code__.co_firstlineno
    with pytest.raises(InputError) as caught:
        engine(forked(name).build()).run()
    assert f": {name}.choose, line {line}: {words}" in str(caught.value)


def test_a_policy_of_paths_is_of_switches_only():
    for node, words in ((0, "an endpoint with a policy of paths"), (4, "of another kind")):
        builder = forked("InTurn")
        row = 1 if node == 0 else 1 + builder.control(Sender("swift"))
        builder.rows["nodes"][node]["policy"] = row
        with pytest.raises(ScheduleError, match=words):
            Simulation(builder.build())


# Two policies: packets leave when rate and credit permit.


def joint(share: int, packets: int, window: int = 2) -> ImageBuilder:
    """One flow at a part of the line rate, with credit for a packet for each that arrives."""
    builder = ImageBuilder()
    first, second, switch = builder.endpoint(), builder.endpoint(), builder.switch()
    for place in (first, second):
        builder.link(place, switch)
    constants = (("first_bytes", window * PACKET),)
    receiver = builder.control(Sender(f"{wire_policies.PLACE}:ForArrivals", constants))
    slow = Sender(f"{sender_policies.PLACE}:Slow", (("share", share),))
    row = builder.control(slow, cnp_delay_ps=DELAY, receiver=1 + receiver)
    builder.source(first, [(0, packets * PACKET, second)], control=row)
    return builder


@pytest.mark.parametrize("share", [1, 2, 4, 5, 8])
def test_the_slower_of_rate_and_credit_decides(engine, share):
    """Two packets per trip of 8100 ps, by the delay of the flow's row, and each a gap after the last one."""
    gap_ps, trip_ps = -((-PACKET << 30) // (LINE_RATE // share)), 3100 + DELAY
    times = [0]
    for number in range(1, 9):
        credit_ps = times[number - 2] + trip_ps if number >= 2 else 0
        times.append(max(1000 * number, times[-1] + gap_ps, credit_ps))
    assert_messages_at(engine, joint(share, 9), times[-1] + 3110)


def test_a_policy_of_senders_alone_is_faster_than_both(engine):
    free = joint(1, 9)
    free.rows["controls"][1]["receiver"] = 0
    assert finish(engine, free).now_ps < finish(engine, joint(1, 9)).now_ps


def test_flows_with_one_and_with_two_policies_share_a_receiver(engine):
    """It numbers both: all credit goes to the last one, whose rate is a quarter; the other never sends."""
    builder = ImageBuilder()
    places = [builder.endpoint() for _ in range(3)]
    switch = builder.switch()
    for place in places:
        builder.link(place, switch)
    favourite = Sender(f"{wire_policies.PLACE}:Favourite")
    receiver = builder.control(favourite, cnp_delay_ps=DELAY)
    slow = Sender(f"{sender_policies.PLACE}:Slow", (("share", 4),))
    both = builder.control(slow, cnp_delay_ps=DELAY, receiver=1 + receiver)
    for place, row in zip(places[:2], (receiver, both), strict=True):
        builder.source(place, [(0, 3 * PACKET, places[2])], control=row)
    sim = engine(builder.build())
    sim.run(until_ps=10**6)
    gap_ps = -((-PACKET << 30) // (LINE_RATE // 4))
    assert sim.message_times().tolist() == [-1, 2 * DELAY + 2 * gap_ps + 3110]


@pytest.mark.parametrize(
    ("field", "words"),
    [("sender", "beside none of senders"), ("receiver", "receivers is of another kind")],
)
def test_an_image_joins_a_policy_of_senders_and_one_of_receivers_only(field, words):
    builder = joint(2, 3)
    if field == "sender":
        builder.rows["controls"][1]["sender"] = 0
        builder._senders[1] = None
    else:
        builder.rows["controls"][1]["receiver"] = 2
    with pytest.raises(ScheduleError, match=words):
        Simulation(builder.build())


# Marks at departure: the queues that packets leave behind.

LEFT = [100, 200, 300, 200, 100, 0]
"""Behind the packets of two flows of three, which enter in pairs at 1100, 2100 and 3100, and leave from 1100 on."""


def star(**ecn: int) -> ImageBuilder:
    """Two senders and a switch; wire 5 leads to the receiver and marks packets that leave."""
    builder = ImageBuilder(seed=SEED)
    places = [builder.endpoint() for _ in range(3)]
    switch = builder.switch()
    for place in places:
        builder.link(place, switch)
    builder.rows["wires"][5].update(ecn | {"ecn_departure": 1})
    for place in places[:2]:
        builder.source(place, [(0, 3 * PACKET, places[2])])
    return builder


@pytest.mark.parametrize("most", [1, 100, 101, 200, 201, 300, 301])
def test_packets_that_leave_a_long_queue_are_marked(engine, most):
    """At arrival a queue of 300 marks 3 of them, at departure 1."""
    sim = finish(engine, star(ecn_max_bytes=most))
    assert counters(sim, 5, "marks") == (sum(left >= most for left in LEFT),)


@pytest.mark.parametrize("seed", range(6))
def test_between_the_thresholds_chance_decides_at_departure(engine, seed):
    builder = star(ecn_min_bytes=50, ecn_max_bytes=350, ecn_threshold=3 << 30)
    builder.seed = seed
    marks = 0
    for n, left in enumerate(LEFT):
        drawn = hash32(seed, 5 ^ (1 << 31), n)
        marks += left > 50 and drawn < (3 << 30) * (left - 50) // 300
    assert counters(finish(engine, builder), 5, "marks") == (marks,)


def test_marks_at_departure_reach_the_sender(engine):
    """The only packet that leaves 300 bytes behind notifies its sender, whose rate falls."""
    builder = star(ecn_max_bytes=300)
    row = builder.control(cnp_delay_ps=10, g_65536=65536, min_rate=LINE_RATE // 8)
    for source in builder.rows["sources"]:
        source["control"] = row
    builder.rows["messages"][0]["bytes"] = 40 * PACKET
    late = finish(engine, builder).now_ps
    builder.rows["wires"][5]["ecn_max_bytes"] = 0
    assert late > finish(engine, builder).now_ps


def test_drops_of_packets_that_would_be_marked_exclude_marks_at_departure():
    builder = star(ecn_max_bytes=300, red=1, queue_bytes=1000)
    with pytest.raises(ScheduleError, match="marks at departure"):
        Simulation(builder.build())
