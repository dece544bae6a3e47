"""Sender policies: both engines call the same functions, in every way of running, and refuse illegal answers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from clusim.base.errors import ClusimError, InputError, InternalError, ScheduleError
from clusim.engine.abi import NONE, Stop
from clusim.engine.image import Image
from clusim.engine.simulation import Simulation
from clusim.policies.choice import Sender
from support import sender_policies
from support.covering import THOROUGH
from support.engines import CHOSEN, maker
from support.images import ImageBuilder
from support.random_images import random_image
from support.random_senders import controlled, sender_image

FABRICS = 2000 if THOROUGH else 12


SAMPLE_PS = 7001


def _result(engine: str, image: Image) -> tuple[Any, ...]:
    """Return the end and the counters of a run, or its error."""
    sim = maker(engine)(image)
    sim.sample(SAMPLE_PS, SAMPLE_PS, 20, controlled(image))
    try:
        stop = sim.run()
    except ClusimError as error:
        return (str(error),)
    if stop != Stop.DONE:
        return (stop,)
    flows = *(rows.tolist() for rows in sim.samples()), sim.flows().tolist()
    sim.check_conservation()
    counters = sim.records().tolist(), sim.wires().tolist()
    return stop, sim.fingerprint(), sim.now_ps, *counters, flows


@pytest.mark.parametrize("seed", range(FABRICS))
def test_engines_agree_on_random_fabrics_with_policies(seed: int) -> None:
    rng = random.Random(seed)
    image = sender_image(random_image(rng), rng)
    results = {engine: _result(engine, image) for engine in CHOSEN}
    first, *others = results.values()
    assert all(other == first for other in others), {k: v[:3] for k, v in results.items()}


def _two_hosts(policy: str, messages: int = 1) -> Image:
    """Return the image of one flow over a wire of 1 byte per 10 ps with a policy."""
    builder = ImageBuilder()
    first, second = builder.endpoint(), builder.endpoint()
    builder.link(first, second)
    row = builder.control(Sender(policy))
    builder.source(first, [(0, 2000, second)] * messages, control=row)
    return builder.build()


def _local(name: str) -> str:
    return f"{sender_policies.PLACE}:{name}"


@pytest.mark.parametrize("engine", CHOSEN)
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (sender_policies.Stuck, "rate = 0 at 3 ns, source 0; must be 1 to 2^40 - 1"),
        (sender_policies.Outside, "failed at 3 ns, source 0; divided by zero, shifted by"),
        (sender_policies.Astray, "path = 4294967296 at 0 ps, source 0; must be 0 to 2^32 - 1"),
        (sender_policies.Late, "timer_ps = 1000 at 1 ns, source 0; must be later than now"),
    ],
)
def test_an_illegal_answer_names_function_line_flow_and_time(
    engine: str, policy: Any, words: str
) -> None:
    """Packets of 99 + 1 bytes at 10 ps per byte: the fourth leaves at 3 ns, the second at 1 ns."""
    line = policy.sent.__code__.co_firstlineno
    with pytest.raises(InputError) as caught:
        maker(engine)(_two_hosts(_local(policy.__name__))).run()
    assert f": {policy.__name__}.sent, line {line}: {words}" in str(caught.value)


@pytest.mark.parametrize("engine", CHOSEN)
def test_a_timer_may_be_due_when_a_notice_arrives(engine: str) -> None:
    """Packets of 100 bytes leave each ns, and arrive a ns later: a notice after 2,001 ps."""
    builder = ImageBuilder()
    first, second = builder.endpoint(), builder.endpoint()
    builder.link(first, second)
    row = builder.control(Sender(_local("Punctual"), (("at_ps", 2001),)))
    builder.source(first, [(0, 2000, second)], control=row)
    with pytest.raises(InputError, match=r"Punctual.timer, line \d+: window = -2002 at 2.001 ns"):
        maker(engine)(builder.build()).run()


@pytest.mark.parametrize("engine", CHOSEN)
@pytest.mark.parametrize(
    ("host", "packet", "values"),
    [
        (0, 0, (1100, 100, 0)),
        (0, 1, (3100, 100, 200)),
        (1, 0, (2100, 200, 100)),
        (1, 1, (4100, 0, 300)),
    ],
)
def test_telemetry_of_a_switch_by_hand(
    engine: str, host: int, packet: int, values: tuple[int, ...]
) -> None:
    """Two hosts send two packets each of 99 + 1 bytes at 10 ps per byte, at once, through a switch to a third.

    Packets reach the switch after 1,000 ps of wire, 10 of header and 90 of switch, the second ones 1,000 later. It
    sends them in turns, from the first host first: at 1,100 one other waits, at 2,100 both second ones do.
    """
    fields = (*values, (1 << 30) // 10, 5, 1)
    for value, expected in enumerate(fields):
        builder = ImageBuilder()
        switch = builder.switch()
        hosts = [builder.endpoint() for _ in range(3)]
        marks = {"ecn_min_bytes": 10**6, "ecn_max_bytes": 2 * 10**6}
        for place in hosts:
            builder.link(place, switch, **marks)
        place = _local("Reveal")
        row = builder.control(Sender(place, (("packet", packet), ("value", value))))
        for number in range(2):
            control = row if number == host else NONE
            message = [(0, 198, hosts[2])]
            builder.source(hosts[number], message, packet_bytes=99, control=control)
        with pytest.raises(InputError, match=rf"window = {-1 - expected} at "):
            maker(engine)(builder.build()).run()


def test_an_image_without_its_policies_is_refused() -> None:
    image = _two_hosts("swift")
    image.senders = ()
    for engine in ("reference", "c"):
        with pytest.raises(ScheduleError, match=r"controls\[0\]: no sender policy"):
            maker(engine)(image)


def test_the_digest_of_an_image_covers_the_policy() -> None:
    digests = {_two_hosts(name).digest() for name in ("swift", "dctcp", _local("Narrow"))}
    assert len(digests) == 3


def test_a_policy_without_limits_changes_no_time() -> None:
    """A flow at its line rate is never held by the pace: 2,000 bytes as without rate control."""
    free = Simulation(_two_hosts(_local("Free"), 3))
    image = _two_hosts(_local("Free"), 3)
    image.sources["control"] = 2**32 - 1
    plain = Simulation(image)
    assert free.run() == plain.run() == Stop.DONE
    assert free.message_times().tolist() == plain.message_times().tolist()


@pytest.mark.parametrize("engine", CHOSEN)
def test_a_sample_of_a_flow_has_its_payload_rate_window_and_round_trip(engine: str) -> None:
    """Packets of 99 bytes leave every 1,000 ps; the first notice needs as long, the wire's latency, and 1 ps.

    It widens the window of `Narrow` from 300 to 400 bytes.
    """
    sim = maker(engine)(_two_hosts(_local("Narrow")))
    sim.sample(999, 1, 2, np.array([0]))
    assert sim.run(until_ps=1500) == Stop.TIME
    _, _, flows = sim.samples()
    assert flows["sent_bytes"].tolist() == [[99], [198]]
    now = sim.flows()
    assert now["sent_bytes"].tolist() == [198]
    assert now["window"].tolist() == [300]
    assert now["in_flight"].tolist() == [198]
    assert now["rtt_ps"].tolist() == [0]
    assert sim.run(until_ps=2001) == Stop.TIME
    assert sim.flows().tolist() == [(297, 0, now["rate"][0], 400, 198, 2001)]
    assert sim.run() == Stop.DONE
    assert sim.flows()["sent_bytes"].tolist() == [2000]


def test_a_flow_without_rate_control_has_no_samples() -> None:
    image = _two_hosts("swift")
    image.sources["control"] = 2**32 - 1
    with pytest.raises(InternalError, match="a flow without rate control"):
        Simulation(image).sample(1, 1, 1, np.array([0]))
