"""MSCCL++'s execution plans as schedules: run, checked with data, and timed.

**Hardware**: the executor of MSCCL++ runs one CTA per thread block of the plan. Operations are one-sided: a thread
block stores into buffers of other GPUs (``put``, packets of data and flag), loads from them (``get``, ``rre``), or
uses NVLink switches to reduce and multicast (``glres``, ``gstore``). Channels carry signals, and thread blocks of a
GPU synchronise by barriers and semaphores. **Model**: the same, as programs. Stores use a separate connection with a
receiver that only notes their arrival; packets are LL lines that the reader polls; loads are pulled. An operation has
one fixed cost of its protocol (packets: one per round of all threads), signals and waits have only their latency. A
group of thread blocks shares an operation's chunks; iterations of a pipeline process equal parts of the chunks. Sizes
that the chunks do not divide are rounded up (MSCCL++ refuses them). **Not modelled**: concurrent loads and stores of
one operation; scratch buffers that are too small and reused (``reuse_resources``); the proxy thread of a port channel
inside a node. **Parameters**: the fabric's protocols ``simple`` and ``ll``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, lcm
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError, one_line
from clusim.base.terms.dtypes import redop_named
from clusim.formats.algorithms.layout import (
    WantedPlan,
    chunk_elements,
    place_chunks,
    start,
)
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT, Prim, Schedule
from clusim.schedule.shapes import MAX_SLOTS
from clusim.topology.model import Fabric
from clusim_formats.algorithms.mscclpp_json import MscclppPlan, read_plan
from clusim_formats.algorithms.mscclpp_parts import (
    Item,
    MscclppBlock,
    MscclppLink,
    Stores,
    shift_place,
)
from clusim_formats.algorithms.mscclpp_run import HELPER, MscclppRun

PASS_BYTES = 4096
"""Bytes that 512 threads store at once as packets, 8 bytes of data each."""

MAX_TURNS = 4096
"""Maximum number of iterations of a pipeline."""

MAX_GRAINS = 8192
"""Maximum number of grains of a chunk."""

FREE = 2**30
"""Divisor of the fixed cost of programs that move no data or are not CTAs [slices]."""


def load(
    path: str | Path, fabric: Fabric | None, bytes: int, **options: Any
) -> Schedule:
    """Read an MSCCL++ plan and return its schedule.

    `options` are those of `clusim.formats.algorithms.layout.WantedPlan`.
    """
    return build(read_plan(path), fabric, WantedPlan(bytes, **options))


def build(plan: MscclppPlan, fabric: Fabric | None, request: WantedPlan) -> Schedule:
    """Return the schedule of a plan.

    Raises
    ------
    DeadlockError
        An operation never completes.
    """
    _check(plan, request)
    size = element(request.dtype).size_bytes
    chunk = chunk_elements(plan, max(0, request.bytes) // size) * size
    turns, grain = _grain(plan, chunk)
    writer, chunk = start(
        plan, fabric, replace(request, protocol=plan.protocol), grain
    )
    _check_units(plan, fabric, writer)
    slices = 1
    if plan.protocol == "ll":
        slices = max(1, min(MAX_SLOTS, -(-chunk // (grain * PASS_BYTES))))
    run = MscclppRun(plan, grain, MAX_SLOTS // slices, turns).run()
    emitter = _Emitter(plan, writer, chunk // grain, plan.room * grain, slices)
    for block in run.blocks.values():
        emitter.program(block)
    return writer.schedule()


def _check(plan: MscclppPlan, request: WantedPlan) -> None:
    bytes, redop, protocol = request.bytes, request.redop, request.protocol
    if protocol and protocol != plan.protocol:
        raise InputError(
            f"{plan.where}: --protocol {protocol}: the operations of the plan are for {plan.protocol}; leave it out"
        )
    if plan.redops - {redop_named(redop)}:
        named = ", ".join(sorted(plan.redops))
        raise InputError(
            f"{plan.where}: --redop {redop}: the plan reduces with {one_line(named)}"
        )
    if not plan.least_bytes <= bytes <= plan.most_bytes:
        raise InputError(
            f"{plan.where}: size {bytes} bytes: the plan is for {plan.least_bytes} to {plan.most_bytes} bytes"
        )


def _check_units(
    plan: MscclppPlan, fabric: Fabric | None, writer: CollectiveWriter
) -> None:
    """Refuse a plan with in-switch reduction on a fabric without it."""
    from clusim.collectives.algorithms.nvls import check_units

    for op in plan.ops():
        if op.name in ("glres", "gstore") and fabric is not None:
            ranks = tuple(writer.call.ranks[gpu] for gpu in op.targets[0].group)
            check_units(fabric, ranks, f"{plan.where}:{op.line}: {op.name}")
            return


def _grain(
    plan: MscclppPlan, chunk_bytes: int
) -> tuple[dict[tuple[int, int], int], int]:
    """Return the iterations of each kind of pipeline, and the grains per chunk."""
    turns: dict[tuple[int, int], int] = {}
    grain = 1
    for op in plan.ops():
        grain = lcm(grain, op.parts)
        if op.name == "pipeline":
            count = max(1, -(-op.unit_chunks * chunk_bytes // op.unit_bytes))
            if count > MAX_TURNS:
                raise plan.bad(
                    op.line,
                    f"a pipeline of {count} iterations; at most {MAX_TURNS} can be simulated: use a smaller --size",
                )
            turns[op.unit_bytes, op.unit_chunks] = count
    for (_, chunks), count in turns.items():
        need = count // gcd(count, chunks)
        grain = lcm(grain, need)
    if grain > MAX_GRAINS:
        raise InputError(
            f"{plan.where}: groups of thread blocks and pipelines would cut chunks into {grain} pieces; at most"
            f" {MAX_GRAINS} can be simulated: use a smaller --size"
        )
    return turns, grain


class _Emitter:
    """Writer of the programs; a chunk of the schedule is a grain of `grain_bytes` bytes."""

    def __init__(
        self,
        plan: MscclppPlan,
        writer: CollectiveWriter,
        grain_bytes: int,
        grains: int,
        slices: int,
    ) -> None:
        self.plan, self.written = plan, writer
        self.grain_bytes, self.grains, self.slices = grain_bytes, grains, slices
        self.known: dict[MscclppLink, int] = {}

    def program(self, block: MscclppBlock) -> None:
        """Write the program of a thread block or helper, unless it is empty."""
        bound: dict[MscclppLink, int] = {}
        prims = [prim for item in block.flat() for prim in self._prims(item, bound)]
        if not prims:
            return
        gpu, number = block.key
        helper = number >= HELPER
        channel = 0 if helper else number
        done = sum(1 if prim.sync else prim.repeat * self.slices for prim in prims)
        paid = block.paid + block.packets * self.slices
        self.written.program(
            gpu,
            Part(channel, 0, self.grain_bytes, self.grain_bytes),
            prims,
            [self._connection(link, channel) for link in bound],
            nchunks=self.grains,
            mode="blocked",
            name=f"mscclpp/{self.plan.name}"[:80],
            stride=self.grain_bytes,
            limit=self.grains * self.grain_bytes,
            slices=self.slices,
            slots_per_slice=1,
            slice_min=16,
            protocol="ll" if block.packets else "simple",
            fixed_div=max(1, round(done / paid)) if paid else FREE,
            sm=0 if helper else 1,
        )

    def _prims(self, item: Item, bound: dict[MscclppLink, int]) -> Iterator[Prim]:
        """Yield the primitives of an item: one per connection of its stores."""
        runs: list[tuple[int, int, MscclppLink | None]]
        if isinstance(item.send, Stores):
            runs = [*_parts(item.send, item.first, item.count)]
        else:
            runs = [(item.first, item.count, item.send)]
        for first, count, link in runs:
            recv, send = (
                ABSENT if end is None else bound.setdefault(end, len(bound))
                for end in (item.recv, link)
            )
            src, dst = (
                place and shift_place(place, first - item.first)
                for place in (item.src, item.dst)
            )
            if count:
                yield Prim(
                    item.op, recv=recv, send=send, **place_chunks(count, src, dst)
                )
            else:
                yield Prim(item.op, sync=True, recv=recv, send=send)

    def _connection(self, link: MscclppLink, channel: int) -> int:
        if link not in self.known:
            fields: dict[str, Any] = {"kind": link.kind, "slots": MAX_SLOTS}
            if link.kind == "multimem":
                fields["members"] = tuple(
                    self.written.call.ranks[gpu] for gpu in link.group
                )
            else:
                fields |= {"protocol": link.protocol, "moved": link.moved}
            number = self.written.connect(link.src, link.dst, channel, **fields)
            self.known[link] = number
        return self.known[link]


def _parts(
    stores: Stores, first: int, count: int
) -> list[tuple[int, int, MscclppLink]]:
    """Return the runs of stores within a range of grains."""
    result = []
    for low, size, link in sorted(stores.runs, key=lambda run: run[0]):
        begin, end = max(low, first), min(low + size, first + count)
        if begin < end:
            result.append((begin, end - begin, link))
    return result
