"""Names of operations in all tools, and of NCCL's algorithms and protocols.

Operations include the meaning of their sizes and a normalised spelling; algorithms and protocols have names in NCCL,
in its kernels, and in clusim.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Literal

from clusim.base.errors import InputError, suggest
from clusim.base.records import dataclass
from clusim.base.terms.dtypes import own_dtype, redop_named


def plain(word: str) -> str:
    """Return a word in lower case without separators: ``allreduce`` for ``All-Reduce``."""
    return word.strip().lower().replace("_", "").replace("-", "").replace(" ", "")


class Collective(StrEnum):
    """Operations of NCCL's tuner, in the order of its tables and with the names in its log."""

    BROADCAST = "Broadcast"
    REDUCE = "Reduce"
    ALLGATHER = "AllGather"
    REDUCESCATTER = "ReduceScatter"
    ALLREDUCE = "AllReduce"

    @property
    def operation(self) -> str:
        """Return clusim's name: ``all_gather``."""
        return _OPERATION_OF[self]

    @property
    def has_blocks(self) -> bool:
        """Return True if one of its buffers has a block per rank."""
        return self in (Collective.ALLGATHER, Collective.REDUCESCATTER)


COLLECTIVES = tuple(Collective)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation.

    Attributes
    ----------
    name : str
        In clusim: ``all_gather``.
    nccl : str
        In NCCL's log and in names of its kernels, ``AllGather``; empty without such a call. `Collective` if
        its tuner decides about it; otherwise, unless it is a message, it is a group of sends and receives.
    test : str
        Program of nccl-tests without ``_perf``: ``all_gather``; empty without such a program.
    bus : {"all", "others", "twice"}
        Share of the size that crosses the bus: 1, (n-1)/n, or 2(n-1)/n.
    blocks : {"", "in", "out", "both"}
        Buffers with a block per rank, of which NCCL counts one; the other buffer is one block.
    reduces, rooted : bool
        True if it has a reduction, or a root.
    torch : tuple of str
        Functions of ``torch.distributed``.
    chakra : tuple of (int, str)
        Values of ``comm_type`` in Chakra's traces, and their names.
    astra : str
        In the layers of ASTRA-sim and SimAI.
    others : tuple of str
        Further spellings, plain.
    """

    name: str
    nccl: str = ""
    test: str = ""
    bus: Literal["all", "others", "twice"] = "all"
    blocks: Literal["", "in", "out", "both"] = ""
    reduces: bool = False
    rooted: bool = False
    torch: tuple[str, ...] = ()
    chakra: tuple[tuple[int, str], ...] = ()
    astra: str = ""
    others: tuple[str, ...] = ()

    def bus_factor(self, num_ranks: int) -> float:
        """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
        if self.bus == "all":
            return 1.0
        return (2 if self.bus == "twice" else 1) * (num_ranks - 1) / num_ranks


ONE_SIDED = ("PutSignal", "Signal", "WaitSignal")
"""One-sided calls in NCCL's log, which are simulated in groups."""

ENDS = ("Send", "Recv", *ONE_SIDED)
"""Calls of a single rank in NCCL's log."""

OPERATIONS: dict[str, Operation] = {
    item.name: item
    for item in (
        Operation("allreduce", Collective.ALLREDUCE, "all_reduce", "twice", reduces=True,
                  torch=("all_reduce",), chakra=((0, "ALL_REDUCE"),), astra="ALLREDUCE"),
        Operation("all_gather", Collective.ALLGATHER, "all_gather", "others", "out",
                  torch=("all_gather", "all_gather_into_tensor"), chakra=((2, "ALL_GATHER"),), astra="ALLGATHER"),
        Operation("reduce_scatter", Collective.REDUCESCATTER, "reduce_scatter", "others", "in", reduces=True,
                  torch=("reduce_scatter", "reduce_scatter_tensor"), astra="REDUCESCATTER",
                  chakra=((7, "REDUCE_SCATTER"), (8, "REDUCE_SCATTER_BLOCK"))),
        Operation("broadcast", Collective.BROADCAST, "broadcast", rooted=True,
                  torch=("broadcast",), chakra=((5, "BROADCAST"),), others=("bcast",)),
        Operation("reduce", Collective.REDUCE, "reduce", reduces=True, rooted=True,
                  torch=("reduce",), chakra=((1, "REDUCE"),)),
        Operation("alltoall", "AlltoAll", "alltoall", "others", "both",
                  torch=("all_to_all",), chakra=((6, "ALL_TO_ALL"),), astra="ALLTOALL"),
        Operation("gather", "Gather", "gather", "others", "out", rooted=True, chakra=((3, "GATHER"),)),
        Operation("scatter", "Scatter", "scatter", "others", "in", rooted=True, chakra=((4, "SCATTER"),)),
        Operation("sendrecv", test="sendrecv"),
        Operation("hypercube", test="hypercube", blocks="both"),
        Operation("weighted_alltoall", test="alltoallv", bus="others", blocks="both"),
        Operation("send", "Send"),
        Operation("recv", "Recv"),
        Operation("barrier", torch=("barrier",), chakra=((9, "BARRIER"),)),
        Operation("messages", others=("custom",)),
        Operation("puts"),
    )
}  # fmt: skip
"""By clusim's name."""

