"""An imported description as a topology file: the assumptions as comments, ranges where nodes and links repeat."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from clusim.base.errors import one_line

WIDTH = 110
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,6})")


def topology_text(data: dict[str, Any], title: str, assumptions: Iterable[object]) -> str:
    """Return the topology file of a description that was read from `title`."""
    return "".join(_lines(data, title, list(assumptions)))


def _lines(data: dict[str, Any], title: str, assumptions: list[object]) -> Iterator[str]:
    yield f"# {one_line(str(data['name']))}: imported from {title}.\n"
    if assumptions:
        yield "#\n# What the file does not say, and what was taken instead:\n"
    for assumption in assumptions:
        yield textwrap.fill(
            one_line(str(assumption)), WIDTH, initial_indent="# - ", subsequent_indent="#   "
        )
        yield "\n"
    for key, value in data.items():
        if key == "nodes":
            yield "nodes:\n"
            for name, keys in _grouped_nodes(value):
                yield f"  {_flow(name)}: {_flow(keys)}\n"
        elif key == "links":
            yield "links:\n" if value else "links: []\n"
            for link in value:
                yield f"  - {_flow(link)}\n"
        elif isinstance(value, dict) and value:
            yield f"{key}:\n"
            for name, item in value.items():
                yield f"  {_flow(name)}: {_flow(item)}\n"
        else:
            yield f"{key}: {_flow(value)}\n"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def _grouped_nodes(nodes: dict[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield nodes in order, joining runs of consecutive numbers that are alike: ``gpu0..7``."""
    run: list[tuple[str, int]] = []
    keys: dict[str, Any] = {}
    for name, own in [*nodes.items(), ("", {})]:
        match = _NUMBERED.fullmatch(name)
        following = bool(match and run and run[-1] == (match[1], int(match[2]) - 1) and own == keys)
        if run and not following:
            yield _range(run), keys
            run = []
        if match and (following or name):
            run.append((match[1], int(match[2])))
            keys = own
        elif name:
            yield name, own


def _range(run: list[tuple[str, int]]) -> str:
    head, first = run[0]
    return f"{head}{first}" if len(run) == 1 else f"{head}{first}..{run[-1][1]}"
