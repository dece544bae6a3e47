"""Reader of MSCCL++'s JSON plans: operations of thread blocks, with resolved references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from clusim.base.terms.operations import BLOCKWISE, ROOTED, Protocol, find_protocol
from clusim.formats.algorithms.jsonlines import JsonNode, read_json
from clusim.formats.algorithms.layout import PLANNED, AlgorithmPlan, operation_of

MAX_CHUNKS = 65_536
MAX_GPUS = 1024
MAX_BLOCKS = 256
MAX_BYTES = 2**64 - 1


class OpKind(NamedTuple):
    """Kinds of operations.

    Attributes
    ----------
    shape : str
        ``sync``, ``put`` (each source to each target), ``get``, ``copy``, ``combine`` (all sources into the first
        target), ``forward`` (packets to remote targets) or ``switch``.
    sources, targets : str
        Locations of operands, the last letter for all further operands: ``l`` local, ``r`` remote, ``p`` local packets,
        ``P`` remote packets, ``m`` in a multicast group.
    """

    shape: str
    sources: str = ""
    targets: str = ""


_SYNC = (
    "nop", "barrier", "signal", "wait", "rlxsignal", "rlxwait", "flush", "sem_acquire", "sem_release"
)  # fmt: skip

OPS: Mapping[str, OpKind] = {
    **dict.fromkeys(_SYNC, OpKind("sync")),
    "pipeline": OpKind("pipeline"),
    "put": OpKind("put", "l", "r"),
    "pws": OpKind("put", "l", "r"),
    "pwsf": OpKind("put", "l", "r"),
    "ppkt": OpKind("put", "l", "P"),
    "get": OpKind("get", "r", "l"),
    "copy": OpKind("copy", "l", "l"),
    "cpkt": OpKind("copy", "l", "p"),
    "upkt": OpKind("copy", "p", "l"),
    "re": OpKind("combine", "l", "l"),
    "res": OpKind("combine", "l", "lr"),
    "rre": OpKind("combine", "lr", "l"),
    "rres": OpKind("combine", "lr", "lr"),
    "repkt": OpKind("combine", "lp", "l"),
    "respkt": OpKind("combine", "lp", "lP"),
    "recpkt": OpKind("combine", "lp", "lp"),
    "recspkt": OpKind("combine", "lp", "lpP"),
    "rppkt": OpKind("forward", "p", "P"),
    "glres": OpKind("switch", "m", "m"),
    "gstore": OpKind("switch", "l", "m"),
}
"""Operations by their name."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Chunks of a buffer of `gpu`, or of all of `group`; `buffer` is ``i``, ``o`` or ``s``."""

    kind: str
    gpu: int
    buffer: str
    index: int
    size: int
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MscclppOp:
    """One operation.

    Attributes
    ----------
    channels : tuple
        Type, peer, and number among the channels of that type to that peer.
    part, parts : int
        Index of the part of the chunks that its thread block processes, and number of parts.
    barrier : tuple of int
        Number of the barrier, and of its thread blocks.
    semaphores : tuple of int
        Numbers of semaphores of the GPU.
    unit_bytes, unit_chunks : int
        Of a pipeline: bytes per iteration, and chunks of all iterations.
    """

    name: str
    line: int
    sources: tuple[Ref, ...] = ()
    targets: tuple[Ref, ...] = ()
    channels: tuple[tuple[str, int, int], ...] = ()
    part: int = 0
    parts: int = 1
    barrier: tuple[int, int] = (0, 0)
    semaphores: tuple[int, ...] = ()
    unit_bytes: int = 0
    unit_chunks: int = 0
    inner: tuple[MscclppOp, ...] = ()


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """Operations of a thread block, in order."""

    ops: tuple[MscclppOp, ...]

    def all_ops(self) -> Iterator[MscclppOp]:
        """Yield all operations, also of pipelines."""
        for op in self.ops:
            yield from (op, *op.inner)


@dataclass(frozen=True, slots=True)
class MscclppGpu:
    """Chunks of a GPU's buffers, initial values of its semaphores, and its thread blocks."""

    chunks: Mapping[str, int]
    semaphores: tuple[int, ...]
    blocks: tuple[ThreadBlock, ...]


@dataclass(frozen=True, slots=True)
class MscclppPlan(AlgorithmPlan):
    """A plan of MSCCL++."""

    tool: ClassVar[str] = "mscclpp"

    gpus: tuple[MscclppGpu, ...]
    least_bytes: int
    most_bytes: int
    redops: frozenset[str]

    @property
    def channels(self) -> int:
        """Number of channels in use: one per thread block."""
        return min(64, max(1, *(len(gpu.blocks) for gpu in self.gpus)))

    def ops(self) -> Iterator[MscclppOp]:
        """Yield all operations, also of pipelines."""
        for block in self.thread_blocks().values():
            yield from block.all_ops()


