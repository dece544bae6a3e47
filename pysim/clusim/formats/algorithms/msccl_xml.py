"""Reader of MSCCL's XML files: thread blocks of every GPU, their steps and dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from clusim.base.errors import InputError, TopologyError
from clusim.base.terms.operations import BLOCKWISE, PROTOCOLS, find_protocol
from clusim.base.xmltext import XmlElement, parse_xml
from clusim.formats.algorithms.jsonlines import plan_text
from clusim.formats.algorithms.layout import PLANNED, AlgorithmPlan, operation_of

MAX_CHUNKS = 65_536
MAX_GPUS = 4096
MAX_CHANNELS = 64


class MscclOp(NamedTuple):
    """Action of a step: the schedule's primitive, and its ends."""

    prim: str
    receives: bool = False
    sends: bool = False
    reads: bool = False
    writes: bool = False


OPS: Mapping[str, MscclOp] = {
    "s": MscclOp("send", sends=True, reads=True),
    "r": MscclOp("recv", receives=True, writes=True),
    "rcs": MscclOp("recvCopySend", receives=True, sends=True, writes=True),
    "rrc": MscclOp("recvReduceCopy", receives=True, reads=True, writes=True),
    "rrs": MscclOp("recvReduceSend", receives=True, sends=True, reads=True),
    "rrcs": MscclOp(
        "recvReduceCopySend", receives=True, sends=True, reads=True, writes=True
    ),
    "cpy": MscclOp("copy", reads=True, writes=True),
    "re": MscclOp("reduce", reads=True, writes=True),
    "nop": MscclOp(""),
}
"""Steps by their type."""


@dataclass(frozen=True, slots=True)
class MscclStep:
    """One step of a thread block.

    Attributes
    ----------
    src, dst : tuple of str and int
        Buffer (``i``, ``o`` or ``s``) and its first chunk.
    count : int
        Chunks.
    after : tuple of int or None
        Thread block and step of the same GPU that must complete first.
    """

    op: MscclOp
    src: tuple[str, int]
    dst: tuple[str, int]
    count: int
    after: tuple[int, int] | None
    line: int


@dataclass(frozen=True, slots=True)
class MscclBlock:
    """A thread block: its send and receive GPUs (-1: unused), its channel and steps."""

    send: int
    recv: int
    channel: int
    steps: tuple[MscclStep, ...]
    line: int


@dataclass(frozen=True, slots=True)
class MscclGpu:
    """Thread blocks of a GPU, and the numbers of chunks of its buffers."""

    chunks: Mapping[str, int]
    blocks: tuple[MscclBlock, ...]


@dataclass(frozen=True, slots=True)
class MscclPlan(AlgorithmPlan):
    """An algorithm of MSCCL."""

    tool: ClassVar[str] = "msccl"

    gpus: tuple[MscclGpu, ...]

    @property
    def channels(self) -> int:
        """Number of channels in use."""
        return 1 + max(
            (block.channel for gpu in self.gpus for block in gpu.blocks), default=0
        )


def read_plan(path: str | Path) -> MscclPlan:
    """Read an MSCCL XML file; raise `InputError` with the line if it is inconsistent."""
    where = str(path)
    try:
        root = parse_xml(plan_text(path, "an MSCCL plan"), where)
    except TopologyError as error:
        raise InputError(str(error).replace("topology", "plan")) from None
    if root.tag != "algo":
        raise InputError(
            f"{where}:{root.line}: <{root.tag[:40]!s}>: no MSCCL plan; its root element is <algo>"
        )
    return _plan(root, where)


def _bad(element: XmlElement, message: str) -> InputError:
    return InputError(f"{element.where}:{element.line}: {message}")


def _number(
    element: XmlElement, name: str, low: int, high: int, default: int | None = None
) -> int:
    text = element.get(name)
    if not text and default is not None:
        return default
    try:
        value = int(text) if len(text) < 16 and text.isascii() else None
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise _bad(
            element,
            f"{name}={text[:40]!r} of <{element.tag}>: must be an integer {low}..{high}",
        )
    return value


def _plan(root: XmlElement, where: str) -> MscclPlan:
    ranks = _number(root, "ngpus", 2, MAX_GPUS)
    chunks = _number(root, "nchunksperloop", 1, MAX_CHUNKS)
    coll = root.get("coll").lower().replace("_", "")
    operation = operation_of(coll)
    if not operation:
        raise _bad(root, f"coll={coll[:40]!r}: unknown; one of {', '.join(PLANNED)}")
    protocol = find_protocol(root.get("proto") or "simple")
    if protocol is None:
        listing = ", ".join(PROTOCOLS)
        raise _bad(
            root, f"proto={root.get('proto')[:40]!r}: unknown; one of {listing}"
        )
    if operation in BLOCKWISE and chunks % ranks:
        raise _bad(
            root,
            f"nchunksperloop={chunks}: {coll} of {ranks} GPUs needs a multiple of {ranks}",
        )
    gpus: dict[int, MscclGpu] = {}
    for element in root.all("gpu"):
        number = _number(element, "id", 0, ranks - 1)
        if number in gpus:
            raise _bad(element, f"duplicate gpu {number}")
        gpus[number] = _gpu(element, number, ranks)
    missing = next((number for number in range(ranks) if number not in gpus), None)
    if missing is not None:
        raise _bad(
            root,
            f"gpu {missing} is missing; ngpus is {ranks}: is the file complete?",
        )
    plan = MscclPlan(
        where,
        root.get("name") or Path(where).stem,
        operation,
        protocol.key,
        chunks,
        bool(_number(root, "inplace", 0, 1, 0)),
        _number(root, "root", 0, ranks - 1, 0),
        tuple(gpus[number] for number in range(ranks)),
    )
    _check_ends(plan)
    return plan


