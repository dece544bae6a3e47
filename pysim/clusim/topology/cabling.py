"""Links of a description: pairs of graph nodes, by names and ranges, and their types."""

from __future__ import annotations

import re
from dataclasses import replace

from clusim.hardware import LINKS
from clusim.topology.catalogue import Catalogue, look_at_thresholds, merge
from clusim.topology.components import make_link
from clusim.topology.keys import did_you_mean
from clusim.topology.model import Link
from clusim.topology.schema import LinkSpec, LinkTypeSpec
from clusim.topology.validate import KeyPath

MAX_NODES = 65_536
MAX_LINKS = 1_000_000

_RANGE = re.compile(r"(.*?)([0-9]{1,7})\.\.([0-9]{1,7})(.*)")
_MOST_LETTERS = 256
"""Longest text read as a range; a million longer names would exhaust memory."""


def names_of(text: str) -> list[str]:
    """Return the names in a range such as ``gpu0..7``, at most one more than the limit."""
    match = _RANGE.fullmatch(text) if len(text) <= _MOST_LETTERS else None
    if match is None:
        return [text]
    head, low, high, tail = match.groups()
    width = len(low) if low.startswith("0") else 0
    last = min(int(high), int(low) + MAX_NODES)
    return [
        f"{head}{number:0{width}d}{tail}" for number in range(int(low), last + 1)
    ]


def make_links(state: Catalogue, index: dict[str, int]) -> list[Link]:
    """Return the links of a description."""
    links: list[Link] = []
    total = 0
    for number, spec in enumerate(state.topology.links):
        path: KeyPath = ("links", number)
        pairs = _pairs(state, spec, path, index)
        merged = _link_type(state, spec, path)
        if not pairs or merged is None:
            continue
        one = replace(
            make_link(merged, spec.type or ""),
            dim=spec.dim,
            dateline=(
                spec.dateline in ("forward", "both"),
                spec.dateline in ("backward", "both"),
            ),
        )
        links += [replace(one, a=a, b=b, count=count) for a, b, count in pairs]
        total += sum(count for _, _, count in pairs)
        if total > MAX_LINKS:
            state.problems.add(
                path, f"more than {MAX_LINKS} links; that is the limit"
            )
            break
    return links


def _pairs(
    state: Catalogue, spec: LinkSpec, path: KeyPath, index: dict[str, int]
) -> list[tuple[str, str, int]]:
    """Return the node pairs of an entry with the number of links of each."""
    ends = []
    for key, text in (("from", spec.from_), ("to", spec.to)):
        names = names_of(text)
        unknown = next((name for name in names if name not in index), None)
        if unknown is not None or not names:
            missing = (
                f"unknown node {unknown[:80]!r}{did_you_mean(unknown[:80], index)}"
                if unknown
                else "empty range"
            )
            state.problems.add((*path, key), missing)
            return []
        ends.append(names)
    sources, targets = ends
    counts = spec.count if len(spec.count) > 1 else spec.count * len(targets)
    mismatch = _mismatch(spec, len(sources), len(targets), len(counts))
    if mismatch is not None:
        key, message = mismatch
        state.problems.add((*path, key) if key else path, message)
        return []
    if spec.pair == "blocks":
        pairs = _blocks(sources, targets, counts)
    elif spec.pair == "zip":
        pairs = list(zip(sources, targets, counts, strict=True))
    else:
        pairs = [
            (a, b, n) for a in sources for b, n in zip(targets, counts, strict=True)
        ]
    loop = next((a for a, b, _ in pairs if a == b), None)
    if loop is not None:
        state.problems.add(
            path, f"links {loop!r} to itself; name two different nodes"
        )
        return []
    return pairs


def _mismatch(
    spec: LinkSpec, sources: int, targets: int, counts: int
) -> tuple[str, str] | None:
    """Return the key and the message of ranges that cannot be paired."""
    if spec.pair == "zip" and sources != targets:
        return "pair", f"zip of {sources} with {targets} nodes; must be equally many"
    if spec.pair == "blocks" and max(sources, targets) % min(sources, targets):
        message = "nodes; one must be a multiple of the other"
        return "pair", f"blocks of {sources} and {targets} {message}"
    if counts != targets:
        return (
            "count",
            f"{counts} counts for {targets} nodes in 'to'; write one or one each",
        )
    if spec.pair == "all" and sources * targets > MAX_LINKS:
        return "", f"more than {MAX_LINKS} links; that is the limit"
    return None


def _blocks(
    sources: list[str], targets: list[str], counts: list[int]
) -> list[tuple[str, str, int]]:
    """Join graph nodes of the shorter list with equally long runs of the longer one."""
    longer = max(len(sources), len(targets))
    repeats = (longer // len(sources), longer // len(targets))
    ends = ((number // repeats[0], number // repeats[1]) for number in range(longer))
    return [(sources[a], targets[b], counts[b]) for a, b in ends]


def _link_type(
    state: Catalogue, spec: LinkSpec, path: KeyPath
) -> LinkTypeSpec | None:
    name = spec.type or spec.base
    base: LinkTypeSpec | None = None
    if name is not None:
        base = state.resolve(
            "link_types", name, (*path, "type" if spec.type else "base")
        )
        if base is None:
            return None
    merged: LinkTypeSpec = merge(base, spec) if base else spec
    look_at_thresholds(state.problems, path, merged)
    if merged.format is None:
        formats = list(state.topology.formats)
        merged = merged.model_copy(
            update={"format": formats[0] if len(formats) == 1 else None}
        )
    for key in ("rate", "latency", "format"):
        if getattr(merged, key) is None:
            state.problems.add(
                path,
                f"{key!r} is missing; set it or a type, such as {', '.join(list(LINKS)[:5])}",
            )
            return None
    if merged.rate is not None and merged.rate.num == 0:
        own_rate = "rate" in spec.model_fields_set
        state.problems.add(
            (*path, "rate") if own_rate else path,
            "zero bandwidth; set a rate above 0",
        )
        return None
    if state.resolve("formats", str(merged.format), (*path, "format")) is None:
        return None
    return merged
