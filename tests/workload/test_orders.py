from __future__ import annotations

from fractions import Fraction

import pytest

from clusim.base.errors import InputError
from clusim.workload.memory import in_flight
from clusim.workload.pass_times import PassTimes, timeline
from clusim.workload.pipeline_schedules import (
    SCHEDULES,
    SHAPES,
    Action,
    StageLayout,
    layout_of,
    order,
    parallel_places,
)


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
    ("stages", "microbatches", "chunks"),
    [(2, 4, 2), (4, 8, 2), (8, 64, 3), (4, 16, 4), (4, 6, 2), (3, 5, 4), (8, 21, 3)],
)
def test_interleaving_divides_the_bubble_by_the_chunks(
    stages: int, microbatches: int, chunks: int
) -> None:
    assert idle("interleaved", stages, microbatches, chunks) == Fraction(
        stages - 1, microbatches * chunks
    )


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("stages", [2, 3, 4, 7])
def test_any_number_of_microbatches_can_be_interleaved(stages: int, chunks: int) -> None:
    """Nobody waits for ever; from as many as stages on the law above holds."""
    for microbatches in range(1, 3 * stages):
        orders = [
            order("interleaved", stage, stages, microbatches, chunks) for stage in range(stages)
        ]
        for own in orders:
            assert len(set(own)) == len(own) == 2 * microbatches * chunks
        found = timeline(orders)
        if microbatches >= stages:
            assert found.slots == 3 * (microbatches * chunks + stages - 1)