def read_plan(path: str | Path) -> MscclppPlan:
    """Read an MSCCL++ plan; raise `InputError` with the line if it is inconsistent."""
    root = read_json(path)
    if "colltype" in root or ("gpus" in root and "collective" not in root):
        raise root.bad(
            'a plan in the format before MSCCL++ 0.7, without "collective"; generate it again with a later release'
        )
    if "gpus" not in root or "collective" not in root:
        raise root.bad('no plan of MSCCL++, which has "collective" and "gpus"')
    name = root.text("collective").lower().replace("_", "")
    operation = operation_of(name)
    if not operation:
        raise root.bad(
            f"collective={name[:40]!r}: unknown; one of {', '.join(PLANNED)}"
        )
    protocol_text = root.text("protocol", Protocol.SIMPLE)
    protocol = find_protocol(protocol_text)
    if protocol not in (Protocol.SIMPLE, Protocol.LL):
        raise root.bad(f"protocol={protocol_text[:40]!r}: unknown; Simple or LL")
    nodes = root.nodes("gpus")
    if not 2 <= len(nodes) <= MAX_GPUS:
        raise root.bad(f"gpus: {len(nodes)}; must be 2..{MAX_GPUS}")
    numbers = [node.number("id", 0, MAX_GPUS) for node in nodes]
    if numbers != list(range(len(nodes))):
        raise root.bad(f"gpus: must have the ids 0..{len(nodes) - 1} in order")
    gpus = [_Gpu(node, number, len(nodes)) for number, node in enumerate(nodes)]
    tables = [gpu.buffers for gpu in gpus]
    plan = MscclppPlan(
        str(path),
        root.text("name", Path(path).stem),
        operation,
        protocol.key,
        _chunks(root, operation, gpus),
        root.flag("inplace", True),
        0,
        tuple(gpu.read(tables) for gpu in gpus),
        root.number("min_message_size", 0, MAX_BYTES, 0),
        root.number("max_message_size", 0, MAX_BYTES, MAX_BYTES),
        frozenset(redop for gpu in gpus for redop in gpu.redops),
    )
    _check_barriers(plan)
    return plan


def _chunks(root: JsonNode, operation: str, gpus: list[_Gpu]) -> int:
    """Return the chunks of the collective's largest buffer, which must be equal for all GPUs."""
    inputs = {gpu.buffers["i"] for gpu in gpus}
    outputs = {gpu.buffers["o"] for gpu in gpus}
    chunks = max(*inputs, *outputs)
    rooted = operation in (*ROOTED, "messages")
    if not chunks or (not rooted and (len(inputs) > 1 or len(outputs) > 1)):
        raise root.bad(
            "gpus: must all have the same input_chunks and output_chunks, not both 0"
        )
    if operation in BLOCKWISE and chunks % len(gpus):
        raise root.bad(
            f"{chunks} chunks: {operation} of {len(gpus)} GPUs needs a multiple of {len(gpus)}"
        )
    return chunks


