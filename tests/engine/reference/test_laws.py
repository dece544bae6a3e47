"""The laws of every run (contract, section 12) hold, and the reference says so when one is broken.

The C engine's laws are made to fire in csrc/tests/test_laws.c, from inside.
"""

from __future__ import annotations

import pytest

from clusim.base.errors import InternalError
from clusim.engine.abi import Stop
from clusim.engine.reference import ReferenceSimulation
from support.images import ImageBuilder, prim


@pytest.fixture
def finished():
    """A run of the reference that ended: programs, a delay behind a kernel, and a message."""
    builder = ImageBuilder()
    a, b = builder.endpoint(inject_256=256), builder.endpoint()
    builder.link(a, b)
    conn = builder.conn(a, b)
    builder.run_alone(a, prim("send", send=0), conns=(conn,), length=500)
    builder.run_alone(b, prim("recv", recv=0), conns=(conn,), length=500)
    kernel = builder.task("kernel", compute_ps=3000, sms=1, endpoint=a.ep)
    builder.task("delay", (kernel,), delay_ps=700)
    builder.source(a, [(0, 300, b)])
    sim = ReferenceSimulation(builder.build())
    assert sim.run() == Stop.DONE
    return sim


def _falsify(sim: ReferenceSimulation, what: str) -> None:
    machine, schedule = sim._machine, sim._schedule
    wire, final = machine.wires[0], sim._final
    assert final is not None
    if what == "bytes":
        wire.counters.bytes *= 2
    elif what == "busy":
        wire.counters.busy_ps = wire.free_at_ps + 10**6
    elif what == "waits":
        final[0]["stall_credit_ps"] = sim.now_ps
    elif what == "contended":
        final[0]["stall_arbitration_ps"] = 36 * final[0]["busy_ps"]
    elif what == "memory":
        machine.memories[1].bytes_256 <<= 40
    elif what == "delay":
        schedule.starts_ps[3] += 1
    elif what == "cause":
        schedule.starts_ps[3] -= 1
    elif what == "sent":
        machine.payload.sent[0] -= 1
    elif what == "received":
        machine.payload.taken[1] += 1
    elif what == "credit":
        wire.credit[0] -= 1


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("bytes", "busy time of wire 0 for its bytes"),
        ("busy", "busy time of wire 0: "),
        ("waits", "busy time of wire 0 and its waiting"),
        ("contended", "contended busy time of wire 0"),
        ("memory", "time for the memory traffic of endpoint 1"),
        ("delay", "duration of task 3: 699 against 700"),
        ("cause", "start of task 3"),
        ("sent", "payload sent by endpoint 0: 800 against 799"),
        ("received", "payload received by endpoint 1: 800 against 801"),
        ("credit", "wire 0 VC 0"),
    ],
)
def test_a_broken_law_of_the_reference_is_an_internal_error(finished, what, words):
    finished.check_conservation()
    _falsify(finished, what)
    with pytest.raises(InternalError, match=words) as caught:
        finished.check_conservation()
    assert caught.value.exit_code == 70


def test_a_transfer_that_lost_bytes_is_an_internal_error():
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    builder.source(a, [(0, 300, b)])
    sim = ReferenceSimulation(builder.build())
    sim.run(until_ps=2000)
    (transfer,) = sim._machine.flows[0].values()
    transfer.delivered_bytes -= 1
    with pytest.raises(InternalError, match="bytes delivered of a transfer of endpoint 0: 299 ag"):
        sim.run()
