"""MSCCL's all-pairs all-reduce, as RCCL runs it: reduce-scatter and all-gather between all pairs of GPUs.

**Hardware** On a channel every GPU has a thread block per peer, and a local one. The blocks exchange the peers'
shares of the channel, wait for each other, reduce one eighth of the GPU's share each, and hand the result to all peers.
In one pass they exchange all data, and every GPU reduces them (``tools/msccl-algorithms`` of RCCL). **Model** The same
plan, generated for any number of GPUs, as programs of MSCCL's files (`clusim.formats.algorithms.msccl`).
**Not modelled** A launch of MSCCL's kernel costs a host more than one of RCCL's. **Parameters** Channels and protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from clusim.formats.algorithms.layout import chunk_elements
from clusim.formats.algorithms.msccl import write_plan
from clusim.formats.algorithms.msccl_xml import (
    OPS,
    MscclBlock,
    MscclGpu,
    MscclPlan,
    MscclStep,
)
from clusim.nccl.rcclcosts import RcclTable
from clusim.schedule.dtypes import element
from clusim.schedule.shapes import shape_of

if TYPE_CHECKING:
    from clusim.nccl.programs.context import Context

KEPT = 16
"""Number of plans that are cached."""

Place = tuple[str, int]

NOWHERE: Place = ("i", -1)


def write_all_pairs(context: Context) -> None:
    """Write the plan of a call's size on all its channels."""
    writer, comm = context.writer, context.comm
    call = writer.call
    table = comm.table
    assert isinstance(table, RcclTable)
    pairs = table.all_pairs(context.collective, context.choice.selection.num_bytes)
    assert pairs is not None
    plan = all_pairs(
        writer.size, call.channels, call.protocol, one_pass=pairs.one_pass
    )
    size = element(call.dtype).size_bytes
    chunk_bytes = chunk_elements(plan, -(-call.bytes // size)) * size
    writer.shape = shape_of(
        call.protocol, ring=True, protocols=context.fabric.protocols
    )
    write_plan(plan, writer, chunk_bytes)


@lru_cache(KEPT)
def all_pairs(
    ranks: int, channels: int, protocol: str, *, one_pass: bool
) -> MscclPlan:
    """Return the plan for a number of GPUs.

    A channel has `ranks` chunks of all data in one pass, otherwise of every GPU's share.
    """
    chunks = channels * ranks * (1 if one_pass else ranks)
    gpus = tuple(
        MscclGpu(
            {"i": chunks, "o": chunks, "s": channels * ranks * (ranks - 1)},
            tuple(_blocks(gpu, ranks, channels, one_pass)),
        )
        for gpu in range(ranks)
    )
    return MscclPlan("", "all pairs", "allreduce", protocol, chunks, False, -1, gpus)


def _blocks(
    gpu: int, ranks: int, channels: int, one_pass: bool
) -> Iterator[MscclBlock]:
    """Yield the thread blocks of a GPU: of every channel a local one, then one per peer."""
    peers = [peer for peer in range(ranks) if peer != gpu]
    for slot, peer in enumerate((-1, *peers)):
        for channel in range(channels):
            block = _Block(gpu, ranks, channels, channel, one_pass)
            yield MscclBlock(peer, peer, channel, tuple(block.steps(slot, peer)), 0)


class _Block:
    """Steps of the thread blocks of a GPU on a channel; `slot` numbers them, 0 is the local one."""

    def __init__(
        self, gpu: int, ranks: int, channels: int, channel: int, one_pass: bool
    ) -> None:
        self.gpu, self.ranks, self.channels = gpu, ranks, channels
        self.channel, self.one_pass = channel, one_pass
        self.spare = channel * ranks * (ranks - 1)

    def share(self, gpu: int) -> int:
        """Return the first chunk of a GPU's share of the channel; in one pass all have the same."""
        if self.one_pass:
            return self.channel * self.ranks
        return (self.channel * self.ranks + gpu) * self.ranks

    def steps(self, slot: int, peer: int) -> Iterator[MscclStep]:
        """Yield the steps of a block."""
        mine = self.share(self.gpu)
        peers = [other for other in range(self.ranks) if other != slot]
        if slot == 0:
            yield self._step("cpy", ("i", mine), ("o", mine))
        else:
            into = ("s", self.spare + (slot - 1) * self.ranks)
            yield self._step("s", ("i", self.share(peer)), ("s", 0))
            yield self._step("r", ("i", mine), into)
        yield from (self._wait(other, int(other > 0)) for other in peers)
        for source in range(self.ranks - 1):
            operand = ("s", self.spare + source * self.ranks + slot)
            yield self._step("re", operand, ("o", mine + slot), 1)
        if self.one_pass or slot == 0:
            return
        yield from (
            self._wait(other, self._last_reduction(other)) for other in peers
        )
        yield self._step("s", ("o", mine), ("o", mine))
        yield self._step("r", ("o", self.share(peer)), ("o", self.share(peer)))

    def _last_reduction(self, slot: int) -> int:
        """Return the number of a block's last reduction: after one or two steps, its waits and its reductions."""
        return (2 if slot else 1) + 2 * (self.ranks - 1) - 1

    def _wait(self, slot: int, number: int) -> MscclStep:
        block = slot * self.channels + self.channel
        return MscclStep(OPS["nop"], NOWHERE, NOWHERE, 0, (block, number), 0)

    def _step(self, word: str, src: Place, dst: Place, count: int = 0) -> MscclStep:
        return MscclStep(OPS[word], src, dst, count or self.ranks, None, 0)