class _Gpu:
    """Lookup of the objects to which a GPU's operations refer."""

    def __init__(self, node: JsonNode, number: int, gpus: int) -> None:
        self.node, self.number = node, number
        self.buffers = {
            letter: node.number(f"{name}_chunks", 0, MAX_CHUNKS, 0)
            for letter, name in (("i", "input"), ("o", "output"), ("s", "scratch"))
        }
        self.last = gpus - 1
        self.redops: set[str] = set()
        self.channels: dict[str, list[tuple[str, int, int]]] = {
            "memory": [],
            "port": [],
        }
        self.groups: list[tuple[str, tuple[int, ...]]] = []
        counts: Counter[tuple[str, int]] = Counter()
        for item in node.nodes("channels"):
            self._channel(item, counts)
        self.remote: list[tuple[int, str]] = []
        for item in node.nodes("remote_buffers"):
            peer = item.number("rank", 0, self.last)
            self.remote.append((peer, _buffer(item, "type")))
            if peer == number:
                raise item.bad(f"rank={peer}: a remote buffer of gpu {peer} itself")
        self.semaphores = tuple(
            item.number("init_value", 0, 2**31) for item in node.nodes("semaphores")
        )

    def _channel(self, item: JsonNode, counts: Counter[tuple[str, int]]) -> None:
        kind = item.text("channel_type")
        if kind == "switch":
            buffer = _buffer(
                item, "buffer_type" if "buffer_type" in item else "buff"
            )
            for group in item.nodes("rank_groups"):
                ranks = tuple(group.numbers("ranks", 0, self.last))
                if len(set(ranks)) != len(ranks) or self.number not in ranks:
                    raise group.bad(
                        f"ranks={list(ranks)}: must be different, gpu {self.number} among them"
                    )
                self.groups.append((buffer, ranks))
            return
        if kind not in self.channels:
            raise item.bad(
                f"channel_type={kind[:40]!r}: unknown; memory, port or switch"
            )
        for peer in item.numbers("connected_to", 0, self.last):
            if peer == self.number:
                raise item.bad(f"connected_to: gpu {peer} is itself")
            self.channels[kind].append((kind, peer, counts[kind, peer]))
            counts[kind, peer] += 1

    def read(self, tables: list[dict[str, int]]) -> MscclppGpu:
        """Return the GPU; `tables` are the chunks of the buffers of all GPUs."""
        self.tables = tables
        nodes = self.node.nodes("threadblocks")
        if len(nodes) > MAX_BLOCKS:
            raise self.node.bad(f"{len(nodes)} thread blocks; at most {MAX_BLOCKS}")
        numbers = [
            node.number("id", 0, MAX_BLOCKS, at) for at, node in enumerate(nodes)
        ]
        if numbers != list(range(len(nodes))):
            raise self.node.bad(
                f"threadblocks: must have the ids 0..{len(nodes) - 1} in order"
            )
        blocks = tuple(_Block(self, node).read() for node in nodes)
        return MscclppGpu(self.buffers, self.semaphores, blocks)


class _Block:
    """Lookup of the objects to which a thread block's operations refer.

    Operations contain indices into the thread block's lists of channels and buffers.
    """

    def __init__(self, gpu: _Gpu, node: JsonNode) -> None:
        self.gpu, self.node = gpu, node
        self.channels: dict[str, list[int]] = {
            "memory": [],
            "port": [],
            "switch": [],
        }
        for item in node.nodes("channels"):
            kind = item.text("channel_type")
            last_index = (
                len(gpu.groups if kind == "switch" else gpu.channels.get(kind, ()))
                - 1
            )
            if kind not in self.channels:
                raise item.bad(
                    f"channel_type={kind[:40]!r}: unknown; memory, port or switch"
                )
            self.channels[kind] += item.numbers("channel_ids", 0, last_index)
        self.remote: dict[str, list[int]] = {"memory": [], "port": []}
        for item in node.nodes("remote_buffer_refs"):
            kind = item.text("access_channel_type")
            if kind not in self.remote:
                raise item.bad(
                    f"access_channel_type={kind[:40]!r}: unknown; memory or port"
                )
            self.remote[kind] += item.numbers(
                "remote_buffer_ids", 0, len(gpu.remote) - 1
            )

    def read(self) -> ThreadBlock:
        """Return the thread block."""
        return ThreadBlock(
            tuple(self._op(node, False) for node in self.node.nodes("ops"))
        )

    def _op(self, node: JsonNode, inside: bool) -> MscclppOp:
        name = node.text("name")
        kind = OPS.get(name)
        if kind is None:
            raise node.bad(
                f"operation {name[:40]!r}: unknown; one of {', '.join(OPS)}"
            )
        if "reduce_op" in node:
            self.gpu.redops.add(node.text("reduce_op").lower())
        if name == "pipeline":
            return self._pipeline(node, inside)
        where = node.text("channel_type", "memory")
        part, parts, barrier = 0, 1, (0, 0)
        group = node.get("tbg_info")
        if isinstance(group, JsonNode):
            parts = group.number("tbg_size", 1, MAX_BLOCKS)
            part = group.number("tb_id", 0, parts - 1)
        sources = self._refs(node, "src_buff", kind.sources, where)
        targets = self._refs(node, "dst_buff", kind.targets, where)
        _check_sizes(node, name, kind, sources, targets)
        if name == "barrier":
            number = node.number("barrier_id", 0, 1023)
            barrier = number, node.number("num_threadblocks", 1, MAX_BLOCKS)
        return MscclppOp(
            name,
            node.line,
            sources,
            targets,
            self._ends(node, name, where),
            part,
            parts,
            barrier,
            tuple(node.numbers("semaphore_ids", 0, len(self.gpu.semaphores) - 1)),
        )

    def _pipeline(self, node: JsonNode, inside: bool) -> MscclppOp:
        context = node.get("iter_context")
        if inside or not isinstance(context, JsonNode):
            raise node.bad(
                "a pipeline needs an iter_context, and cannot be in another one"
            )
        unit = context.number("unit_size", 16, MAX_BYTES)
        chunks = context.number("num_chunks", 1, MAX_CHUNKS)
        inner = tuple(self._op(item, True) for item in node.nodes("ops"))
        return MscclppOp(
            "pipeline", node.line, unit_bytes=unit, unit_chunks=chunks, inner=inner
        )

    def _ends(
        self, node: JsonNode, name: str, where: str
    ) -> tuple[tuple[str, int, int], ...]:
        if name not in ("signal", "wait", "rlxsignal", "rlxwait", "pws", "pwsf"):
            return ()
        if where not in self.gpu.channels:
            raise node.bad(
                f"channel_type={where[:40]!r}: {name} needs memory or port"
            )
        usable = self.channels[where]
        numbers = node.numbers("channel_ids", 0, len(usable) - 1)
        if not numbers:
            raise node.bad(f"{name}: needs channel_ids")
        return tuple(self.gpu.channels[where][usable[number]] for number in numbers)

    def _refs(
        self, node: JsonNode, name: str, letters: str, where: str
    ) -> tuple[Ref, ...]:
        result = []
        for at, item in enumerate(node.nodes(name)):
            if not letters:
                raise node.bad(f"{name}: not used by {node.text('name')}")
            result.append(self._ref(item, letters[min(at, len(letters) - 1)], where))
        if len(result) < len(letters):
            raise node.bad(
                f"{name}: {node.text('name')} needs at least {len(letters)}"
            )
        return tuple(result)

    def _ref(self, item: JsonNode, letter: str, where: str) -> Ref:
        index = item.number("index", 0, MAX_CHUNKS)
        size = item.number("size", 1, MAX_CHUNKS)
        gpu = self.gpu.number
        ranks: tuple[int, ...] = ()
        if letter in "lp":
            buffer = _buffer(item, "type")
        elif letter == "m":
            usable = self.channels["switch"]
            number = item.number("switch_channel_id", 0, len(usable) - 1)
            buffer, ranks = self.gpu.groups[usable[number]]
        else:
            refs = self.remote.get(where, [])
            number = item.number("buffer_id", 0, len(refs) - 1)
            gpu, buffer = self.gpu.remote[refs[number]]
        if letter in "pP" and buffer != "s":
            raise item.bad(f"packets are in scratch buffers, not in {buffer!r}")
        limit = self.gpu.tables[gpu][buffer]
        if buffer in "io" and not limit:
            limit = self.gpu.tables[gpu]["o" if buffer == "i" else "i"]
        if index + size > limit:
            raise item.bad(
                f"chunks {index}..{index + size - 1} of buffer {buffer!r} of gpu {gpu}, which has {limit}"
            )
        return Ref(letter, gpu, buffer, index, size, ranks)


