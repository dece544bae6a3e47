"""Laws of the timeline: order of dependencies and streams."""

from __future__ import annotations

import random

import pytest

from clusim.schedule.timeline import Timeline


class _Recorded(Timeline[int]):
    """Tasks with known times; records starts and ends."""

    def __init__(self, times: list[int]) -> None:
        super().__init__()
        self.times = times
        self.started: dict[int, int] = {}
        self.ended: dict[int, int] = {}

    def ready(self, task: int) -> None:
        self.started[task] = self.now
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
    played = _Recorded(times)
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


def test_tasks_in_a_circle_are_left() -> None:
    played = _Recorded([1, 1, 1])
    played.add(0, [1])
    played.add(1, [0])
    played.add(2, [])
    played.play()
    assert set(played.left) == {0, 1}
