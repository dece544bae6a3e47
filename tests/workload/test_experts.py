from __future__ import annotations

import clusim
from clusim.schedule import Schedule
from support.workloads import tiny, volume, written

FABRIC = clusim.load("dgx-a100")

MOE = (
    "{base: mixtral-8x7b, layers: 1, hidden: 256, heads: 8, kv_heads: 8, head_size: 32,"
    " expert_size: 4096, vocab: 1024}"
)


def exchanged(experts: str) -> tuple[Schedule, float, int]:
    """Return the schedule, the bytes a GPU exchanges, and the time of its kernels."""
    text = f"parallel: {{expert: 4, data: 4}}\nexperts: {experts}"
    _, writer, schedule = written(tiny(text, model=MOE, batch="{global: 4, micro: 1}"), FABRIC)
    time_ps = sum(t.compute_ps for t in schedule.tasks if t.kind == "kernel" and t.rank == 0)
    return schedule, volume(writer, "expert"), time_ps


def test_capacity_cuts_and_padding_fills() -> None:
    _, even, time_ps = exchanged("{}")
    assert exchanged("{capacity: 1.25}")[1:] == (even, time_ps)
    _, half, less_ps = exchanged("{capacity: 0.5}")
    assert half == even / 2
    assert less_ps < time_ps
    _, padded, more_ps = exchanged("{capacity: 1.25, pad: true}")
    assert padded == 1.25 * even
    assert more_ps > time_ps
    _, full, full_ps = exchanged("{capacity: 1.25, pad: true, skew: 1}")
    assert (full, full_ps) == (padded, more_ps)


def test_tokens_return_from_the_experts_they_went_to() -> None:
    schedule, _, _ = exchanged("{skew: 1.0}")
    uneven = [i for i, call in enumerate(schedule.calls) if call.operation == "alltoallv"]
    assert len(uneven) == 4
    into = []
    for call in uneven:
        found = dict.fromkeys(range(4), 0)
        for item in schedule.instances:
            task = schedule.tasks[item.task]
            if task.call == call and "recv" in schedule.templates[item.template].name:
                found[task.rank] += item.length
        into.append(found)
    busiest = max(into[0], key=lambda rank: into[0][rank])
    # Dispatch and the gradient of combine go to the experts; combine and the gradient of dispatch leave them.
    assert into[0] == into[2] != into[1] == into[3]
    assert into[1][busiest] == min(into[1].values())