def _buffer(item: JsonNode, name: str) -> str:
    buffer = item.text(name)
    if buffer not in ("i", "o", "s"):
        raise item.bad(f"{name}={buffer[:40]!r}: must be i, o or s")
    return buffer


def _check_sizes(
    node: JsonNode,
    name: str,
    kind: OpKind,
    sources: tuple[Ref, ...],
    targets: tuple[Ref, ...],
) -> None:
    if kind.shape in ("put", "get") and len(sources) not in (1, len(targets)):
        raise node.bad(
            f"{name}: {len(sources)} src_buff for {len(targets)} dst_buff"
        )
    sizes = {ref.size for ref in (*sources, *targets)}
    if kind.shape != "put" and kind.shape != "get" and len(sizes) > 1:
        raise node.bad(
            f"{name}: operands of {sorted(sizes)} chunks; must have the same size"
        )
    for at, target in enumerate(targets):
        if (
            kind.shape in ("put", "get")
            and target.size != sources[min(at, len(sources) - 1)].size
        ):
            raise node.bad(f"{name}: source and target {at} differ in size")


def _check_barriers(plan: MscclppPlan) -> None:
    for number, gpu in enumerate(plan.gpus):
        users: dict[int, set[int]] = {}
        for index, block in enumerate(gpu.blocks):
            for op in block.all_ops():
                if op.name == "barrier":
                    users.setdefault(op.barrier[0], set()).add(index)
        for block in gpu.blocks:
            for op in block.all_ops():
                if (
                    op.name == "barrier"
                    and len(users[op.barrier[0]]) != op.barrier[1]
                ):
                    raise plan.bad(
                        op.line,
                        f"barrier {op.barrier[0]} of gpu {number} is for {op.barrier[1]} thread"
                        f" blocks, and {len(users[op.barrier[0]])} reach it",
                    )
