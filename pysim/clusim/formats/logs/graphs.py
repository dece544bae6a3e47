"""Log lines about rings, trees, connections, graph search, topology and cost tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from clusim.base.limits import MOST_CHANNELS, MOST_RANKS
from clusim.base.terms.operations import PROTOCOLS, Collective
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.lines import remembered
from clusim.formats.logs.messages import HANDLERS, Handler, choice, environment
from clusim.formats.logs.raw_log import (
    MOST_ORDERED,
    MOST_ORDERS,
    MOST_PATH_LINES,
    LoggedPattern,
    RawLog,
    SystemNode,
)

CONNECTION = re.compile(
    r"(?:Channel|Ring) (\d{1,9})(?:/(\d{1,9}))? : (\d{1,9})(?:\[([0-9a-fA-F]+)\])? -> (\d{1,9})(?:\[([0-9a-fA-F]+)\])?"
    r" (?:\[(send|receive)\] )?via (.+)$"
)
_COLLNET = re.compile(
    r"Coll(?:Net)? (\d{1,9})(?:/(\d{1,9}))? : (\d{1,9}) \[(send|receive)\] via (COLLNET/.+)$"
)
_ORDER = re.compile(r"Channel (\d{1,9})(?:/(\d{1,9}))? :((?: +\d{1,9})+)( *\.\.\.)?\s*$")
_LINK = re.compile(r"Ring (\d{1,9}) : (-?\d{1,9}) -> (\d{1,9}) -> (-?\d{1,9})(?: comm .*)?\s*$")
_TREE_LINE = re.compile(
    r"Tree (\d{1,9}) : (-?\d{1,9}) -> (\d{1,9}) -> (-?\d{1,9})/(-?\d{1,9})/(-?\d{1,9})"
)
_TREES = re.compile(
    r"\[(\d{1,9})\] (-?\d{1,9})((?:/-?\d{1,9}){2})?->(\d{1,9})->(-?\d{1,9})((?:/-?\d{1,9}){2})?"
    r"(?:\|[-\d/>]+)?(?=\s|$|[A-Za-z])"
)
_TREES_NOW = re.compile(
    r"Trees(?: \[\d{1,9}\] -?\d{1,9}/-?\d{1,9}/-?\d{1,9}->\d{1,9}->-?\d{1,9})+\s*"
)
_INTEGER = re.compile(r"-?\d{1,9}")
_COUNTS = re.compile(
    r"(?:comm 0x[0-9a-f]{1,16},? )?(\d{1,9}) coll channels, (?:(\d{1,9}) collnet channels, )?"
    r"(?:(\d{1,9}) nvls channels, )?(\d{1,9}) p2p channels(?:, (\d{1,9}) p2p channels per peer)?"
)
_PATTERN = re.compile(
    r"Pattern (\d{1,9}), crossNic (\d{1,9}), nChannels (\d{1,9}),"
    r" (?:bw|speed) (\d{1,18}(?:\.\d{1,18})?)/(\d{1,18}(?:\.\d{1,18})?),"
    r"(?: nHops \d{1,9},)? type (\w+)/(\w+), sameChannels (\d{1,9})"
)
_PATTERN_ORDER = re.compile(r"\s*\d{1,9} :((?: +(?:NET|GPU|NVS|NIC|PCI)/[\w-]+)+)\s*$")
_SYSTEM = re.compile(
    r"=== System : max(?:Bw|Width|Speed) (\d{1,18}(?:\.\d{1,18})?) total(?:Bw|Width|Speed) (\d{1,18}(?:\.\d{1,18})?)"
)
_SYSTEM_LINK = re.compile(r"( *)\+ (\w+)\[(\d{1,18}(?:\.\d{1,18})?)\] - (\S+)(?: \((.*)\))?\s*$")
_SYSTEM_NODE = re.compile(r"((?:CPU|PCI|GPU|NVS|NIC|NET)/\S+)(?: \((.*)\))?\s*$")
_PATH = re.compile(r"(?<!\w)(\w+/[\w-]+) \((\d{1,9})/(\d{1,18}(?:\.\d{1,18})?)/(\w+)\)")
_PATH_LINE = re.compile(r"((?:GPU|NET|CPU|NVS|NIC)/[\w-]+) :(?=\w+/)")
_COST = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)/ *(\d{1,18}(?:\.\d{1,18})?)\s*$")
_COLLECTIVES = frozenset(Collective)


def _legal(channel: int, *ranks: int) -> bool:
    """Return True if a line's channel and ranks are possible."""
    return channel < MOST_CHANNELS and max(ranks, default=0) < MOST_RANKS


