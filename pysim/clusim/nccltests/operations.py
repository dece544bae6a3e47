"""The programs of nccl-tests: what each runs, and how it counts bytes."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.base.errors import InputError, suggest
from clusim.base.terms.operations import OPERATIONS, Operation, find_operation


@dataclass(frozen=True, slots=True)
class Program:
    """One program of nccl-tests, of an operation."""

    of: Operation

    @property
    def name(self) -> str:
        """Return the name in names of files: ``all_reduce``."""
        return self.of.test

    @property
    def binary(self) -> str:
        """Return the name of the program."""
        return f"{self.name}_perf"

    def count(self, size_bytes: int, element_bytes: int, num_ranks: int) -> int:
        """Return the elements of the table's count column for a requested size [bytes]; of a block if it has some."""
        if not self.of.blocks:
            return size_bytes // element_bytes
        # Blocks start at multiples of 16 bytes.
        align = max(1, 16 // element_bytes)
        count = size_bytes // (element_bytes * num_ranks)
        return count // align * align

    def size(self, count: int, element_bytes: int, num_ranks: int) -> int:
        """Return the table's size for its count [bytes]."""
        return count * element_bytes * (num_ranks if self.of.blocks else 1)


TESTS: dict[str, Program] = {item.test: Program(item) for item in OPERATIONS.values() if item.test}
"""By name."""


def program_named(name: str) -> Program:
    """Return the test of a program's or a collective's name: ``all_reduce_perf``, ``allreduce``, ``AllReduce``."""
    found = find_operation(name)
    if found is not None and found.test:
        return TESTS[found.test]
    hint = suggest(name, (test.binary for test in TESTS.values()))
    raise InputError(f"{name!r}: not a program of nccl-tests{hint}")