BLOCKWISE = tuple(item.name for item in OPERATIONS.values() if item.blocks)
"""Operations with one block per rank in their largest buffer."""

GATHERING = tuple(item.name for item in OPERATIONS.values() if item.blocks == "out")
"""Operations with one block of the output as input."""

SCATTERING = tuple(item.name for item in OPERATIONS.values() if item.blocks == "in")
"""Operations with one block of the input as output."""

REDUCING = tuple(item.name for item in OPERATIONS.values() if item.reduces)
"""Operations that have a reduction."""

ROOTED = tuple(item.name for item in OPERATIONS.values() if item.rooted)
"""Operations that have a root."""

COLLECTIVE_OF = {
    item.name: item.nccl
    for item in OPERATIONS.values()
    if isinstance(item.nccl, Collective)
}
"""Operations about which NCCL's tuner decides."""

_OPERATION_OF = {collective: name for name, collective in COLLECTIVE_OF.items()}

PATTERNS = ("alltoall", "gather", "scatter", "sendrecv")
"""Operations that NCCL implements by a group of sends and receives."""

OF_NCCL = (*COLLECTIVE_OF, *PATTERNS)
"""Operations that NCCL executes for all ranks of a communicator."""

_BY_SPELLING = {plain(item.name): item for item in OPERATIONS.values()} | {
    other: item for item in OPERATIONS.values() for other in item.others
}
_BY_TEST = {item.test: item for item in OPERATIONS.values() if item.test}
_LONGEST_FIRST = sorted(
    (plain(item.name), item.name) for item in OPERATIONS.values() if item.chakra
)[::-1]


@lru_cache(1024)
def find_operation(word: str) -> Operation | None:
    """Return the operation in any spelling (``all_reduce_perf``, ``ncclAllReduce``), or None."""
    short = word.rpartition("/")[2].lower().removesuffix("_mpi")
    name = short.removesuffix("_perf")
    if name != short and name in _BY_TEST:
        return _BY_TEST[name]
    return _BY_SPELLING.get(plain(name).removeprefix("nccl"))


_MEANT = {
    **{
        "ar": "allreduce",
        "ag": "all_gather",
        "rs": "reduce_scatter",
        "a2a": "alltoall",
    },
    **{
        "bc": "broadcast",
        "p2p": "sendrecv",
        "pingpong": "sendrecv",
        "sum": "allreduce",
    },
}
"""Common mistaken words, and the intended operation."""


def operation_named(
    word: str, names: tuple[str, ...] = tuple(OPERATIONS)
) -> Operation:
    """Return the operation in any spelling.

    Parameters
    ----------
    known : tuple of str
        Operations that are permitted.

    Raises
    ------
    InputError
        It is unknown or not permitted; the message names the most similar.
    """
    result = find_operation(word)
    if result is None:
        raise InputError(
            f"operation {word!r}: unknown{suggest(plain(word), names, _MEANT)}"
        )
    if result.name not in names:
        raise InputError(
            f"operation {word!r}: not for this; there are {', '.join(names)}"
        )
    return result


def operation_written(name: object) -> str:
    """Return the collective with this exact name (plugins: ``ReduceScatter``), or empty."""
    result = find_operation(name) if isinstance(name, str) else None
    return result.name if result is not None and result.chakra else ""


def operation_starting(name: object) -> str:
    """Return the operation at the start of a longer name (``_allgather_base``), else empty."""
    if not isinstance(name, str):
        return ""
    short = plain(name)
    return next(
        (result for start, result in _LONGEST_FIRST if short.startswith(start)), ""
    )


