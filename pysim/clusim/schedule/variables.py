"""Dependencies of operations from the variables that they read and mutate, as in dependency engines of frameworks.

**Model** An operation waits for the last one that mutated a variable it reads or mutates, and before it mutates a
variable for the operations that have read it since (MXNet's dependency engine, "Note on Dependency Engine").
Operations without a common variable, or with variables that both only read, are independent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.schedule.ir import Task


class Awaited(tuple[int, ...]):
    """Tasks that an operation waits for.

    Attributes
    ----------
    by_rank : dict of int to tuple of int
        The same tasks by their rank, as collectives accept them.
    """

    by_rank: Mapping[int, tuple[int, ...]]

    @classmethod
    def of(cls, numbers: Iterable[int], tasks: Sequence[Task]) -> Awaited:
        """Return the waits for tasks of a schedule."""
        result = cls(sorted(set(numbers)))
        ranks: dict[int, list[int]] = defaultdict(list)
        for number in result:
            ranks[tasks[number].rank].append(number)
        result.by_rank = {
            rank: tuple(variables) for rank, variables in ranks.items()
        }
        return result


@dataclass(slots=True)
class _Use:
    """Uses of a variable: tasks of the last mutation, and of readers since."""

    mutated: tuple[int, ...] = ()
    read: list[int] = field(default_factory=list)


Names = Sequence[Hashable] | Mapping[int, Sequence[Hashable]]
"""Names of variables; by rank, they are variables of that rank, which only its tasks use."""


class Variables:
    """Uses of the variables of a schedule under construction."""

    def __init__(self) -> None:
        self._uses: dict[tuple[int | None, Hashable], _Use] = defaultdict(_Use)

    def push(
        self,
        tasks: Sequence[Task],
        operation: Callable[[Awaited], object],
        read: Names,
        mutate: Names,
    ) -> tuple[int, ...]:
        """Add an operation to `tasks` as `ProgramBuilder.push` does."""
        first = len(tasks)
        waits = Awaited.of(self._before(read, mutate), tasks)
        operation(waits)
        added = tasks[first:]
        missing = sorted(set(waits).difference(*(task.deps for task in added)))
        if not added or missing:
            words = ", ".join(
                str(name[1]) for name in (*_pairs(read), *_pairs(mutate))
            )
            lost = (
                f"does not wait for {tasks[missing[0]].name!r}; pass `after` on"
                if missing
                else ""
            )
            raise InputError(
                f"operation on {words}: {lost if added else 'added no task'}"
            )
        inside = {dep for task in added for dep in task.deps}
        last = tuple(
            number for number in range(first, len(tasks)) if number not in inside
        )
        by_rank: dict[int | None, tuple[int, ...]] = {None: last}
        by_rank.update(Awaited.of(last, tasks).by_rank.items())
        for name in _pairs(read):
            self._uses[name].read.extend(by_rank.get(name[0], ()))
        for name in _pairs(mutate):
            self._uses[name] = _Use(by_rank.get(name[0], ()))
        return last

    def _before(self, read: Names, mutate: Names) -> set[int]:
        """Return the tasks that the next operation waits for."""
        result: set[int] = set()
        for name in (*_pairs(read), *_pairs(mutate)):
            result.update(self._uses[name].mutated)
        for name in _pairs(mutate):
            result.update(self._uses[name].read)
        return result


def _pairs(names: Names) -> list[tuple[int | None, Hashable]]:
    """Return variables with their rank, None for variables of the job.

    Raises
    ------
    InputError
        The variables are a text instead of a list of names.
    """
    lists = names.items() if isinstance(names, Mapping) else [(None, names)]
    for _, words in lists:
        if isinstance(words, str | bytes):
            raise InputError(
                f"variables {words!r}: write a list of names: [{words!r}]"
            )
    return [(rank, name) for rank, words in lists for name in words]
