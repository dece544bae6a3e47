"""The untimed executor finds deadlocks, broken causality and wrong results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clusim.base.errors import DeadlockError, InternalError, ScheduleError
from clusim.collectives import build
from clusim.schedule import CollectiveWriter, Prim, Schedule, Shape
from clusim.schedule.executor import Executor
from clusim.schedule.iteration import iter_slices
from clusim.schedule.semantics import run_untimed, verify

SMALL = Shape(256, slices=1, slots=2)


def with_prim(schedule: Schedule, number: int, **changes: Any) -> Schedule:
    """Return the schedule with one primitive of its first template changed."""
    template = schedule.templates[0]
    prims = list(template.prims)
    prims[number] = replace(prims[number], **changes)
    first = replace(template, prims=tuple(prims))
    return replace(schedule, templates=(first, *schedule.templates[1:]))


def exchange(order: tuple[str, str], size_bytes: int) -> Schedule:
    """Return two ranks that both do `order`: send and recv of everything."""
    writer = CollectiveWriter.create("sendrecv", size_bytes, ranks=2, shape=SMALL)
    (part,) = writer.parts()
    pipes = [writer.connect(0, 1, 0), writer.connect(1, 0, 0)]
    loops = -(-size_bytes // SMALL.chunk_bytes)
    prims = {
        "send": Prim("send", send=0, step=1, repeat=loops),
        "recv": Prim("recv", recv=1, step=1, repeat=loops),
    }
    for rank in range(2):
        own = [pipes[rank], pipes[1 - rank]]
        writer.program(rank, part, [prims[name] for name in order], own, nchunks=loops)
    return writer.schedule()


def test_sending_first_works_while_the_slots_last() -> None:
    assert verify(exchange(("send", "recv"), 512))[0].ok


def test_sending_more_than_the_slots_hold_is_a_deadlock() -> None:
    with pytest.raises(DeadlockError, match=r"rank 0 channel 0: send .* waits for slot of 0->1"):
        verify(exchange(("send", "recv"), 768))


def test_receiving_first_is_a_deadlock_that_names_the_ranks() -> None:
    with pytest.raises(DeadlockError, match=r"rank 1 channel 0: recv .* waits for data of 0->1"):
        verify(exchange(("recv", "send"), 4))


def test_a_forgotten_reduction_is_seen() -> None:
    right = build(4, "allreduce", "ring", 4000)
    wrong = with_prim(right, 1, op="recvCopySend")
    (check,) = verify(wrong)
    assert not check.ok
    assert check.wrong > 0
    assert "instead of" in check.first


def test_a_wrong_chunk_is_seen() -> None:
    right = build(4, "allreduce", "ring", 4096)
    (check,) = verify(with_prim(right, 2, base=1))
    assert not check.ok


def test_chunks_of_different_sizes_are_refused() -> None:
    writer = CollectiveWriter.create("send", 1000, ranks=2, shape=SMALL)
    (part,) = writer.parts()
    pipe = writer.connect(0, 1, 0)
    writer.program(0, part, [Prim("send", send=0)], [pipe], nchunks=8)
    writer.program(1, part, [Prim("recv", recv=0, base=-1)], [pipe], nchunks=8)
    with pytest.raises(ScheduleError, match="meets a slice of"):
        verify(writer.schedule())


def test_data_that_nobody_receives_are_seen() -> None:
    writer = CollectiveWriter.create("send", 100, ranks=2, shape=SMALL)
    (part,) = writer.parts()
    writer.program(0, part, [Prim("send", send=0)], [writer.connect(0, 1, 0)])
    with pytest.raises(ScheduleError, match="never received"):
        verify(writer.schedule())


def untimed_records(schedule: Schedule) -> list[tuple[int, int, int]]:
    """Return records of a legal order: rank 0's sends before rank 1's receives."""
    records = []
    for index, instance in enumerate(schedule.instances):
        slices = iter_slices(instance, schedule.templates[instance.template])
        records += [(0, index, seq) for seq, _ in enumerate(slices)]
    return records


def test_records_are_performed_in_their_order() -> None:
    schedule = build(2, "send", None, 5000, shape=SMALL)
    executor = Executor(schedule)
    executor.apply(untimed_records(schedule))
    assert executor.check()[0].ok


def test_a_slice_that_finishes_before_its_input_is_a_broken_engine() -> None:
    schedule = build(2, "send", None, 5000, shape=SMALL)
    with pytest.raises(InternalError, match=r"rank 1 .*finished recv before"):
        Executor(schedule).apply([(5, 0, 0), (7, 1, 0), (8, 1, 1)])


def test_records_out_of_sequence_are_a_broken_engine() -> None:
    schedule = build(2, "send", None, 5000, shape=SMALL)
    with pytest.raises(InternalError, match="slice 1 of instance 0; expected slice 0"):
        Executor(schedule).apply([(5, 0, 1)])


def test_an_unfinished_run_has_no_verdict() -> None:
    executor = Executor(build(2, "allreduce", None, 64))
    with pytest.raises(InternalError, match="not finished"):
        executor.check()


def test_own_inputs_can_be_given() -> None:
    schedule = build(2, "allreduce", "ring", 12)
    left, right = np.arange(3, dtype=np.float32), np.full(3, 10, np.float32)
    executor = Executor(schedule, [[left, right]])
    run_untimed(executor)
    assert executor.output(0, 1).tolist() == [10.0, 11.0, 12.0]


def test_random_data_report_how_far_sums_differ() -> None:
    schedule = build(7, "allreduce", "ring", 40_000, dtype="float16")
    (check,) = verify(schedule, data="random")
    assert check.ok
    assert 0 < check.max_ulp <= 7


def test_a_barrier_without_its_last_round_is_seen() -> None:
    right = build(5, "barrier", None, 0)
    template = right.templates[0]
    short = replace(template, prims=template.prims[:-2])
    (check,) = verify(replace(right, templates=(short,)))
    assert not check.ok


def test_one_result_of_the_switch_is_rounded_once() -> None:
    schedule = build(4, "allreduce", "nvls", 2, dtype="float16")
    inputs = [np.array([value], np.float16) for value in (2048, 1, 1, 1)]
    executor = Executor(schedule, [inputs])
    run_untimed(executor)
    assert float(executor.output(0, 0)[0]) == float(np.float16(2051))


@pytest.mark.parametrize("ranks", [2, 8, 16])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products_of_random_floats_differ_by_rounding_only(dtype: str, ranks: int) -> None:
    schedule = build(ranks, "allreduce", "ring", 1 << 16, dtype=dtype, redop="prod")
    (check,) = verify(schedule, data="random")
    assert check.ok, check.first
    assert 0 < check.max_ulp <= ranks
