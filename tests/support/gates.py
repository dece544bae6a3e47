"""Helpers of the gate tests: something happens at t and not at t - 1."""

from __future__ import annotations

from typing import Any

from clusim.engine.abi import Stop
from support.images import ImageBuilder

__all__ = ["assert_messages_at", "assert_records_at", "assert_tasks_end_at", "counters", "finish"]


def finish(engine: Any, builder: ImageBuilder) -> Any:
    """Run to the end and check that all balances."""
    sim = engine(builder.build())
    assert sim.run() == Stop.DONE
    return sim


def assert_messages_at(engine: Any, builder: ImageBuilder, *times_ps: int) -> Any:
    """Messages complete at exactly these times."""
    image = builder.build()
    for message, time_ps in enumerate(times_ps):
        sim = engine(image)
        sim.run(until_ps=time_ps - 1)
        assert sim.message_times()[message] == -1
        sim.run(until_ps=time_ps)
        assert sim.message_times()[message] == time_ps
    sim = finish(engine, builder)
    assert sim.now_ps == max(times_ps)
    sim.check_conservation()
    return sim


def assert_records_at(engine: Any, builder: ImageBuilder, instance: int, *times_ps: int) -> Any:
    """The slices of an instance are done at exactly these times."""
    sim = finish(engine, builder)
    records = sim.records()
    found = [int(row["time_ps"]) for row in records if row["instance"] == instance]
    assert found == list(times_ps)
    assert [int(row["seq"]) for row in records if row["instance"] == instance] == list(
        range(len(times_ps))
    )
    sim.check_conservation()
    return sim


def assert_tasks_end_at(engine: Any, builder: ImageBuilder, *times_ps: int) -> Any:
    """Tasks end at exactly these times."""
    sim = finish(engine, builder)
    assert sim.task_times()[1].tolist() == list(times_ps)
    sim.check_conservation()
    return sim


def counters(sim: Any, wire: int, *names: str) -> tuple[int, ...]:
    """Return some counters of a wire."""
    row = sim.wires()[wire]
    return tuple(int(row[name]) for name in names)
