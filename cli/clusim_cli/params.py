"""Types of command-line values, and helpers of several commands."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from itertools import chain
from pkgutil import resolve_name
from typing import Any

import click
from click.shell_completion import CompletionItem

from clusim.base.errors import InputError, UnitError, suggest
from clusim.base.terms.dtypes import DTYPES, REDUCTIONS, find_dtype, redop_named
from clusim.base.terms.operations import (
    OPERATIONS,
    PROTOCOL_NAMES,
    operation_named,
    own_algorithm,
    protocol_named,
)
from clusim.base.units import parse_ranks, parse_size, parse_time


class Words(click.ParamType[str], ABC):
    """Value that shells complete and help lists; may also be a file if `files` is set."""

    files = False
    listed = True

    def told(self) -> str:
        """Return the words for help; empty if an option's help lists them."""
        return ", ".join(self.every()) if self.listed else ""

    def every(self) -> Iterable[str]:
        """Return all words, regardless of the typed prefix."""
        return self.words(click.Context(click.Command("clusim")))

    @abstractmethod
    def words(self, ctx: click.Context) -> Iterable[str]:
        """Return the words to complete from."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that begin with the typed prefix, in any case."""
        typed = incomplete.lower()
        result = [
            CompletionItem(word) for word in self.words(ctx) if word.lower().startswith(typed)
        ]
        # Shells look for files themselves.
        return result or [CompletionItem(incomplete, type="file")] if self.files else result


class _Topology(Words):
    name, files = "topology", True

    def words(self, ctx: click.Context) -> Iterable[str]:
        from clusim.base.resources import shipped_topologies
        from clusim.topology.cluster_names import superpods
        from clusim.topology.generators import GENERATORS

        return [*shipped_topologies(), *superpods(), *(f"{name}:" for name in GENERATORS)]


class _Workload(Words):
    name, files = "workload", True

    def words(self, ctx: click.Context) -> Iterable[str]:
        from clusim.base.resources import shipped_workloads

        return shipped_workloads()


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value, binary_suffix=True)
        except UnitError as error:
            self.fail(str(error), param, ctx)


class _Time(click.ParamType[int]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_time(value)
        except UnitError as error:
            self.fail(str(error), param, ctx)


RUNNABLE = tuple(
    name for name, item in OPERATIONS.items() if item.test and (item.nccl or name == "sendrecv")
)
"""Operations in help and completion: NCCL calls of nccl-tests, and its message pairs."""


class _Collective(Words):
    name = "collective"
    listed = False

    def words(self, ctx: click.Context) -> Iterable[str]:
        return RUNNABLE

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return operation_named(value).name
        except InputError as error:
            self.fail(str(error), param, ctx)


class _Algorithm(Words):
    name, files = "algorithm", True

    def every(self) -> Iterable[str]:
        from clusim.collectives import ALGORITHMS

        return dict.fromkeys(["nccl", *chain(*ALGORITHMS.values())])

    def words(self, ctx: click.Context) -> Iterable[str]:
        from clusim.collectives import ALGORITHMS

        return ["nccl", *ALGORITHMS.get(ctx.params.get("operation") or "allreduce", ())]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return own_algorithm(value)


class _Protocol(Words):
    name = "|".join(PROTOCOL_NAMES)
    listed = False

    def words(self, ctx: click.Context) -> Iterable[str]:
        return PROTOCOL_NAMES

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return protocol_named(value).own
        except InputError as error:
            self.fail(str(error), param, ctx)


class _DataType(Words):
    name = "type"
    listed = False

    def words(self, ctx: click.Context) -> Iterable[str]:
        return DTYPES

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        result = find_dtype(value)
        return result.name if result else value


class _Reduction(Words):
    name = "|".join(REDUCTIONS)
    listed = False

    def words(self, ctx: click.Context) -> Iterable[str]:
        return REDUCTIONS

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return redop_named(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


class _Fault(Words):
    name = "text"

    def words(self, ctx: click.Context) -> Iterable[str]:
        from clusim.lowering.faulttext import FORMS

        return [f"{kind} {shape}" for kind, (shape, _) in FORMS.items()]

    def told(self) -> str:
        return "; ".join(self.every())


class _Chip(Words):
    name = "chip"

    def words(self, ctx: click.Context) -> Iterable[str]:
        from clusim.hardware import GPUS

        return GPUS


class _Kind(Words):
    """Formats of files, by the module that reads them."""

    name = "kind"

    def __init__(self, home: str) -> None:
        self.home = home

    def words(self, ctx: click.Context) -> Iterable[str]:
        kinds: Iterable[str] = resolve_name(self.home)
        return kinds


class _Release(Words):
    name, listed = "release", False

    def words(self, ctx: click.Context) -> Iterable[str]:
        from clusim.nccl.constants import LATEST, OLDEST

        return [f"{LATEST.major}.{minor}" for minor in range(OLDEST.minor, LATEST.minor + 1)]


class _Granularity(_Size):
    name = "packet|auto|quick|step|coarse|size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        word = str(value).lower()
        return word if word in self.name.split("|")[:-1] else super().convert(value, param, ctx)


class _Ranks(click.ParamType[tuple[int, ...]]):
    name = "ranks"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_ranks(str(value))
        except UnitError as error:
            self.fail(str(error), param, ctx)


CHIP = _Chip()
FAULT = _Fault()
RELEASE = _Release()
RECORDING_KIND = _Kind("clusim.formats.recordings.kinds:KINDS")
TOPOLOGY_KIND = _Kind("clusim.formats.topologies:KINDS")
TOPOLOGY = _Topology()
WORKLOAD = _Workload()
ALGORITHM = _Algorithm()
COLLECTIVE = _Collective()
DTYPE = _DataType()
PROTOCOL = _Protocol()
REDOP = _Reduction()
SIZE = _Size()
TIME = _Time()
GRANULARITY = _Granularity()
RANKS = _Ranks()


class _OneOf(click.Choice[str]):
    """One of some words, in any case; another word is answered by the one it may mean."""

    def __init__(self, words: tuple[str, ...], meant: Mapping[str, str]) -> None:
        super().__init__(words, case_sensitive=False)
        self.meant = meant

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the error, and the right value."""
        return f"{value!r}: unknown{suggest(str(value), self.choices, self.meant)}"


def one_of(*words: str, **meant: str) -> click.Choice[str]:
    """Return the type of a value that is one of some words, in any case.

    `meant` contains frequent alternative words.
    """
    return _OneOf(words, meant)


def command_line() -> str:
    """Return the typed command line, for the trace."""
    import shlex

    return shlex.join(["clusim", *sys.argv[1:]])
