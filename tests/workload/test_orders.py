from __future__ import annotations

from fractions import Fraction

import pytest

from clusim.errors import InputError
from clusim.workload.orders import SCHEDULES, Action, order, timeline


def written(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> list[str]:
    return [
        " ".join(map(str, order(schedule, stage, stages, microbatches, chunks)))
        for stage in range(stages)
    ]


def test_one_forward_one_backward_by_hand() -> None:
    assert written("1f1b", 3, 4) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_gpipe_and_naive_by_hand() -> None:
    assert written("gpipe", 2, 3) == ["F0 F1 F2 B2 B1 B0"] * 2
    assert written("naive", 2, 2) == ["F0 B0 F1 B1"] * 2


def test_interleaved_by_hand() -> None:
    assert written("interleaved", 2, 4, 2) == [
        "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3",
        "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3",
    ]


def test_zero_bubble_by_hand() -> None:
    assert written("zero-bubble", 3, 3) == [
        "F0 F1 F2 B0 W0 B1 W1 B2 W2",
        "F0 F1 B0 F2 B1 W0 B2 W1 W2",
        "F0 B0 F1 B1 F2 B2 W0 W1 W2",
    ]


def idle(schedule: str, stages: int, microbatches: int, chunks: int = 1, **slots: int) -> Fraction:
    orders = [order(schedule, s, stages, microbatches, chunks) for s in range(stages)]
    found = timeline(orders, **slots)
    return Fraction(found.idle, found.slots * stages - found.idle)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (3, 4), (4, 8), (8, 8), (8, 32)])
def test_bubbles_are_those_of_the_papers(stages: int, microbatches: int) -> None:
    bubble = Fraction(stages - 1, microbatches)
    assert idle("gpipe", stages, microbatches) == bubble
    assert idle("1f1b", stages, microbatches) == bubble
    assert idle("naive", stages, microbatches) == stages - 1
    # ZB-H1: (p - 1)(F + B - W) of m (F + B + W), here with three equal parts.
    assert idle("zero-bubble", stages, microbatches, backward=1) == bubble / 3


@pytest.mark.parametrize(
    ("stages", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (8, 64, 3), (4, 16, 4)]
)
def test_interleaving_divides_the_bubble_by_the_chunks(
    stages: int, microbatches: int, chunks: int
) -> None:
    assert idle("interleaved", stages, microbatches, chunks) == Fraction(
        stages - 1, microbatches * chunks
    )


def test_eighteen_of_thirty_slots() -> None:
    orders = [order("gpipe", stage, 3, 3) for stage in range(3)]
    found = timeline(orders, forward=1, backward=1)
    assert found.slots == 10
    assert sum(found.busy(stage) for stage in range(3)) == 18
    assert found.idle_fraction == pytest.approx((3 - 1) / (3 + 3 - 1))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 1), (4, 2), (3, 9), (5, 5)])
def test_every_pass_is_done_once_and_nobody_waits_for_ever(
    schedule: str, stages: int, microbatches: int
) -> None:
    orders = [order(schedule, stage, stages, microbatches) for stage in range(stages)]
    kinds = "FBW" if schedule == "zero-bubble" else "FB"
    for own in orders:
        wanted = [Action(kind, i) for kind in kinds for i in range(microbatches)]  # type: ignore[arg-type]
        assert sorted(own) == sorted(wanted)
    timeline(orders)


def test_no_stage_holds_more_than_1f1b_says() -> None:
    for schedule in ("1f1b", "zero-bubble"):
        for stage in range(4):
            held = most = 0
            for action in order(schedule, stage, 4, 12):
                held += {"F": 1, "B": -1, "W": 0}[action.kind]
                most = max(most, held)
            assert most == 4 - stage


def test_wrong_orders_are_found() -> None:
    orders = [order("1f1b", 0, 2, 2), [Action("B", 0), Action("F", 0)]]
    with pytest.raises(InputError, match="stage 0 waits for ever to do B0"):
        timeline(orders)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("2f2b", 0, 2, 2), "unknown"), (("1f1b", 0, 2, 2, 2), "need schedule interleaved"),
     (("interleaved", 0, 4, 6, 2), "no multiple")],
)  # fmt: skip
def test_bad_orders_are_named(arguments: tuple[str, int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        order(*arguments)
