"""Schedules by reads and mutations of named variables."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.collectives import ScheduleBuilder
from clusim.schedule import ProgramBuilder


def push_one(builder: ProgramBuilder, stream: str, read: list[str], mutate: list[str]) -> None:
    """Push a kernel on a stream of its own."""
    builder.push(
        lambda after: builder.kernel(0, stream=stream, compute_ps=1, name=stream, after=after),
        read=read,
        mutate=mutate,
    )


def add(builder: ProgramBuilder, name: str) -> None:
    """Push ``B = f(A, C)``: reads A and C, mutates B."""
    target, _, sources = name.replace(" ", "").partition("=")
    push_one(builder, name, [letter for letter in sources if letter.isalpha()], [target])


def test_the_example_of_the_lecture() -> None:
    """C waits for neither B nor D; A is overwritten after B and C have read it, D reads the new one."""
    builder = ProgramBuilder(1)
    for name in ("A = 2", "B = A + 1", "C = A + 2", "A = C * 2", "D = A + 3", "D = B * D"):
        add(builder, name)
    deps = [task.deps for task in builder.build().tasks]
    assert deps == [(), (0,), (0,), (0, 1, 2), (3,), (1, 4)]


def test_operations_are_ordered_exactly_if_a_chain_of_conflicts_joins_them() -> None:
    """A brute-force reference: two operations conflict if one mutates a variable that the other uses."""
    random = Random(3)
    for _ in range(40):
        builder = ProgramBuilder(1)
        uses: list[tuple[set[str], set[str]]] = []
        for at in range(14):
            names = [set(random.sample("ABCDE", random.randrange(3))) for _ in range(2)]
            push_one(builder, str(at), sorted(names[0]), sorted(names[1]))
            uses.append((names[0], names[1]))
        before: list[set[int]] = []
        wanted: list[set[int]] = []
        for at, task in enumerate(builder.build().tasks):
            before.append(set(task.deps).union(*(before[d] for d in task.deps)))
            conflicts = {
                d
                for d in range(at)
                if uses[d][1] & (uses[at][0] | uses[at][1]) or uses[at][1] & uses[d][0]
            }
            wanted.append(conflicts.union(*(wanted[d] for d in conflicts)))
        assert before == wanted


def test_readers_run_side_by_side_and_a_writer_after_the_last() -> None:
    fabric = clusim.load("dgx-a100")
    builder = ScheduleBuilder(fabric)
    times = {"A = 1": 5_000_000, "B = A": 20_000_000, "C = A": 30_000_000, "A = 2": 7_000_000}
    for name, time_ps in times.items():
        builder.push(
            lambda after, name=name, time_ps=time_ps: builder.delay(
                0, time_ps, stream=name, name=name, after=after
            ),
            read=[letter for letter in name[4:] if letter.isalpha()],
            mutate=[name[0]],
        )
    tasks = clusim.simulate(fabric, builder.build()).tasks
    starts = dict(zip(tasks.names, tasks.start_ps.tolist(), strict=True))
    assert starts["B = A"] == starts["C = A"] == 5_000_000
    assert starts["A = 2"] == 35_000_000


def loop(builder: ScheduleBuilder, layers: int, steps: int) -> None:
    """Push a data-parallel training loop; variables are of a rank."""
    ranks = range(builder.num_ranks)

    def kernel(name: str, rank: int, read: list[str], mutate: list[str]) -> None:
        builder.push(
            lambda after: builder.kernel(
                rank, compute_ps=20_000_000, sms=64, name=name, after=after
            ),
            read={rank: read},
            mutate={rank: mutate},
        )

    for _ in range(steps):
        for layer in range(layers):
            for rank in ranks:
                kernel("forward", rank, [f"weight {layer}", f"x {layer}"], [f"x {layer + 1}"])
        for layer in reversed(range(layers)):
            for rank in ranks:
                read = [f"weight {layer}", f"x {layer}", f"dx {layer + 1}"]
                kernel("backward", rank, read, [f"dx {layer}", f"gradient {layer}"])
            builder.push(
                lambda after: builder.collective(
                    "allreduce", 1 << 20, stream="reduce", after=after.by_rank
                ),
                mutate={rank: [f"gradient {layer}"] for rank in ranks},
            )
        for layer in range(layers):
            for rank in ranks:
                kernel("update", rank, [f"gradient {layer}"], [f"weight {layer}"])


def by_hand(builder: ScheduleBuilder, layers: int, steps: int) -> None:
    """Add the same loop with dependencies between the two streams by hand."""
    ranks = range(builder.num_ranks)

    def kernels(name: str, after: list[tuple[int, ...]]) -> list[int]:
        return [
            builder.kernel(
                r, compute_ps=20_000_000, sms=64, name=name, after=[part[r] for part in after]
            )
            for r in ranks
        ]

    for _ in range(steps):
        for _ in range(layers):
            kernels("forward", [])
        reduced = {}
        for layer in reversed(range(layers)):
            done = kernels("backward", [])
            after = {rank: [done[rank]] for rank in ranks}
            reduced[layer] = builder.collective("allreduce", 1 << 20, stream="reduce", after=after)
        for layer in range(layers):
            kernels("update", [reduced[layer]])


def test_a_training_loop_is_the_one_with_dependencies_by_hand() -> None:
    fabric = clusim.load("a100x4-mesh")
    times = []
    for write in (loop, by_hand):
        builder = ScheduleBuilder(fabric)
        write(builder, layers=3, steps=2)
        result = clusim.simulate(fabric, builder.build())
        times.append(result.tasks.end_ps.tolist())
    assert times[0] == times[1]


def test_mistakes_are_named() -> None:
    builder = ProgramBuilder(2)
    add(builder, "A = 1")
    with pytest.raises(InputError, match=r"write a list of names: \['A'\]"):
        builder.push(lambda after: builder.kernel(0, compute_ps=1, after=after), read="A")
    with pytest.raises(InputError, match="operation on A: does not wait for 'A = 1'; pass `after`"):
        builder.push(lambda after: builder.kernel(0, stream="b", compute_ps=1), read=["A"])
    with pytest.raises(InputError, match="operation on A, B: added no task"):
        ProgramBuilder(1).push(lambda after: None, read=["A"], mutate=["B"])


def test_pairs_of_readers_are_independent() -> None:
    builder = ProgramBuilder(1)
    for name in ("A = 1", "B = A", "C = A", "D = A"):
        add(builder, name)
    tasks = builder.build().tasks
    assert all(one not in tasks[other].deps for one, other in combinations(range(1, 4), 2))
