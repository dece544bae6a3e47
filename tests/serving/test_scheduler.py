"""Schedulers: blocks of the cache, preemption, budgets and order, step by step."""

from __future__ import annotations

from collections import deque

import pytest

from clusim.base.errors import InputError
from clusim.serving.scheduler import Portion, Sequence, SequenceScheduler


def test_blocks_are_free_at_the_end_and_never_too_many() -> None:
    scheduler = SequenceScheduler("vllm-v1", 512, 64, 16, 40)
    for number in range(6):
        scheduler.add(Sequence(number, 0, 100 + number, 60))
    now = 0
    while not scheduler.is_idle:
        portions = scheduler.plan_step()
        assert portions, "a scheduler with work makes steps"
        assert 0 <= scheduler.used_blocks <= 40
        now += 1
        scheduler.finish_steps(portions, range(now, now + 1))
    assert scheduler.used_blocks == 0
    assert scheduler.preemptions > 0, "six sequences of 10 blocks do not fit into 40"


def test_no_sequence_is_preempted_when_its_end_is_reserved() -> None:
    scheduler = SequenceScheduler("trtllm", 512, 64, 16, 40, deque())
    for number in range(6):
        scheduler.add(Sequence(number, 0, 100, 60))
    while not scheduler.is_idle:
        scheduler.finish_steps(scheduler.plan_step(), range(1, 2))
        assert len(scheduler.running) <= 4
    assert scheduler.preemptions == 0


def scheduler(rule: str = "vllm-v1", **more: int) -> SequenceScheduler:
    sizes = {"max_tokens": 100, "max_sequences": 8, "block": 16, "blocks": 100, **more}
    return SequenceScheduler(rule, **sizes)  # type: ignore[arg-type]


def tokens(portions: list[Portion]) -> list[tuple[int, int]]:
    return [(portion.sequence.number, portion.tokens) for portion in portions]


def test_a_prompt_is_computed_in_portions_of_the_budget_and_decoding_is_first() -> None:
    one = scheduler()
    one.add(Sequence(0, 0, 30, 4))
    one.add(Sequence(1, 0, 150, 2))
    first = one.plan_step()
    assert tokens(first) == [(0, 30), (1, 70)]
    assert [portion.completes for portion in first] == [True, False]
    one.finish_steps(first, range(10, 11))
    second = one.plan_step()
    assert tokens(second) == [(0, 1), (1, 80)]
    assert [portion.decodes for portion in second] == [True, False]
    one.finish_steps(second, range(20, 21))
    assert [item.token_ps for item in one.running] == [[10, 20], [20]]
    assert one.used_blocks == 2 + 10


def test_no_more_sequences_run_together_than_allowed() -> None:
    one = scheduler(max_sequences=2)
    for number in range(3):
        one.add(Sequence(number, 0, 10, 1))
    assert tokens(one.plan_step()) == [(0, 10), (1, 10)]
    assert len(one.waiting) == 1
    assert not one.is_idle


def test_prompts_exclude_decoding_by_the_rule_of_sglang() -> None:
    one = scheduler("sglang")
    one.add(Sequence(0, 0, 10, 3))
    one.finish_steps(one.plan_step(), range(1, 2))
    one.add(Sequence(1, 0, 10, 3))
    assert tokens(one.plan_step()) == [(1, 10)]


def test_a_static_batch_admits_nobody_before_its_end() -> None:
    one = scheduler("static")
    one.add(Sequence(0, 0, 10, 2))
    one.finish_steps(one.plan_step(), range(1, 2))
    one.add(Sequence(1, 0, 10, 1))
    second = one.plan_step()
    assert tokens(second) == [(0, 1)]
    assert [item.number for item in one.finish_steps(second, range(2, 3))] == [0]
    assert tokens(one.plan_step()) == [(1, 10)]


def test_the_last_running_sequence_is_preempted_and_computed_again() -> None:
    one = scheduler(blocks=4)
    one.add(Sequence(0, 0, 32, 9))
    one.add(Sequence(1, 0, 32, 9))
    one.finish_steps(one.plan_step(), range(1, 2))
    assert one.used_blocks == 4
    assert tokens(one.plan_step()) == [(0, 1)], "it needs a third block, which is of the last one"
    victim = one.waiting[0]
    assert (victim.number, victim.computed, victim.blocks, victim.preemptions) == (1, 0, 0, 1)
    assert victim.generated == 1, "its token stays"
    assert (one.preemptions, one.used_blocks, one.peak_blocks) == (1, 3, 4)


def test_several_steps_are_allocated_as_far_as_blocks_last() -> None:
    one = scheduler(blocks=3)
    one.add(Sequence(0, 0, 16, 32))
    one.finish_steps(one.plan_step(), range(1, 2))
    portions = one.plan_step()
    assert one.extend(portions, 64) == 32
    assert one.used_blocks == 3
    ended = one.finish_steps(portions, range(10, 41))
    assert [item.number for item in ended] == [0]
    assert ended[0].token_ps == [1, *range(10, 41)]
    assert one.used_blocks == 0


def test_a_request_that_never_fits_is_refused() -> None:
    one = scheduler(blocks=3)
    one.add(Sequence(0, 0, 40, 8))
    with pytest.raises(InputError, match="request 1: 49 tokens need 4 blocks, and the cache has 3"):
        one.add(Sequence(1, 0, 40, 9))


def test_a_transferred_sequence_joins_the_running_ones() -> None:
    """Prompts have steps of their own (sglang); a sequence with a complete cache needs none."""
    scheduler = SequenceScheduler("sglang", 512, 8, 16, 100)
    for number in range(2):
        scheduler.add(Sequence(number, 0, 64, 8, computed=64, generated=1))
        scheduler.finish_steps(scheduler.plan_step(), range(1, 2))
    assert [item.generated for item in scheduler.running] == [3, 2]
    scheduler.add(Sequence(2, 0, 64, 8))
    assert [portion.tokens for portion in scheduler.plan_step()] == [64]


def test_later_prompts_begin_behind_a_cached_prefix() -> None:
    """Of 100 tokens 64 are shared, 4 blocks of 16: later sequences compute 36, and hold 3 blocks."""
    scheduler = SequenceScheduler("vllm-v1", 512, 8, 16, 100, prefix=70)
    for number in range(3):
        scheduler.add(Sequence(number, 0, 100, 2))
        (portion,) = scheduler.plan_step()
        assert portion.tokens == (100 if number == 0 else 36)
        assert portion.sequence.computed == (0 if number == 0 else 64)
        scheduler.finish_steps([portion], range(1, 2))
        assert scheduler.used_blocks == 4 + 3
        scheduler.finish_steps(scheduler.plan_step(), range(2, 3))
        assert scheduler.used_blocks == 4
    short = Sequence(3, 0, 64, 2)
    scheduler.add(short)
    # The last token is computed.
    assert scheduler.plan_step()[0].tokens == 16


def test_prompts_without_a_cache_of_prefixes_are_computed() -> None:
    scheduler = SequenceScheduler("vllm-v1", 512, 8, 16, 100)
    for number in range(2):
        scheduler.add(Sequence(number, 0, 100, 1))
        assert scheduler.plan_step()[0].tokens == 100
        scheduler.finish_steps([Portion(scheduler.running[0], 100)], range(1, 2))
    assert scheduler.used_blocks == 0
