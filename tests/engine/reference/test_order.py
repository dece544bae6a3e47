"""Receivers in order, step by step: queue pairs of transfers, early packets, refusals and requests (section 6)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusim.engine.abi import Beyond, Kind
from clusim.engine.reference import order
from clusim.engine.reference.conservation import OrderCounters
from clusim.engine.reference.machine import Class
from clusim.engine.reference.order import join, keeps, receiver_of, refuse, takes


class Machine:
    """The parts of a machine that receivers in order use; connection 0 splits transfers, 1 alternates them."""

    def __init__(self) -> None:
        conns = [SimpleNamespace(queue_keys=(7, 8, 9), split=split) for split in (True, False)]
        conns.append(SimpleNamespace(queue_keys=(), split=False))
        self.model = SimpleNamespace(conns=conns)
        self.turns: dict[Any, int] = {}
        self.lines: dict[Any, Any] = {}
        self.payload = SimpleNamespace(begun=0)
        self.orders = [OrderCounters() for _ in range(4)]
        self.now_ps = 1000
        self.plans: list[tuple[Any, ...]] = []

    def plan(self, *event: Any) -> None:
        self.plans.append(event)


def transfer(flow: int, count: int = 4, targets: tuple[int, ...] = (3,), **spread: int) -> Any:
    """Return a transfer of so many packets of 10 bytes, which NAKs after 50 ps."""
    terms = SimpleNamespace(kind=Kind.WRITE, targets=targets, requester=0)
    fields = {
        "selective": 0,
        "reorder_bytes": 20,
        "nak_ps": 50,
        "timeout_ps": 0,
        "trimmed": 0,
        **spread,
    }
    made = SimpleNamespace(
        flow=flow,
        count=count,
        bytes=10 * count,
        terms=terms,
        spread=SimpleNamespace(**fields),
        rate=None,
    )

    def place(number: int) -> tuple[Any, int]:
        turn = number % len(made.line.pairs)
        return made.line.pairs[turn], made.first[turn] + number // len(made.line.pairs)

    made.place = place
    return made


def packet(of: Any, number: int) -> Any:
    return SimpleNamespace(transfer=of, number=number, p=10)


@pytest.mark.parametrize(
    ("kind", "targets", "receiver"),
    [
        (Kind.WRITE, (3,), 3),
        (Kind.WRITE, (1, 3), 1),
        (Kind.WRITE, (0, 1, 3), 1),
        (Kind.FETCH, (0, 3), 3),
        (Kind.FETCH, (0, 1, 3), 1),
    ],
)
def test_the_receiver_is_the_last_nic_or_the_endpoint(
    kind: Kind, targets: tuple[int, ...], receiver: int
) -> None:
    machine: Any = Machine()
    of = transfer(0, targets=targets)
    of.terms.kind = kind
    assert receiver_of(machine, of) is machine.orders[receiver]


def test_packets_of_a_split_transfer_alternate_over_the_queue_pairs_of_one_line() -> None:
    machine: Any = Machine()
    first, second = transfer(0), transfer(0)
    join(machine, first)
    join(machine, second)
    assert first.line is second.line
    assert [len(pair.sent) for pair in first.line.pairs] == [4, 2, 2]
    assert machine.payload.begun == 80


def test_transfers_that_are_not_split_take_the_queue_pairs_in_turn() -> None:
    machine: Any = Machine()
    made = [transfer(1) for _ in range(4)]
    for one in made:
        join(machine, one)
    assert made[0].line is made[3].line
    assert len({id(one.line) for one in made}) == 3
    assert [len(one.line.pairs) for one in made] == [1] * 4
    assert len(made[0].line.pairs[0].sent) == 8


@pytest.mark.parametrize("flow", [2, 3])
def test_other_transfers_share_one_queue_pair_to_each_destination(flow: int) -> None:
    machine: Any = Machine()
    made = [transfer(flow), transfer(flow), transfer(flow, targets=(2,))]
    for one in made:
        join(machine, one)
    assert made[0].line is made[1].line is not made[2].line
    assert [len(one.line.pairs) for one in made] == [1] * 3


def joined(**spread: int) -> tuple[Any, Any, Any]:
    """Return a machine, a transfer of eight packets, and its queue pair."""
    machine, of = Machine(), transfer(2, 8, **spread)
    join(machine, of)  # type: ignore[arg-type]
    return machine, of, of.line.pairs[0]


def test_early_packets_are_kept_as_long_as_they_fit() -> None:
    machine, of, pair = joined()
    assert keeps(machine, packet(of, 2))
    assert keeps(machine, packet(of, 1))
    assert (pair.kept_bytes, pair.seen, machine.orders[3].kept) == (20, 3, 20)
    assert not keeps(machine, packet(of, 3))
    assert (pair.kept_bytes, pair.refused, pair.refused_at) == (20, True, 0)
    assert not machine.plans[1:], "one refusal, and no request"


def test_a_packet_that_is_known_is_ignored() -> None:
    machine, of, pair = joined()
    pair.expected, pair.kept = 2, {5: (packet(of, 5), 0)}
    assert not keeps(machine, packet(of, 1))
    assert not keeps(machine, packet(of, 5))
    assert not machine.plans
    assert machine.orders[3].kept == 0


def test_packets_that_are_too_early_during_a_refusal_are_lost_silently() -> None:
    machine, of, pair = joined(reorder_bytes=0)
    assert not keeps(machine, packet(of, 4))
    assert not keeps(machine, packet(of, 5))
    assert len(machine.plans) == 1
    pair.refused = False
    assert not keeps(machine, packet(of, 6)), "refused already for this packet"
    assert (pair.lost, len(machine.plans)) == (True, 1)
    pair.expected = 1
    assert not keeps(machine, packet(of, 6))
    assert (pair.lost, pair.refused_at, len(machine.plans)) == (False, 1, 2)


def test_what_a_receiver_takes_is_expected_or_new_and_fits() -> None:
    _, of, pair = joined()
    pair.expected, pair.kept, pair.kept_bytes = 2, {5: (packet(of, 5), 0)}, 10
    assert [takes(packet(of, number)) for number in range(8)] == [
        False, False, True, True, True, False, True, True,
    ]  # fmt: skip
    pair.kept_bytes = 11
    assert [takes(packet(of, number)) for number in (1, 2, 3)] == [False, True, False]


def test_a_refusal_arrives_after_its_delay_and_all_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(order, "repeat_all", lambda *args: calls.append(("all", *args[1:])))
    monkeypatch.setattr(order, "repeat_lost", lambda *args: calls.append(("lost", *args[1:])))
    machine, of, pair = joined()
    refuse(machine, pair)
    ((time_ps, kind, arrive, who, place),) = machine.plans
    assert (time_ps, kind, who, place) == (1050, Class.REPEAT, (Beyond.CONNECTION, 2), (2, 0))
    assert pair.refused
    arrive()
    assert (pair.refused, calls) == (False, [("all", pair)])
    of.spread.timeout_ps = 9
    arrive()
    assert calls[1:] == [("lost", pair, of, None)]


def test_a_selective_receiver_keeps_all_and_requests_what_was_overtaken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(order, "repeat_lost", lambda *args: calls.append(args[1:]))
    machine, of, pair = joined(selective=1, reorder_bytes=0)
    assert keeps(machine, packet(of, 3))
    assert keeps(machine, packet(of, 4)), "nothing new is missing"
    assert keeps(machine, packet(of, 1)), "late, not early"
    assert keeps(machine, packet(of, 7))
    assert (pair.seen, pair.kept_bytes) == (8, 40)
    assert [event[:2] for event in machine.plans] == [(1050, Class.REPEAT)] * 2
    assert [event[3:] for event in machine.plans] == [((Beyond.CONNECTION, 2), (2, 0))] * 2
    for event in machine.plans:
        event[2]()
    assert calls == [(pair, of, range(3)), (pair, of, range(5, 7))]


def test_no_receiver_of_headers_requests_what_was_overtaken() -> None:
    """The header of a trimmed packet requests it."""
    machine, of, pair = joined(selective=1, reorder_bytes=0, trimmed=1)
    assert keeps(machine, packet(of, 3))
    assert (pair.seen, pair.kept_bytes) == (4, 10)
    assert machine.plans == []


def test_the_same_targets_in_two_kinds_are_two_queue_pairs() -> None:
    """A message over an adapter as its first stop, and one over it as its last."""
    machine: Any = Machine()
    transfers = [transfer(2, targets=(1, 3)) for _ in range(2)]
    transfers[1].terms.kind = Kind.FETCH
    for of in transfers:
        order.join(machine, of)
    assert len(machine.lines) == 2
