"""Forward and backward passes beside each other: each waits for its own communication only."""

from __future__ import annotations

import clusim
from clusim.schedule import Schedule
from support.workloads import ancestors, tiny, written

A100 = clusim.load("dgx-a100")
MOE = (
    "{base: mixtral-8x7b, layers: 4, hidden: 256, heads: 8, kv_heads: 8, head_size: 32,"
    " expert_size: 512, vocab: 1024}"
)
TEXT = "parallel: {pipeline: 2, expert: 2, data: 2}\npipeline: {schedule: dualpipe}\n"


def tasks_of(schedule: Schedule, operation: str, rank: int) -> list[int]:
    return [
        index
        for index, task in enumerate(schedule.tasks)
        if task.call >= 0 and task.rank == rank and schedule.calls[task.call].operation == operation
    ]


def test_passes_beside_each_other_compute_while_the_other_one_exchanges() -> None:
    """Of every exchange of a pair: the next kernels do not wait for it, the ones after those do.

    Of a pass alone the next kernel does. A pair has two layers forwards and two back, two exchanges each.
    """
    plan, _, schedule = written(tiny(TEXT, model=MOE, batch="{global: 16, micro: 1}"), A100)
    rank = plan.mesh.stage(0)[0]
    kernels = [
        i for i, task in enumerate(schedule.tasks) if task.kind == "kernel" and task.rank == rank
    ]
    pair = next(schedule.tasks[i].name for i in kernels if "&" in schedule.tasks[i].name)
    own = [i for i in kernels if schedule.tasks[i].name == pair]
    assert len(own) == 2 * (1 + 2 * 2)
    inside = [i for i in tasks_of(schedule, "alltoall", rank) if own[0] < i < own[-1]]
    assert len(inside) == 2 * 2 * 2
    for exchange in inside:
        following = [i for i in own if i > exchange]
        assert exchange not in ancestors(schedule, following[:1])
        assert exchange in ancestors(schedule, following[1:2]) or len(following) == 1
    alone = [i for i in kernels if schedule.tasks[i].name == "F0.0"]
    for exchange in [i for i in tasks_of(schedule, "alltoall", rank) if alone[0] < i < alone[-1]]:
        assert exchange in ancestors(schedule, [next(i for i in alone if i > exchange)])


def test_a_v_ties_no_embedding_and_two_copies_are_added_up() -> None:
    """GPT's head uses its embedding: on two stages with a copy, in a V and from both ends on one."""
    few = "{global: 4, micro: 1}"
    whole = written(tiny("parallel: {data: 1}", batch=few), A100)[1].emitter.flops
    for name, sums in (("1f1b", 1), ("zb-v", 0), ("dualpipe", 1), ("dualpipe-v", 0)):
        text = f"parallel: {{pipeline: 2, data: 1}}\npipeline: {{schedule: {name}}}"
        plan, writer, schedule = written(tiny(text, batch=few), A100)
        assert writer.emitter.flops == whole
        calls = [call for call in schedule.calls if call.operation == "allreduce"]
        assert len(calls) == sums, name
        if name != "dualpipe":
            continue
        assert calls[0].bytes == plan.model.parameters * 2
        for rank in (0, 1):
            step = [
                i
                for i, task in enumerate(schedule.tasks)
                if task.name == "optimizer" and task.rank == rank
            ]
            assert set(tasks_of(schedule, "allreduce", rank)) <= ancestors(schedule, step)
