"""Types of command-line values, and what several commands do with them."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from clusim.errors import InputError, UnitError
from clusim.units import parse_ranks, parse_size, parse_time
from clusim.vocabulary.algorithms import PROTOCOL_NAMES, own_algorithm, protocol_named
from clusim.vocabulary.dtypes import DTYPES, REDUCTIONS, find_dtype, redop_named
from clusim.vocabulary.operations import OPERATIONS, operation_named

__all__ = [
    "ALGORITHM",
    "COLLECTIVE",
    "DTYPE",
    "GRANULARITY",
    "PROTOCOL",
    "RANKS",
    "REDOP",
    "RUNNABLE",
    "SIZE",
    "TIME",
    "TOPOLOGY",
    "WORKLOAD",
    "command_line",
    "one_of",
]


class _Words(click.ParamType[str], ABC):
    """A value that shells complete from words; files may be meant, too, where `files` says so."""

    files = False

    @abstractmethod
    def words(self, ctx: click.Context) -> Iterable[str]:
        """Return the words to complete from."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that begin as what has been typed, in any case."""
        typed = incomplete.lower()
        found = [CompletionItem(word) for word in self.words(ctx) if word.lower().startswith(typed)]
        # Shells look for files themselves.
        return found or [CompletionItem(incomplete, type="file")] if self.files else found


class _Topology(_Words):
    name, files = "topology", True

    def words(self, ctx: click.Context) -> Iterable[str]:
        from clusim.fabric.generators import GENERATORS
        from clusim.resources import shipped_topologies

        return [*shipped_topologies(), *(f"{name}:" for name in GENERATORS)]


class _Workload(_Words):
    name, files = "workload", True

    def words(self, ctx: click.Context) -> Iterable[str]:
        from clusim.resources import shipped_workloads

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
"""Operations that help and shells name: those of nccl-tests that are calls of NCCL, and its pairs of messages."""


class _Collective(_Words):
    name = "collective"

    def words(self, ctx: click.Context) -> Iterable[str]:
        return RUNNABLE

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return operation_named(value).name
        except InputError as error:
            self.fail(str(error), param, ctx)


class _Algorithm(_Words):
    name, files = "algorithm", True

    def words(self, ctx: click.Context) -> Iterable[str]:
        from clusim.collectives import ALGORITHMS

        own = ALGORITHMS.get(ctx.params.get("collective") or "allreduce", ())
        return ["nccl", *own]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return own_algorithm(value)


class _Protocol(_Words):
    name = "|".join(PROTOCOL_NAMES)

    def words(self, ctx: click.Context) -> Iterable[str]:
        return PROTOCOL_NAMES

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return protocol_named(value).own
        except InputError as error:
            self.fail(str(error), param, ctx)


class _DataType(_Words):
    name = "type"

    def words(self, ctx: click.Context) -> Iterable[str]:
        return DTYPES

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        found = find_dtype(value)
        return found.name if found else value


class _Reduction(_Words):
    name = "|".join(REDUCTIONS)

    def words(self, ctx: click.Context) -> Iterable[str]:
        return REDUCTIONS

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return redop_named(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


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


def one_of(*words: str) -> click.Choice[str]:
    """Return the type of a value that is one of some words, in any case."""
    return click.Choice(words, case_sensitive=False)


def command_line() -> str:
    """Return the command as it was typed, for the trace."""
    import shlex

    return shlex.join(["clusim", *sys.argv[1:]])
