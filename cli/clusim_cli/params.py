"""Types of command-line values, and what several commands do with them."""

from __future__ import annotations

import sys
from typing import Any

import click

from clusim.errors import UnitError
from clusim.units import parse_size, parse_time

__all__ = ["ENV", "GRANULARITY", "NCCL_VERSION", "NODES", "RANKS", "SIZE", "TIME", "command_line"]


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


class _Granularity(_Size):
    name = "packet|auto|size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in ("packet", "auto") else super().convert(value, param, ctx)


class _Ranks(click.ParamType[tuple[int, ...]]):
    name = "ranks"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        ranks: list[int] = []
        for part in str(value).split(","):
            low, dash, high = part.strip().partition("-")
            if not low.isdecimal() or (dash and not high.isdecimal()) or len(part) > 20:
                self.fail(
                    f"{value!r}: not a list of ranks; write for example 0-7 or 0,2,4-6", param, ctx
                )
            first, last = int(low), int(high or low)
            if last < first or last - first > 1_000_000:
                self.fail(
                    f"{value!r}: {part.strip()} is not an ascending range of ranks", param, ctx
                )
            ranks += range(first, last + 1)
        return tuple(ranks)


SIZE = _Size()
TIME = _Time()
GRANULARITY = _Granularity()
RANKS = _Ranks()
NODES = click.option(
    "--nodes",
    type=click.IntRange(1, 65_536),
    metavar="N",
    help="Join N of these machines by the network they usually have.",
)
"""Option of commands that take a topology; pass it on as ``fabric.load(topology, nodes=nodes)``."""


ENV = click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable of NCCL, for example NCCL_ALGO=Ring; may be repeated.",
)
NCCL_VERSION = click.option(
    "--nccl-version",
    "version",
    default="",
    metavar="RELEASE",
    help="Release of NCCL, such as 2.27.  [default: the newest known]",
)


def command_line() -> str:
    """Return the command as it was typed, for the trace."""
    import shlex

    return shlex.join(["clusim", *sys.argv[1:]])