@remembered
def _ends(text: str) -> tuple[int, int, int, int, str, int] | None:
    """Return channel, index, source, target, route and side (1: send, 2: receive)."""
    match = CONNECTION.match(text)
    if match is None:
        return None
    channel, source, target = int(match[1]), int(match[3]), int(match[5])
    if not _legal(channel, source, target):
        return None
    side = {"send": 1, "receive": 2, None: 0}[match[7]]
    return channel, int(match[2] or 0), source, target, match[8].rstrip(), side


def _connection(facts: RawLog, thread: int, line: int, text: str) -> bool:
    result = _ends(text)
    if result is None:
        return False
    channel, index, source, target, how, side = result
    route = facts.route_of(how)
    if route == NONE:
        return False
    member = facts.member_of(thread, line, target if side == 2 else source)
    facts.connections.append(member, channel, index, source, target, route, side)
    return True


@remembered
def _order_of(text: str) -> tuple[int, list[int], int, bool, bool] | None:
    """Return channel, ranks, number of channels, and flags: line is cut, numbers are valid."""
    match = _ORDER.match(text)
    if match is None:
        return None
    channel, ranks = int(match[1]), [int(rank) for rank in match[3].split()]
    total = NONE if match[2] is None else int(match[2])
    return channel, ranks, total, bool(match[4]), _legal(channel, *ranks)


def _order(facts: RawLog, thread: int, line: int, text: str) -> bool:
    result = _order_of(text)
    if result is None:
        return False
    channel, ranks, total, cut, legal = result
    facts.ordered += len(ranks)
    if not legal or facts.ordered > MOST_ORDERED:
        return False
    member = facts.members[facts.member_of(thread, line, 0)]
    member.orders[channel] = ranks
    if cut:
        member.cut_orders |= {channel}
    elif len(set(ranks)) != len(ranks):
        return False
    if total != NONE:
        member.channel_total = total
    return True


def _channel(facts: RawLog, thread: int, line: int, text: str) -> bool:
    return _connection(facts, thread, line, text) or _order(facts, thread, line, text)


def _integers(pattern: re.Pattern[str]) -> Callable[[str], tuple[int, ...] | None]:
    """Return a parser of the numbers in texts of a pattern."""

    def parse(text: str) -> tuple[int, ...] | None:
        match = pattern.match(text)
        return None if match is None else tuple(int(number) for number in match.groups())

    return remembered(parse)


_link = _integers(_LINK)
"""Channel of a ring, the previous rank, the rank, and the next rank."""

_branch = _integers(_TREE_LINE)
"""Channel of a tree, the parent, the rank, and the children."""


def _ring(facts: RawLog, thread: int, line: int, text: str) -> bool:
    result = _link(text)
    if result is None:
        return _connection(facts, thread, line, text)
    if not _legal(*result):
        return False
    facts.links.append(facts.member_of(thread, line, result[2]), *result)
    return True


def _tree(facts: RawLog, thread: int, line: int, text: str) -> bool:
    result = _branch(text)
    if result is None or not _legal(*result):
        return False
    facts.trees.append(facts.member_of(thread, line, result[2]), *result)
    return True