def weighted_bytes(size_bytes: int, num_ranks: int) -> list[int]:
    """Return the bytes of nccl-tests' alltoallv from a rank to the ranks at distance 0, 1, ... after it.

    They grow with the distance, in blocks of 16 bytes; `size_bytes` is n times the count (``alltoallv.cu``, with the
    default of ``NCCL_TESTS_ALLTOALLV_SPREAD``).
    """
    pairs = max(1, num_ranks * (num_ranks - 1) // 2)
    return [
        int(hop * float(size_bytes) / float(pairs)) & ~15 for hop in range(num_ranks)
    ]


def full_bytes(operation: str, part_bytes: int, num_ranks: int) -> int:
    """Return the size of the largest buffer [bytes] from NCCL's count per rank, `part_bytes`."""
    return part_bytes * (num_ranks if operation in BLOCKWISE else 1)


def bus_factor(operation: str, num_ranks: int) -> float:
    """Return busbw over algbw as defined by nccl-tests; 1 for custom operations."""
    result = OPERATIONS.get(operation)
    return result.bus_factor(num_ranks) if result else 1.0


def counted_share(operation: str, num_ranks: int) -> float:
    """Return the bytes that all wires must carry for busbw, per byte of the collective's size.

    A root reduces them: the root of a broadcast has its data already, and all blocks of a gather are
    received by one rank.
    """
    if operation in ROOTED:
        return (
            num_ranks - 1.0
            if operation not in BLOCKWISE
            else (num_ranks - 1) / num_ranks
        )
    return (
        1.0 if operation == "send" else num_ranks * bus_factor(operation, num_ranks)
    )


class Algorithm(StrEnum):
    """Algorithms, in NCCL's order and with the names of ``NCCL_ALGO``; last RCCL's plans of MSCCL.

    `name` is the word in names of kernels (``NVLS_TREE``), `own` clusim's, in schedules, traces and ``--algorithm``.
    """

    TREE = "Tree"
    RING = "Ring"
    COLLNET_DIRECT = "CollNetDirect"
    COLLNET_CHAIN = "CollNetChain"
    NVLS = "NVLS"
    NVLS_TREE = "NVLSTree"
    PAT = "PAT"
    MSCCL = "MSCCL"

    @property
    def key(self) -> str:
        """Return clusim's name: ``nvlstree``."""
        return self.value.lower()

    @property
    def plugin(self) -> str:
        """Return the name in the configuration of NCCL's example tuner plugin: ``nvls_tree``."""
        return self.name.lower()


class Protocol(StrEnum):
    """Protocols, in NCCL's order and with the names of ``NCCL_PROTO``.

    `name` is the word in names of kernels (``SIMPLE``), `own` clusim's, in schedules, traces and ``--protocol``.
    """

    LL = "LL"
    LL128 = "LL128"
    SIMPLE = "Simple"

    @property
    def key(self) -> str:
        """Return clusim's name: ``simple``."""
        return self.value.lower()


ALGORITHMS: tuple[Algorithm, ...] = tuple(
    item for item in Algorithm if item is not Algorithm.MSCCL
)
"""Algorithms of NCCL's tuner."""

PROTOCOLS = tuple(Protocol)

PROTOCOL_NAMES = (Protocol.SIMPLE.key, Protocol.LL.key, Protocol.LL128.key)
"""clusim's names of the protocols; the first is the default."""

_ALGORITHMS = {plain(item): item for item in ALGORITHMS} | {
    "collnet": Algorithm.COLLNET_DIRECT
}
_PROTOCOLS = {plain(item): item for item in Protocol}


def find_algorithm(word: str) -> Algorithm | None:
    """Return NCCL's algorithm in any spelling (``NVLS_TREE``, ``nvlstree``, ...), else None."""
    return _ALGORITHMS.get(plain(word))


def find_protocol(word: str) -> Protocol | None:
    """Return the protocol in any spelling (``LL``, ``ll``, ``SIMPLE``), else None."""
    return _PROTOCOLS.get(plain(word))


def protocol_named(word: str) -> Protocol:
    """Return the protocol in any spelling; raise `InputError` for another word."""
    result = find_protocol(word)
    if result is None:
        raise InputError(
            f"protocol {word!r}: unknown{suggest(plain(word), PROTOCOL_NAMES)}"
        )
    return result


def own_word(word: str) -> str:
    """Return an algorithm in clusim's spelling, ``nvlstree``; unknown words in lower case."""
    result = find_algorithm(word)
    return result.key if result else word.strip().lower()


def is_plan(word: str) -> bool:
    """Return True if a word names the file of a plan rather than an algorithm."""
    return word.lower().endswith((".xml", ".json"))


def own_algorithm(word: str) -> str:
    """Return the value of ``--algorithm`` in clusim's spelling; names of plan files are kept."""
    return word if is_plan(word) else own_word(word)


WORDS: dict[str, Callable[[str], str]] = {
    "operation": lambda word: operation_named(word).name,
    "algorithm": own_algorithm,
    "protocol": lambda word: protocol_named(word).key,
    "dtype": own_dtype,
    "redop": redop_named,
}
"""Named options of a collective, and the readers of their words in any spelling."""

GRANULARITIES = ("packet", "auto", "quick", "step", "coarse")
"""Words for the granularity of a run; sizes of bursts are others."""


def kernel_word(word: str) -> str:
    """Return an algorithm or protocol as in kernel names, ``NVLS_TREE``; others in capitals."""
    result = find_algorithm(word) or find_protocol(word)
    return result.name if result else word.upper()