def test_eighteen_of_thirty_slots() -> None:
    orders = [order("gpipe", stage, 3, 3) for stage in range(3)]
    found = timeline(orders, forward=1, backward=1)
    assert found.slots == 10
    assert sum(found.busy(stage) for stage in range(3)) == 18
    assert found.idle / (3 * found.slots) == pytest.approx((3 - 1) / (3 + 3 - 1))


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name not in SHAPES])
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
    [(("2f2b", 0, 2, 2), "unknown"), (("1f1b", 0, 2, 2, 2), "need schedule interleaved")],
)  # fmt: skip
def test_bad_orders_are_named(arguments: tuple[str, int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        order(*arguments)


def in_v(schedule: str, stages: int, microbatches: int, **slots: int) -> PassTimes:
    """Run a schedule whose stages have two parts of the model."""
    orders: list[list[Action | list[Action]]] = []
    for stage in range(stages):
        own = order(schedule, stage, stages, microbatches)
        pairs = parallel_places(schedule, stage, stages, microbatches)
        orders.append(
            [
                own[i : i + 2] if i in pairs else own[i]
                for i in range(len(own))
                if i - 1 not in pairs
            ]
        )
    return timeline(orders, layout_of(schedule, stages), **slots)


def test_parts_go_down_and_up_again() -> None:
    """Three stages by hand: stage by part, and what follows what."""
    v, both, turn = StageLayout(3, 2, "v"), StageLayout(3, 2, "both"), StageLayout(3, 2)
    places = [(stage, chunk) for chunk in (0, 1) for stage in range(3)]
    assert [v.part(*place) for place in places] == [0, 1, 2, 5, 4, 3]
    assert [turn.part(*place) for place in places] == [0, 1, 2, 3, 4, 5]
    assert [both.part(*place) for place in places] == [0, 1, 2, 2, 1, 0]
    assert [v.next(*place) for place in places] == [(1, 0), (2, 0), (2, 1), None, (0, 1), (1, 1)]
    assert [turn.next(*place) for place in places] == [(1, 0), (2, 0), (0, 1), (1, 1), (2, 1), None]
    assert [both.next(*place) for place in places] == [(1, 0), (2, 0), None, None, (0, 1), (1, 1)]
    for layout in (v, both, turn):
        for place in places:
            after = layout.next(*place)
            assert after is None or layout.next(*after, -1) == place


def test_zero_bubble_in_a_v_by_hand() -> None:
    """Two stages: the first has the first and the last part, and its last microbatch waits for nobody."""
    assert written("zb-v", 2, 3) == [
        "F0 F1 F2 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 B0 W0 F2.1 B2.1 W2.1 B1 W1 B2 W2",
        "F0 F0.1 F1 F1.1 B0.1 W0.1 F2 B0 W0 F2.1 B1.1 W1.1 B1 B2.1 B2 W1 W2.1 W2",
    ]


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 13), (8, 16)])
def test_a_v_of_three_equal_parts_has_no_bubble(stages: int, microbatches: int) -> None:
    """From its first pass to its last one no stage is idle; stage s starts s half passes later."""
    found = in_v("zb-v", stages, microbatches, backward=1)
    for stage in range(stages):
        began, ended = min(found.start[stage].values()), max(found.end[stage].values())
        assert began == stage
        assert ended - began == found.busy(stage) == 6 * microbatches
    assert found.slots == 6 * microbatches + stages - 1


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 14), (8, 20)])
@pytest.mark.parametrize(("slots", "weight"), [(1, 1), (2, 1), (3, 1), (3, 2)])
def test_two_directions_have_the_published_bubble(
    stages: int, microbatches: int, slots: int, weight: int
) -> None:
    """Idle time per stage: (p/2 - 1) (F&B + B - 3W), in a V (p - 1) of them; B has W in it, F&B is F + B here."""
    lengths = {"forward": slots, "backward": slots, "weight": weight}
    whole = slots + weight
    unit = (slots + whole) + whole - 3 * weight
    both, v = (in_v(name, stages, microbatches, **lengths) for name in ("dualpipe", "dualpipe-v"))
    for stage in range(stages):
        assert both.slots - both.busy(stage) == (stages // 2 - 1) * unit
        assert v.slots - v.busy(stage) == (stages - 1) * unit
        assert both.busy(stage) * 2 == v.busy(stage)


@pytest.mark.parametrize("schedule", sorted(SHAPES))
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 4), (4, 10), (6, 12)])
def test_both_parts_of_a_stage_do_every_pass_once(
    schedule: str, stages: int, microbatches: int
) -> None:
    for stage in range(stages):
        own = order(schedule, stage, stages, microbatches)
        done = [(a.kind, a.microbatch, a.chunk) for a in own]
        assert len(set(done)) == len(done)
        for part in range(2 if stages > 1 else 1):
            each = [n for kind, n, c in done if kind == "F" and c == part]
            assert [n for kind, n, c in done if kind in ("B", "BW") and c == part] == each
            weights = [n for kind, n, c in done if kind in ("W", "BW") and c == part]
            assert sorted(weights) == each or stages == 1
            half = schedule == "dualpipe" and stages > 1
            first = part * microbatches // 2 if half else 0
            assert each == list(range(first, first + microbatches // (2 if half else 1)))
        # What runs beside each other is of different directions.
        for place in parallel_places(schedule, stage, stages, microbatches):
            one, two = own[place : place + 2]
            assert (one.kind, two.kind, one.chunk + two.chunk) == ("F", "BW", 1)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 12), (8, 16)])
def test_what_two_parts_of_a_stage_hold(stages: int, microbatches: int) -> None:
    """ZB-V: as many half stages as 1F1B holds at most; DualPipe: p + 1 parts, in a V 2p + 1 halves."""
    for stage in range(stages):
        held = {name: in_flight(name, stage, stages, microbatches) for name in SHAPES}
        assert held["zb-v"] <= 2 * stages
        assert held["dualpipe"] == stages + 1
        assert held["dualpipe-v"] == 2 * stages + 1
    assert in_flight("zb-v", 0, stages, microbatches) == 2 * stages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("dualpipe", 0, 3, 6), "both must be even"), (("dualpipe", 0, 4, 9), "both must be even"),
     (("dualpipe-v", 0, 4, 7), "need 8 at least")],
)  # fmt: skip
def test_two_directions_need_enough_to_do(
    arguments: tuple[str, int, int, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        order(*arguments)