@remembered
def _branches(text: str) -> tuple[list[tuple[int, ...]], bool]:
    """Return the trees of a line, as `_branch` does, and True if they are complete."""
    if _TREES_NOW.fullmatch(text):  # format since 2.8; one long line per rank
        numbers = [int(number) for number in _INTEGER.findall(text)]
        if not _legal(max(numbers[::6]), *numbers):
            return [], False
        cut = (numbers[at : at + 6] for at in range(0, len(numbers), 6))
        return [(channel, up, rank, *down) for channel, *down, rank, up in cut], True
    rows: list[tuple[int, ...]] = []
    result = _TREES.findall(text)
    for channel, left, more_left, rank, right, more_right in result:
        # Up to 2.4 the parent precedes the children, later it follows them.
        if more_left:
            up, downs = int(right), [left, *more_left[1:].split("/")]
        elif more_right:
            up, downs = int(left), [right, *more_right[1:].split("/")]
        else:
            continue
        rows.append((int(channel), up, int(rank), *(int(down) for down in downs)))
        if not _legal(*rows[-1]):
            return rows[:-1], False
    return rows, bool(result)


def _trees(facts: RawLog, thread: int, line: int, text: str) -> bool:
    rows, whole = _branches(text)
    if rows:
        member = facts.member_of(thread, line, rows[0][2])
        for row in rows:
            facts.trees.append(member, *row)
    return whole


def _collnet(facts: RawLog, thread: int, line: int, text: str) -> bool:
    match = _COLLNET.match(text)
    if match is None:
        return False
    route = facts.route_of(match[5].rstrip())
    if route == NONE:
        return False
    rank, side = int(match[3]), 1 if match[4] == "send" else 2
    if not _legal(int(match[1]), rank):
        return False
    member, index = facts.member_of(thread, line, rank), int(match[2] or 0)
    facts.connections.append(member, int(match[1]), index, rank, NONE, route, side)
    return True


@remembered
def _counts_of(text: str) -> dict[str, int]:
    """Return the number of channels of each sort."""
    match = _COUNTS.match(text)
    if match is None:
        return {}
    names = ("coll", "collnet", "nvls", "p2p", "p2p per peer")
    result = zip(names, match.groups(), strict=True)
    return {name: int(value) for name, value in result if value is not None}


def _counts(facts: RawLog, thread: int, line: int, text: str) -> bool:
    counts = _counts_of(text)
    if counts:
        facts.members[facts.member_of(thread, line)].counts = counts
    return bool(counts)


@remembered
def _pattern_of(text: str) -> LoggedPattern | None:
    match = _PATTERN.match(text)
    if match is None:
        return None
    return LoggedPattern(
        int(match[1]), int(match[2]), int(match[3]), float(match[4]), float(match[5]),
        match[6], match[7], int(match[8]),
    )  # fmt: skip


def _pattern(facts: RawLog, thread: int, line: int, text: str) -> bool:
    result = _pattern_of(text)
    if result is not None:
        facts.members[facts.member_of(thread, line)].patterns.append(result)
    return result is not None


def _pattern_order(facts: RawLog, thread: int, line: int, text: str) -> bool:
    match = _PATTERN_ORDER.match(text)
    if match is None:
        return False
    patterns = facts.members[facts.member_of(thread, line)].patterns
    if patterns and len(patterns[-1].orders) < MOST_ORDERS:
        last = patterns[-1]
        patterns[-1] = replace(last, orders=(*last.orders, tuple(match[1].split())))
    return True


def _system_start(facts: RawLog, thread: int, line: int, text: str) -> bool:
    match = _SYSTEM.match(text)
    if match is None:
        return text.startswith("=====")
    member = facts.members[facts.member_of(thread, line)]
    member.system_bw = (float(match[1]), float(match[2]))
    member.system = []
    facts.threads[thread].in_system = True
    return True


@remembered
def _node_of(text: str) -> tuple[int, str, float, str, str] | None:
    """Return indent, link, bandwidth [GB/s], name and note of a line of the topology print.

    The indent is -1 at the start of the print.
    """
    if match := _SYSTEM_LINK.match(text):
        return len(match[1]), match[2], float(match[3]), match[4], match[5] or ""
    if match := _SYSTEM_NODE.match(text):
        return -1, "", 0.0, match[1], match[2] or ""
    return None