def _gpu(element: XmlElement, number: int, ranks: int) -> MscclGpu:
    chunks = {
        name: _number(element, f"{name}_chunks", 0, MAX_CHUNKS, 0) for name in "ios"
    }
    blocks: dict[int, MscclBlock] = {}
    for child in element.all("tb"):
        index = _number(child, "id", 0, 1023)
        if index in blocks:
            raise _bad(child, f"duplicate thread block {index} of gpu {number}")
        send, recv = (
            _number(child, name, -1, ranks - 1, -1) for name in ("send", "recv")
        )
        if number in (send, recv):
            raise _bad(child, f"gpu {number} talks to itself; use cpy")
        channel = _number(child, "chan", 0, MAX_CHANNELS - 1, 0)
        steps = tuple(_step(item, at) for at, item in enumerate(child.all("step")))
        blocks[index] = MscclBlock(send, recv, channel, steps, child.line)
        _check_peers(element, blocks[index], number)
    if sorted(blocks) != list(range(len(blocks))):
        raise _bad(
            element,
            f"thread blocks of gpu {number} must be numbered 0..{len(blocks) - 1}",
        )
    gpu = MscclGpu(chunks, tuple(blocks[index] for index in range(len(blocks))))
    _check_deps(element, gpu)
    return gpu


def _step(element: XmlElement, at: int) -> MscclStep:
    kind = element.get("type")
    op = OPS.get(kind)
    if op is None:
        raise _bad(
            element, f"step type {kind[:40]!r}: unknown; one of {', '.join(OPS)}"
        )
    if _number(element, "s", 0, 2**31, at) != at:
        raise _bad(
            element,
            f"step s={element.get('s')[:20]}: must be {at}, the steps are in order",
        )
    ends = []
    for name in ("src", "dst"):
        buffer = element.get(f"{name}buf")
        if op.prim and buffer not in ("i", "o", "s"):
            raise _bad(element, f"{name}buf={buffer[:40]!r}: must be i, o or s")
        ends.append((buffer, _number(element, f"{name}off", -1, MAX_CHUNKS, -1)))
    depid = _number(element, "depid", -1, 1023, -1)
    deps = _number(element, "deps", -1, 2**31, -1)
    after = (depid, deps) if depid >= 0 and deps >= 0 else None
    low = 1 if op.prim else 0
    count = _number(element, "cnt", low, MAX_CHUNKS, low)
    return MscclStep(op, ends[0], ends[1], count, after, element.line)


def _check_peers(element: XmlElement, block: MscclBlock, number: int) -> None:
    for step in block.steps:
        lost = "send" if step.op.sends and block.send < 0 else ""
        lost = lost or ("recv" if step.op.receives and block.recv < 0 else "")
        if lost:
            raise InputError(
                f"{element.where}:{step.line}: a step of gpu {number} needs a peer; its thread block has {lost}=-1"
            )


def _check_deps(element: XmlElement, gpu: MscclGpu) -> None:
    for block in gpu.blocks:
        for step in block.steps:
            if step.after is None:
                continue
            other, at = step.after
            if other >= len(gpu.blocks) or at >= len(gpu.blocks[other].steps):
                raise InputError(
                    f"{element.where}:{step.line}: waits for step {at} of thread block {other}, which does not exist"
                )


def _check_ends(plan: MscclPlan) -> None:
    """Check that each connection (GPUs and channel) has one thread block at either end."""
    ends: dict[tuple[str, int, int, int], tuple[int, int]] = {}
    for number, gpu in enumerate(plan.gpus):
        for index, block in enumerate(gpu.blocks):
            keys = []
            if any(step.op.sends for step in block.steps):
                keys.append(("sends to", number, block.send, block.channel))
            if any(step.op.receives for step in block.steps):
                keys.append(("receives from", number, block.recv, block.channel))
            for key in keys:
                if key in ends:
                    other, line = ends[key]
                    raise plan.bad(
                        block.line,
                        f"thread block {index} of gpu {number} {key[0]} gpu"
                        f" {key[2]} on channel {block.channel}, as thread block {other} of line {line} does;"
                        " both would use the same slots, so the received data are undefined;"
                        " use another channel for one of them",
                    )
                ends[key] = index, block.line
