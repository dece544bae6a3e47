"""Separate replicas for prompts and for decoding, and the transfers between them.

**Model** A request is computed by a prefill replica; its cache moves to a decode replica, which has its first token
then. Times of transfers are simulated on the network with overlapping transfers and other traffic
(`clusim.serving.transfer`). As these times change the schedule, the run is repeated with them until all latencies of
requests move by at most `RESIDUAL`, at most `MOST_ROUNDS` times.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from clusim.serving.loop import ServingRun
from clusim.serving.replica import Replica
from clusim.serving.scheduler import Sequence
from clusim.serving.spec import TransferSpec
from clusim.serving.transfer import CacheTransfer, TransferTimes
from clusim.serving.verdict import OTHERS, SharedWire, add_times

MOST_ROUNDS = 5
"""Runs with new times of transfers."""

RESIDUAL = 0.01
"""Change of a latency at which rounds end, relative to it."""

SETUP_PS = 15_000_000_000
"""Time of a transfer before its data move; **assumed**: 15.2 ms of queue and preparation after repairs
(TensorRT-LLM, issue 12273).
"""


@dataclass(frozen=True, slots=True)
class TransferCosts:
    """Costs of a transfer in addition to its data.

    Attributes
    ----------
    setup_ps, piece_ps : int
        Of a transfer; of the cache of a block in a layer [ps].
    layers : int
        Layers that are moved one by one after their computation; 1: all after the prompt.
    """

    setup_ps: int
    piece_ps: int
    layers: int

    @classmethod
    def of(cls, spec: TransferSpec, layers: int) -> TransferCosts:
        """Return the costs of a serving file, for a model of some layers."""
        setup_ps = SETUP_PS if spec.setup is None else spec.setup
        return cls(setup_ps, spec.piece or 0, layers if spec.when == "layers" else 1)


class CacheMove(NamedTuple):
    """Move of a request's cache to its decode replica.

    Attributes
    ----------
    number : int
        The request.
    setup_ps, exposed_ps : int
        Time before its data move; time from the end of the prompt to the first token [ps].
    """

    transfer: CacheTransfer
    number: int
    setup_ps: int
    exposed_ps: int


@dataclass
class PoolRun(ServingRun):
    """A run with `replicas` for prompts and others for decoding.

    Attributes
    ----------
    decoders : list of Replica
        Replicas that decode.
    network : TransferTimes
        Times of transfers in isolation.
    costs : TransferCosts
        Other costs of transfers.
    known_ps : dict
        Times of transfers with others, of an earlier run, by the request's number.
    moves : list of CacheMove
        Transfers of requests.
    """

    decoders: list[Replica] = field(default_factory=list)
    network: TransferTimes = field(kw_only=True)
    costs: TransferCosts = field(kw_only=True)
    known_ps: dict[int, int] = field(default_factory=dict)
    moves: list[CacheMove] = field(default_factory=list)
    _prompts: dict[int, Replica] = field(default_factory=dict)

    def admit(self, sequence: Sequence) -> None:
        """Assign a request's prompt to the prefill replica with the fewest sequences."""
        prompt = Sequence(sequence.number, sequence.arrival_ps, sequence.prompt, 1)
        self._prompts[sequence.number] = self.admit_to(self.replicas, prompt)

    def finish(self, sequence: Sequence) -> None:
        """Move the cache of a computed prompt; count a request that has all tokens."""
        source = self._prompts.pop(sequence.number, None)
        if source is None:
            super().finish(sequence)
            return
        request = self.sequences[sequence.number]
        target = min(self.decoders, key=lambda item: item.sequences)
        end_ps = self._moved_ps(request, source, target)
        request.computed, request.generated = request.prompt, 1
        request.prompt_ps = sequence.prompt_ps
        request.token_ps.append(end_ps)
        if request.is_done:
            self.at(end_ps, lambda: ServingRun.finish(self, request))
            return
        self.at(end_ps, lambda: self.admit_to([target], request))

    def _moved_ps(self, request: Sequence, source: Replica, target: Replica) -> int:
        """Return the time at which a request's cache is on the decode replica [ps]."""
        now_ps, costs = self.clock.now_ps, self.costs
        step_ps = source.steps[-1].end_ps - source.steps[-1].start_ps
        ahead_ps = step_ps - step_ps // costs.layers
        pieces = -(-request.prompt // target.batches[0].schedulers[0].block)
        setup_ps = costs.setup_ps + pieces * costs.layers * costs.piece_ps
        transfer = CacheTransfer(
            now_ps - ahead_ps + setup_ps,
            source.place_of(request.number),
            target.place_of(request.number),
            request.prompt,
        )
        time_ps = self.known_ps.get(request.number) or self.network.alone_ps(
            transfer
        )
        last_ps = now_ps + setup_ps + time_ps // costs.layers
        end_ps = max(transfer.start_ps + time_ps, last_ps)
        self.moves.append(
            CacheMove(transfer, request.number, setup_ps, end_ps - now_ps)
        )
        return end_ps


def latencies_ps(
    sequences: Rows[Sequence],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the times to the first token and per token of requests, of shape (requests, 2) [ps]."""
    rows = [
        (
            item.token_ps[0] - item.arrival_ps,
            (item.token_ps[-1] - item.token_ps[0]) / max(1, item.generated - 1),
        )
        for item in sequences
    ]
    return np.array(rows, float)


def transfer_times(run: PoolRun) -> dict[int, int]:
    """Return the times of a run's transfers beside overlapping ones, by the request's number [ps]."""
    moves = ordered_moves(run)
    times = run.network.times_ps([move.transfer for move in moves])
    return {move.number: time for move, time in zip(moves, times, strict=True)}


def ordered_moves(run: PoolRun) -> list[CacheMove]:
    """Return the transfers of a run in the order of their starts."""
    return sorted(run.moves, key=lambda move: (move.transfer.start_ps, move.number))


def transfer_parts(run: PoolRun) -> tuple[dict[str, float], list[SharedWire]]:
    """Return the parts of the exposed time of all transfers [s], and the wires with other traffic.

    The same transfers are simulated without other traffic, and in isolation.
    """
    moves = ordered_moves(run)
    transfers = [move.transfer for move in moves]
    quiet = replace(run.network, beside=None, _alone={}, _islands={})
    alone = [quiet.alone_ps(transfer) for transfer in transfers]
    busy = [run.known_ps[move.number] for move in moves]
    with_caches = quiet.times_ps(transfers) if run.network.beside else busy
    result: dict[str, float] = {}
    for move, *times in zip(moves, alone, with_caches, busy, strict=True):
        setup_ps = min(move.setup_ps, move.exposed_ps)
        moved_ps = move.exposed_ps - setup_ps
        one, several, all_ = (time / max(1, times[2]) for time in times)
        parts = {
            "preparation of the transfer": setup_ps,
            "transfer of the cache": moved_ps * one,
            "other transfers": moved_ps * (several - one),
            OTHERS: moved_ps * (all_ - several),
        }
        add_times(result, parts, 1e-12)
    wires = run.network.shared_wires(quiet, transfers) if run.network.beside else []
    return result, wires