def system_line(facts: RawLog, thread: int, line: int, text: str) -> bool:
    """Note a line of the topology print of `thread`, or its end."""
    member = facts.members[facts.member_of(thread, line)]
    result = _node_of(text)
    if result is None:
        facts.threads[thread].in_system = False
        return text.startswith("=====")
    indent, link, bw, name, note = result
    indents = facts.threads[thread].indents
    while indents and indents[-1] >= indent:
        indents.pop()
    if indent >= 0:
        indents.append(indent)
    node = SystemNode(len(indents), link, bw, name, note)
    if len(member.system) < 10_000:
        member.system.append(node)
    return True


_Paths = dict[str, tuple[int, float, str]]


@remembered
def _paths_of(text: str) -> tuple[str, _Paths] | None:
    """Return the source of a line's paths, and hops, bandwidth [GB/s] and kind by target."""
    match = _PATH_LINE.match(text)
    if match is None:
        return None
    paths = _PATH.findall(text, match.end())
    return match[1], {to: (int(n), float(bw), kind) for to, n, bw, kind in paths}


def _path_line(facts: RawLog, thread: int, line: int, text: str) -> bool:
    result = _paths_of(text)
    if result is None:
        return False
    member = facts.members[facts.member_of(thread, line)]
    if facts.path_lines < MOST_PATH_LINES:
        facts.path_lines += 1
        member.paths[result[0]] = result[1]
    return bool(result[1])


@remembered
def _cell(text: str) -> tuple[float, float] | None:
    """Return latency [us] and bandwidth [GB/s] of a cell of the table."""
    match = _COST.match(text)
    return None if match is None else (float(match[1]), float(match[2]))


def _cost(facts: RawLog, thread: int, line: int, text: str) -> bool:
    """Note a line of the tuner's table of latencies [us] and bandwidths [GB/s]."""
    name, *cells = (cell.strip() for cell in text.split("|"))
    speaker = facts.threads[thread]
    cells = [cell for cell in cells if cell]
    if not cells:
        return False
    if name == "Algorithm":
        speaker.table = [f"{algorithm}/{p}" for algorithm in cells for p in PROTOCOLS]
        return True
    if name in ("Protocol", "Max NThreads"):
        return True
    if name.startswith("Latency"):  # up to 2.20: one header, "Tree/ LL | Tree/ LL128 | ..."
        speaker.table = ["/".join(part.strip() for part in cell.split("/")) for cell in cells]
        return True
    if name not in _COLLECTIVES or len(cells) > len(speaker.table):
        return False
    member = facts.members[facts.member_of(thread, line)]
    for column, cell in zip(speaker.table, cells, strict=False):
        if cost := _cell(cell):
            algorithm, _, protocol = column.partition("/")
            member.costs[name, algorithm, protocol] = cost
    return True


def _thresholds(facts: RawLog, thread: int, line: int, text: str) -> bool:
    facts.members[facts.member_of(thread, line)].thresholds = text[16:].strip()
    return True


HANDLERS |= {
    "Channel": _channel,
    "Ring": _ring,
    "Tree": _tree,
    "Trees": _trees,
    "CollNet": _collnet,
    "Coll": _collnet,
    "Pattern": _pattern,
    "===": _system_start,
    "threadThresholds": _thresholds,
}

BARE = ("Channel", "Ring", "Tree", "Trees", "Pattern", "===")
"""Messages that are understood without a header."""


def _search_path(facts: RawLog, thread: int, line: int, text: str) -> bool:
    """Note a line about the path search of modified builds."""
    known = text.startswith(("--", "Paths from ", " ("))
    if known:
        facts.count(facts.notes, text.split("->")[0], line)
    return known


def _ruler(facts: RawLog, thread: int, line: int, text: str) -> bool:
    return text.startswith("=====")


SHAPES: tuple[tuple[str, Handler], ...] = (
    ("|", _cost),
    ("coll channels", _counts),
    (" set by ", environment),
    ("Bytes -> Algo", choice),
    (" :", _pattern_order),
    (" :", _path_line),
    ("", _search_path),
    ("=====", _ruler),
)
"""Handlers of messages without an identifying first word, by a contained text."""
