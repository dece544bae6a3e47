"""The programs of nccl-tests: what each runs, how it counts bytes, and its bus bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.errors import InputError

__all__ = ["TESTS", "Program", "program_named"]


@dataclass(frozen=True, slots=True)
class Program:
    """One program of nccl-tests.

    Attributes
    ----------
    name : str
        As in file names: ``all_reduce``.
    operation : str
        What clusim calls it.
    bus : str
        Which part of the size crosses the bus: ``twice`` (2(n-1)/n), ``others`` ((n-1)/n) or ``all``.
    shared : bool
        Whether the size is that of a buffer with one block per rank.
    reduces, rooted : bool
        Whether it has a reduction operation, and a root.
    """

    name: str
    operation: str
    bus: str
    shared: bool = False
    reduces: bool = False
    rooted: bool = False

    @property
    def binary(self) -> str:
        """Return the name of the program."""
        return f"{self.name}_perf"

    def bus_factor(self, num_ranks: int) -> float:
        """Return bus bandwidth over algorithm bandwidth."""
        if self.bus == "all":
            return 1.0
        return (2 if self.bus == "twice" else 1) * (num_ranks - 1) / num_ranks

    def count(self, size_bytes: int, element_bytes: int, num_ranks: int) -> int:
        """Return the elements of the table's count column for a requested size [bytes]; a block's if it is shared."""
        if not self.shared:
            return size_bytes // element_bytes
        # Blocks start at multiples of 16 bytes.
        align = max(1, 16 // element_bytes)
        count = size_bytes // (element_bytes * num_ranks)
        return count // align * align

    def size(self, count: int, element_bytes: int, num_ranks: int) -> int:
        """Return the table's size for its count [bytes]."""
        return count * element_bytes * (num_ranks if self.shared else 1)


TESTS: dict[str, Program] = {
    test.name: test
    for test in (
        Program("all_reduce", "allreduce", "twice", reduces=True),
        Program("all_gather", "all_gather", "others", shared=True),
        Program("reduce_scatter", "reduce_scatter", "others", shared=True, reduces=True),
        Program("broadcast", "broadcast", "all", rooted=True),
        Program("reduce", "reduce", "all", reduces=True, rooted=True),
        Program("alltoall", "alltoall", "others", shared=True),
        Program("gather", "gather", "others", shared=True, rooted=True),
        Program("scatter", "scatter", "others", shared=True, rooted=True),
        Program("sendrecv", "sendrecv", "all"),
        Program("hypercube", "hypercube", "all", shared=True),
    )
}
"""By name."""


def program_named(name: str) -> Program:
    """Return the test of a program's or a collective's name: ``all_reduce_perf``, ``allreduce``, ``AllReduce``."""
    word = name.rpartition("/")[2].lower().removesuffix("_mpi").removesuffix("_perf")
    plain = word.replace("_", "").replace("-", "")
    for test in TESTS.values():
        if test.name.replace("_", "") == plain:
            return test
    from difflib import get_close_matches

    near = get_close_matches(word, list(TESTS), 1)
    hint = (
        f"did you mean {near[0]}_perf?"
        if near
        else f"one of {', '.join(t.binary for t in TESTS.values())}"
    )
    raise InputError(f"{name!r}: not a program of nccl-tests; {hint}")
