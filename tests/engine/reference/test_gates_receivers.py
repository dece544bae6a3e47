"""Gates of policies of receivers: credit by hand. Packets last 1000 ps, and are complete 3110 ps after their grant.

Requests and credit travel 5000 ps. A packet granted at its source at t arrives at its receiver at t + 3100.
"""

from __future__ import annotations

import numpy as np
import pytest

from clusim.base.errors import InputError, ScheduleError
from clusim.engine.simulation import Simulation
from clusim.policies.choice import Sender
from support import wire_policies
from support.gates import assert_messages_at, finish
from support.images import ImageBuilder

DELAY = 5000
PACKET = 99
SPREAD = {"ordered": 1, "selective": 1, "timeout_ps": 20_000, "retries": 100}


def into_one(name: str, packets: int, senders: int = 1, **constants: int) -> ImageBuilder:
    """Endpoints send a message each at once to another, over a switch, with a policy of its receiver."""
    builder = ImageBuilder()
    places = [builder.endpoint() for _ in range(senders + 1)]
    switch = builder.switch()
    for place in places:
        builder.link(place, switch)
    policy = name if name == "rccc" else f"{wire_policies.PLACE}:{name}"
    row = builder.control(Sender(policy, tuple(constants.items())), cnp_delay_ps=DELAY)
    for place in places[:senders]:
        builder.source(place, [(0, packets * PACKET, places[senders])], control=row)
    return builder


def complete_at(granted_ps: int) -> int:
    """Return when a message is complete whose last packet is granted at its source at a time."""
    return granted_ps + 3110


def test_a_flow_without_credit_starts_after_its_request_and_the_grant(engine):
    builder = into_one("AtOnce", 3)
    assert_messages_at(engine, builder, complete_at(2 * DELAY + 2000))


def test_any_credit_lets_one_packet_leave(engine):
    """The first packet at once; credit of 1 byte; the others with that for the request."""
    builder = into_one("AtOnce", 3, first_bytes=1)
    assert_messages_at(engine, builder, complete_at(2 * DELAY + 1000))


def test_credit_for_arrivals_is_a_window(engine):
    """Two packets at a time: the third and the fourth leave when the first two have arrived, and so on."""
    builder = into_one("ForArrivals", 5, first_bytes=2 * PACKET)
    trip_ps = 3100 + DELAY
    assert_messages_at(engine, builder, complete_at(2 * trip_ps))


def test_credit_is_of_one_flow(engine):
    """All credit of both requests goes to the second flow: the first is never complete."""
    sim = engine(into_one("Favourite", 3, 2).build())
    sim.run(until_ps=10**6)
    assert sim.message_times().tolist() == [-1, complete_at(2 * DELAY + 2000)]


def dropping(engine, **constants: int):
    """Three flows into a queue of 3 packets, with retransmission."""
    builder = into_one("AtOnce", 20, 3, **constants)
    builder.rows["wires"][7]["queue_bytes"] = 300
    spread = builder.spread(**SPREAD)
    for source in builder.rows["sources"]:
        source["spread"] = spread
    sim = finish(engine, builder)
    sim.check_conservation()
    return int(sim.wires()["drops"][7]), sim.now_ps


def test_lost_payload_is_requested_again(engine):
    """Without a further grant the run would not end; each loss costs a request and a grant at least."""
    drops, _ = dropping(engine)
    assert drops > 0


WRONG = [
    ("Negative", "requested", "credit = -1 at 5 ns, source 0; must be 0 to 2^40 - 1"),
    ("Stranger", "requested", "flow = 2 at 5 ns, source 0; must be the number of a flow"),
    ("Late", "requested", "timer_ps = 1 at 5 ns, source 0; must be later than now"),
    ("Zero", "arrived", "failed at 3.1 ns, source 0; divided by zero"),
]


@pytest.mark.parametrize(("name", "function", "words"), WRONG)
def test_an_illegal_answer_names_function_line_flow_and_time(engine, name, function, words):
    line = getattr(getattr(wire_policies, name), function).__code__.co_firstlineno
    with pytest.raises(InputError) as caught:
        engine(into_one(name, 2, 2).build()).run()
    assert f": {name}.{function}, line {line}: {words}" in str(caught.value)


def test_policies_of_receivers_exclude_receivers_in_order_without_retransmission():
    builder = into_one("AtOnce", 1)
    builder.rows["sources"][0]["spread"] = builder.spread(ordered=1)
    with pytest.raises(ScheduleError, match="excludes receivers in order"):
        Simulation(builder.build())


# RCCC: a link of 100 bytes per 1000 ps, first windows of 1.5 * 20,000 ps of it: 3000 bytes.

RCCC = {"base_ps": 20_000, "pull_bytes": PACKET, "header_bytes": 1}
WINDOW = 3000


@pytest.mark.parametrize("packets", [1, 20, 500])
def test_a_flow_alone_has_the_time_without_rate_control(engine, packets):
    """The window covers the round trip of 3100 ps and the delay."""
    held, free = into_one("rccc", packets, **RCCC), into_one("rccc", packets)
    free.rows["sources"][0]["control"] = 0xFFFFFFFF
    free.rows["controls"].clear()
    free._senders.clear()
    assert finish(engine, held).message_times() == finish(engine, free).message_times()


@pytest.mark.parametrize("senders", [2, 4, 8])
def test_flows_into_one_fill_its_link_equally_and_their_queue_is_at_most_their_windows(
    engine, senders
):
    """Grants add up to the rate of the link; without them the queue grows with the messages."""
    packets = 200
    builder = into_one("rccc", packets, senders, **RCCC)
    sim = engine(builder.build())
    flows = np.arange(senders, dtype=np.uint32)
    sim.sample(60_000, 60_000, 2, flows)
    sim.run()
    assert sim.now_ps == complete_at((senders * packets - 1) * 1000)
    queue = int(sim.wires()["queued_max"][2 * senders + 1])
    assert queue <= senders * (WINDOW + 100)
    rows = sim.samples()[2]
    sent = rows["sent_bytes"][1] - rows["sent_bytes"][0]
    assert sent.sum() == pytest.approx(60 * PACKET, rel=0.03)
    assert sent.sum() ** 2 / (senders * (sent**2).sum()) > 0.95


def test_without_credit_the_queue_is_that_of_the_messages(engine):
    builder = into_one("rccc", 200, 4)
    for source in builder.rows["sources"]:
        source["control"] = 0xFFFFFFFF
    builder.rows["controls"].clear()
    builder._senders.clear()
    sim = finish(engine, builder)
    assert sim.wires()["queued_max"][9] > 4 * (WINDOW + 100)
