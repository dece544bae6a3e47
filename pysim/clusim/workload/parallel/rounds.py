"""Gradient sums over the workers of a replicated stage, as in PipeDream (1F1B-RR).

**Hardware** PipeDream (SOSP 2019): the workers of a stage process its microbatches in turn; PyTorch's
DDP sums the gradients of a round, one microbatch of each worker, during their backward passes, and every
worker steps when it has all sums. **Model** The same: a bucket is summed when the last worker of the
round has computed it. **Not modelled** Versions of weights that differ while a microbatch is in flight:
they cost memory but no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clusim.workload.parallel.data import DataParallel, Unfilled, fill_buckets
from clusim.workload.parallel.emitter import Emitter, Exchange, Tails


@dataclass
class Board:
    """Results of a stage's workers: last tasks of each bucket and of its sum, by round.

    Attributes
    ----------
    given : int
        Buckets that workers have posted so far.
    """

    workers: range
    made: dict[tuple[int, int], Tails] = field(default_factory=dict)
    summed: dict[tuple[int, int], Tails] = field(default_factory=dict)
    given: int = 0

    def worker(self, microbatch: int) -> int:
        """Return the worker of a microbatch, assigned round-robin."""
        return self.workers[microbatch % len(self.workers)]


class Rounds(DataParallel):
    """Worker of a replicated stage."""

    def __init__(self, emitter: Emitter, stage: int, board: Board) -> None:
        super().__init__(emitter, stage)
        own = self.plan.workload.data
        self.board, self.overlap, self.round = board, own.overlap, -1
        size = self.plan.element_bytes_reduced
        self.buckets = fill_buckets(self.chunks, size, own.first_bucket, own.bucket)
        self.unfilled = Unfilled([])

    def hooked(self, kind: str, microbatch: int, last: bool) -> bool:
        """True for backward passes."""
        return self.overlap and kind == "B"

    def begin(self) -> None:
        """Start a round."""
        self.round += 1
        self.unfilled = Unfilled(self.buckets)

    def after(self, kind: str, chunk: int, index: int, last: bool) -> None:
        """Post the buckets that are complete with this layer."""
        for number in self.unfilled.filled(chunk, index):
            self._give(number)

    def post(self) -> None:
        """Post the remaining buckets."""
        for number in self.unfilled.rest():
            self._give(number)

    def ready(self) -> bool:
        """True if all of this round is being summed."""
        return all((self.round, number) in self.board.summed for number in range(len(self.buckets)))

    def complete(self) -> None:
        """Wait for the sums."""
        for number in range(len(self.buckets)):
            done = self.board.summed[self.round, number]
            self.emitter.join({rank: done[rank] for rank in self.emitter.ranks(self.stage)})

    def _give(self, number: int) -> None:
        """Record a bucket of this worker; the last worker adds the sum."""
        board, key = self.board, (self.round, number)
        made = board.made.setdefault(key, {})
        made |= {rank: self.emitter.tail.get(rank, ()) for rank in self.emitter.ranks(self.stage)}
        board.given += 1
        groups = [*zip(*(self.emitter.ranks(worker) for worker in board.workers), strict=True)]
        if len(made) < len(groups) * len(board.workers):
            return
        size = self.buckets[number].elements * self.plan.element_bytes_reduced
        dtype = "float32" if self.plan.element_bytes_reduced == 4 else None
        exchange = Exchange("replica", "allreduce", size, "gradients", dtype=dtype)
        done = board.summed.setdefault(key, {})
        for group in groups:
            done |= self.emitter.collective(exchange, group, after=made)
