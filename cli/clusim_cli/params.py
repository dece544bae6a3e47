"""Types of command-line values, and what several commands do with them."""

from __future__ import annotations

import sys
from typing import Any

import click

from clusim.errors import InputError, UnitError
from clusim.units import parse_ranks, parse_size, parse_time
from clusim.vocabulary.algorithms import PROTOCOL_NAMES, own_algorithm, protocol_named
from clusim.vocabulary.dtypes import REDUCTIONS, find_dtype, redop_named
from clusim.vocabulary.operations import operation_named

__all__ = [
    "ALGORITHM",
    "COLLECTIVE",
    "DTYPE",
    "GRANULARITY",
    "PROTOCOL",
    "RANKS",
    "REDOP",
    "SIZE",
    "TIME",
    "command_line",
    "one_of",
]


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


class _Collective(click.ParamType[str]):
    name = "collective"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return operation_named(value).name
        except InputError as error:
            self.fail(str(error), param, ctx)


class _Algorithm(click.ParamType[str]):
    name = "algorithm"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return own_algorithm(value)


class _Protocol(click.ParamType[str]):
    name = "|".join(PROTOCOL_NAMES)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return protocol_named(value).own
        except InputError as error:
            self.fail(str(error), param, ctx)


class _DataType(click.ParamType[str]):
    name = "type"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        found = find_dtype(value)
        return found.name if found else value


class _Reduction(click.ParamType[str]):
    name = "|".join(REDUCTIONS)

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
