"""TunerRules of a tuner plugin's file, ``NCCL_TUNER_CONFIG_FILE``: algorithm, protocol and channels by size and group.

**Hardware** NCCL's example plugin and RCCL's built-in tuner read lines
``collective,min,max,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff[,partitionMode[,localGroup]]]]``
(plugins/tuner/example/plugin.c; RCCL's tuner of CSV files). The first matching line with a pair that the communicator
supports sets the pair's cost to 0 and the number of channels; -1 matches everything, and keeps the channels.
**Model** `TunerRules.find`, used by `clusim.nccl.tuner`. NCCL's plugin replaces unknown words by ring or
simple; RCCL skips the line. Groups have a single operation, in buffers that are not registered.
**Not modelled** One channel where no line matches or a line has -1, which NCCL's plugin sets against its description;
lines of unknown collectives, which that plugin applies to all-reduce; partitions of a GPU (ignored, RCCL's default).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import field
from functools import lru_cache
from pathlib import Path

from clusim.base.errors import InputError
from clusim.base.limits import named_file, printable, read_text
from clusim.base.records import dataclass
from clusim.base.terms.operations import (
    ALGORITHMS,
    PROTOCOLS,
    Algorithm,
    Collective,
    Protocol,
)

_LEAST, _MOST = 8, 12
_MAX_BYTES = 16 << 20
_ANY = -1
_ALONE, _NOT_REGISTERED = 1, 0
"""numPipeOps and regBuff of a collective that is the only operation of its group."""

_COLLECTIVES = {str(item.value).lower(): item for item in Collective}
_ALGORITHMS = {algorithm.plugin: algorithm for algorithm in ALGORITHMS}
_PROTOCOLS = {protocol.key: protocol for protocol in PROTOCOLS}


@dataclass(frozen=True, slots=True)
class TunerRule:
    """One line.

    Attributes
    ----------
    bytes : tuple of int
        First and last size [bytes].
    known : bool
        True if algorithm and protocol are known words.
    channels, nodes, ranks : int
        -1: the library's number, any.
    """

    line: int
    collective: Collective
    bytes: tuple[int, int]
    algorithm: Algorithm
    protocol: Protocol
    known: bool
    channels: int
    nodes: int
    ranks: int

    def fits(
        self, collective: Collective, num_bytes: int, group: tuple[int, int]
    ) -> bool:
        """Return True if the line is for this call; `group` is nodes and ranks."""
        return (
            self.collective is collective
            and self.bytes[0] <= num_bytes <= self.bytes[1]
            and self.nodes in (_ANY, group[0])
            and self.ranks in (_ANY, group[1])
        )


@dataclass(frozen=True, slots=True)
class TunerRules:
    """The lines of a file that can apply, and notes on the others."""

    name: str
    rules: tuple[TunerRule, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)

    def find(
        self,
        call: tuple[Collective, int, tuple[int, int]],
        supported: Container[tuple[Algorithm, Protocol]],
        *,
        rccl: bool,
    ) -> TunerRule | None:
        """Return the first rule for a call (collective, bytes, nodes and ranks) with a supported pair."""
        return next(
            (
                rule
                for rule in self.rules
                if rule.fits(*call)
                and (rule.known or not rccl)
                and (rule.algorithm, rule.protocol) in supported
            ),
            None,
        )


def tuner_rules(variable: str, path: str) -> TunerRules:
    """Return the rules of the file that a variable names.

    Raises
    ------
    InputError
        The file cannot be read, or no line is a rule.
    """
    return _read(variable, *named_file(variable, path))


@lru_cache(16)
def _read(variable: str, path: str, _changed_ns: int) -> TunerRules:
    text = read_text(
        Path(path), _MAX_BYTES, advice="is it a tuner's file?", where=path
    )
    notes: list[str] = []
    rules = tuple(_rules(text, Path(path).name, notes))
    if not rules and not notes:
        message = (
            "no line 'collective,min,max,algorithm,protocol,channels,nNodes,nRanks'"
        )
        raise InputError(f"{variable}={printable(path, 200)}: {message}")
    return TunerRules(Path(path).name, rules, tuple(notes))


def _rules(text: str, name: str, notes: list[str]) -> Iterator[TunerRule]:
    first = True
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.strip() for word in line.split(",")]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        heading, first = first and not _is_number(words[1:2]), False
        if heading:
            continue  # names of the columns
        where = f"NCCL_TUNER_CONFIG_FILE: line {number} of {name}"
        if not _LEAST <= len(words) <= _MOST or not all(
            map(_is_number, _numbers(words))
        ):
            notes.append(
                f"{where} skipped: {_LEAST} to {_MOST} columns with numbers are needed"
            )
            continue
        collective = _COLLECTIVES.get(words[0].lower().replace("_", ""))
        if collective is None:
            notes.append(
                f"{where} skipped: {printable(words[0], 30)} does not use the tuner"
            )
            continue
        if not _applies(words):
            notes.append(
                f"{where} skipped: for grouped operations or registered buffers"
            )
            continue
        rule = _rule(number, collective, words)
        if not rule.known:
            notes.append(
                f"{where}: {printable(words[3], 20)} {printable(words[4], 20)} are not an algorithm and protocol;"
                f" NCCL's plugin uses {rule.algorithm.value} {rule.protocol.value}, RCCL skips the line"
            )
        yield rule


def _rule(number: int, collective: Collective, words: list[str]) -> TunerRule:
    algorithm, protocol = (
        _ALGORITHMS.get(words[3].lower()),
        _PROTOCOLS.get(words[4].lower()),
    )
    return TunerRule(
        number,
        collective,
        (int(words[1]), int(words[2])),
        algorithm or Algorithm.RING,
        protocol or Protocol.SIMPLE,
        algorithm is not None and protocol is not None,
        *(int(word) for word in words[5:8]),
    )


def _numbers(words: list[str]) -> Iterator[list[str]]:
    """Yield the columns that must be integers."""
    return ([word] for word in (*words[1:3], *words[5:10]))


def _is_number(words: list[str]) -> bool:
    return all(
        word.removeprefix("-").isdecimal() and len(word) < 20 for word in words
    )


def _applies(words: list[str]) -> bool:
    """Return True if a line is for groups of a single operation and for unregistered buffers."""
    limits = [int(word) for word in words[8:10]]
    usual = (_ALONE, _NOT_REGISTERED)
    return all(
        value in (_ANY, actual) for value, actual in zip(limits, usual, strict=False)
    )
