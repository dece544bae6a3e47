"""Laws of the timeline: order of dependencies and streams, and kernels that share SMs."""

from __future__ import annotations

import random

import pytest

from clusim.schedule.timeline import Timeline


class _Recorded(Timeline[int]):
    """Tasks with known times, of which those in `sms` are kernels; records starts and ends."""

    def __init__(self, times: list[int], sms: dict[int, int], total: int) -> None:
        super().__init__(total)
        self.times, self.kernels = times, sms
        self.started: dict[int, int] = {}
        self.ended: dict[int, int] = {}

    def ready(self, task: int) -> None:
        self.started[task] = self.now
        if task in self.kernels:
            self.compute(task, self.times[task], self.kernels[task])
        else:
            self.schedule(self.now + self.times[task], task, task)

    def complete(self, done: int) -> None:
        self.ended[done] = self.now
        super().complete(done)


@pytest.mark.parametrize("seed", range(20))
def test_a_task_starts_at_the_end_of_the_last_that_it_waits_for(seed: int) -> None:
    rng = random.Random(seed)
    times = [rng.randrange(1, 50) for _ in range(40)]
    needs = [rng.sample(range(at), min(at, rng.randrange(3))) for at in range(40)]
    streams = [rng.choice("abc") for _ in range(40)]
    played = _Recorded(times, {}, 1)
    last: dict[str, int] = {}
    for at, stream in enumerate(streams):
        played.add(at, needs[at], stream)
        if stream in last:
            needs[at].append(last[stream])
        last[stream] = at
    played.play()
    assert not played.left
    for at, start in played.started.items():
        assert start == max((played.ended[other] for other in needs[at]), default=0)
        assert played.ended[at] == start + times[at]


@pytest.mark.parametrize("seed", range(20))
def test_kernels_need_their_work_at_most_at_all_sms(seed: int) -> None:
    """Kernels that start together end in the order of their work, and none before the SMs allow it."""
    rng = random.Random(seed)
    total = 64
    times = [rng.randrange(100, 5000) for _ in range(6)]
    played = _Recorded(times, dict.fromkeys(range(6), total), total)
    for at in range(6):
        played.add(at, [])
    played.play()
    order = sorted(range(6), key=times.__getitem__)
    done = 0
    for rank, at in enumerate(order):
        assert played.ended[at] >= times[at]
        done += times[at]
        # Until the end of this kernel, all earlier ones are complete and later ones have as much work done.
        needed = done + times[at] * (len(order) - rank - 1)
        assert played.ended[at] >= needed
        assert played.ended[at] == pytest.approx(needed, rel=0.1)


def test_held_sms_slow_a_kernel_while_they_are_held() -> None:
    played = _Recorded([100, 50], {0: 4}, 4)
    played.add(0, [])
    played.add(1, [])
    played.held = 2
    played.play()
    assert played.ended == {1: 50, 0: 200}


def test_tasks_in_a_circle_are_left() -> None:
    played = _Recorded([1, 1, 1], {}, 1)
    played.add(0, [1])
    played.add(1, [0])
    played.add(2, [])
    played.play()
    assert set(played.left) == {0, 1}
