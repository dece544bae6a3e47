"""NCCL's algorithms and protocols: names in NCCL, in its kernels, and in clusim."""

from __future__ import annotations

from enum import StrEnum

from clusim.base.errors import InputError, suggest
from clusim.base.terms.operations import plain


class Algorithm(StrEnum):
    """Algorithms, in NCCL's order and with the names of ``NCCL_ALGO``.

    `name` is the word in names of kernels (``NVLS_TREE``), `own` clusim's, in schedules, traces and ``--algorithm``.
    """

    TREE = "Tree"
    RING = "Ring"
    COLLNET_DIRECT = "CollNetDirect"
    COLLNET_CHAIN = "CollNetChain"
    NVLS = "NVLS"
    NVLS_TREE = "NVLSTree"
    PAT = "PAT"

    @property
    def own(self) -> str:
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
    def own(self) -> str:
        """Return clusim's name: ``simple``."""
        return self.value.lower()


ALGORITHMS, PROTOCOLS = tuple(Algorithm), tuple(Protocol)

PROTOCOL_NAMES = (Protocol.SIMPLE.own, Protocol.LL.own, Protocol.LL128.own)
"""clusim's names of the protocols; the first is the default."""

_ALGORITHMS = {plain(item): item for item in Algorithm} | {"collnet": Algorithm.COLLNET_DIRECT}
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
        raise InputError(f"protocol {word!r}: unknown{suggest(plain(word), PROTOCOL_NAMES)}")
    return result


def own_word(word: str) -> str:
    """Return an algorithm in clusim's spelling, ``nvlstree``; unknown words in lower case."""
    result = find_algorithm(word)
    return result.own if result else word.strip().lower()


def is_plan(word: str) -> bool:
    """Return True if a word names the file of a plan rather than an algorithm."""
    return word.lower().endswith((".xml", ".json"))


def own_algorithm(word: str) -> str:
    """Return the value of ``--algorithm`` in clusim's spelling; names of plan files are kept."""
    return word if is_plan(word) else own_word(word)


def kernel_word(word: str) -> str:
    """Return an algorithm or protocol as in kernel names, ``NVLS_TREE``; others in capitals."""
    result = find_algorithm(word) or find_protocol(word)
    return result.name if result else word.upper()
