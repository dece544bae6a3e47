"""Log lines about rings, trees, connections, graph search, topology and cost tables; and the table of all lines."""

from __future__ import annotations

import re
from dataclasses import replace

from clusim.base.limits import MOST_CHANNELS, MOST_RANKS
from clusim.base.terms.operations import PROTOCOLS, Collective
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.infer_collective import parse_route
from clusim.formats.logs.lines import Remembered
from clusim.formats.logs.messages import (
    READERS,
    Fill,
    Reader,
    choice,
    counting_fill,
    environment,
    ignore_message,
    of_member,
)
from clusim.formats.logs.raw_log import (
    MOST_ORDERED,
    MOST_ORDERS,
    MOST_PATH_LINES,
    LoggedPattern,
    Member,
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
_ORDER = re.compile(
    r"Channel (\d{1,9})(?:/(\d{1,9}))? :((?: +\d{1,9})+)( *\.\.\.)?\s*$"
)
_LINK = re.compile(
    r"Ring (\d{1,9}) : (-?\d{1,9}) -> (\d{1,9}) -> (-?\d{1,9})(?: comm .*)?\s*$"
)
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
_PATTERN_ORDER = re.compile(
    r"\s*\d{1,9} :((?: +(?:NET|GPU|NVS|NIC|PCI)/[\w-]+)+)\s*$"
)
_SYSTEM = re.compile(
    r"=== System : max(?:Bw|Width|Speed) (\d{1,18}(?:\.\d{1,18})?) total(?:Bw|Width|Speed) (\d{1,18}(?:\.\d{1,18})?)"
)
_SYSTEM_LINK = re.compile(
    r"( *)\+ (\w+)\[(\d{1,18}(?:\.\d{1,18})?)\] - (\S+)(?: \((.*)\))?\s*$"
)
_SYSTEM_NODE = re.compile(r"((?:CPU|PCI|GPU|NVS|NIC|NET)/\S+)(?: \((.*)\))?\s*$")
_PATH = re.compile(
    r"(?<!\w)(\w+/[\w-]+) \((\d{1,9})/(\d{1,18}(?:\.\d{1,18})?)/(\w+)\)"
)
_PATH_LINE = re.compile(r"((?:GPU|NET|CPU|NVS|NIC)/[\w-]+) :(?=\w+/)")
_COST = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)/ *(\d{1,18}(?:\.\d{1,18})?)\s*$")
_COLLECTIVES = frozenset(Collective)


def _legal(channel: int, *ranks: int) -> bool:
    """Return True if a line's channel and ranks are possible."""
    return channel < MOST_CHANNELS and max(ranks, default=0) < MOST_RANKS


def _connection(text: str) -> Fill | None:
    match = CONNECTION.match(text)
    if match is None:
        return None
    channel, source, target = int(match[1]), int(match[3]), int(match[5])
    side = {"send": 1, "receive": 2, None: 0}[match[7]]
    ends = (channel, int(match[2] or 0), source, target)
    if not _legal(channel, source, target):
        return None
    return _connection_fill(ends, match[8], target if side == 2 else source, side)


def _collnet(text: str) -> Fill | None:
    match = _COLLNET.match(text)
    if match is None or not _legal(int(match[1]), int(match[3])):
        return None
    rank = int(match[3])
    ends = (int(match[1]), int(match[2] or 0), rank, NONE)
    return _connection_fill(ends, match[5], rank, 1 if match[4] == "send" else 2)


def _connection_fill(
    ends: tuple[int, ...], how: str, writer: int, side: int
) -> Fill | None:
    """Return the fill of a connection, None for an unknown transport.

    Parameters
    ----------
    ends : tuple of int
        Channel, index, source and target.
    how : str
        The transport.
    writer : int
        The rank that wrote the line.
    side : int
        1 for the sender's line, 2 for the receiver's, 0 if unknown.
    """
    how = how.rstrip()
    route = parse_route(how)
    if route is None:
        return None

    def fill(facts: RawLog, thread: int, line: int) -> None:
        member = facts.member_of(thread, line, writer)
        facts.connections.append(member, *ends, facts.route_of(how, route), side)

    return fill


def _order(text: str) -> Fill | None:
    """Read the ranks of a ring, in order."""
    match = _ORDER.match(text)
    if match is None:
        return None
    channel, ranks = int(match[1]), [int(rank) for rank in match[3].split()]

    def fill(facts: RawLog, thread: int, line: int) -> bool:
        facts.ordered += len(ranks)
        if not _legal(channel, *ranks) or facts.ordered > MOST_ORDERED:
            return False
        member = facts.members[facts.member_of(thread, line, 0)]
        member.orders[channel] = ranks
        if match[4]:  # the line is cut
            member.cut_orders |= {channel}
        elif len(set(ranks)) != len(ranks):
            return False
        if match[2] is not None:
            member.channel_total = int(match[2])
        return True

    return fill


def _channel(text: str) -> Fill | None:
    return _connection(text) or _order(text)


def _row(table: str, pattern: re.Pattern[str], text: str) -> Fill | None:
    """Return the fill of a row of numbers, channel first and the writer third."""
    match = pattern.match(text)
    numbers = (
        () if match is None else tuple(int(number) for number in match.groups())
    )
    return _rows(table, [numbers]) if numbers and _legal(*numbers) else None


def _rows(table: str, rows: list[tuple[int, ...]], *, complete: bool = True) -> Fill:
    flat = [number for row in rows for number in (NONE, *row)]

    def fill(facts: RawLog, thread: int, line: int) -> bool:
        if rows:
            member = facts.member_of(thread, line, rows[0][2])
            flat[:: 1 + len(rows[0])] = [member] * len(rows)
            getattr(facts, table).append(*flat)
        return complete

    return fill


def _ring(text: str) -> Fill | None:
    """Read channel of a ring, the previous rank, the rank, and the next rank."""
    return _row("links", _LINK, text) or _connection(text)


def _tree(text: str) -> Fill | None:
    """Read channel of a tree, the parent, the rank, and the children."""
    return _row("trees", _TREE_LINE, text)


def _trees(text: str) -> Fill | None:
    """Read the trees of a line, as `_tree` does."""
    if _TREES_NOW.fullmatch(text):  # format since 2.8; one long line per rank
        numbers = [int(number) for number in _INTEGER.findall(text)]
        if not _legal(max(numbers[::6]), *numbers):
            return None
        cut = (numbers[at : at + 6] for at in range(0, len(numbers), 6))
        return _rows(
            "trees", [(channel, up, rank, *down) for channel, *down, rank, up in cut]
        )
    rows: list[tuple[int, ...]] = []
    result = _TREES.findall(text)
    for channel, first_child, more_left, rank, right, more_right in result:
        # Up to 2.4 the parent precedes the children, later it follows them.
        if more_left:
            up, downs = int(right), [first_child, *more_left[1:].split("/")]
        elif more_right:
            up, downs = int(first_child), [right, *more_right[1:].split("/")]
        else:
            continue
        rows.append((int(channel), up, int(rank), *(int(down) for down in downs)))
        if not _legal(*rows[-1]):
            return _rows("trees", rows[:-1], complete=False)
    return _rows("trees", rows) if result else None


def _counts(text: str) -> Fill | None:
    """Read the number of channels of each sort."""
    match = _COUNTS.match(text)
    if match is None:
        return None
    names = ("coll", "collnet", "nvls", "p2p", "p2p per peer")
    result = zip(names, match.groups(), strict=True)
    counts = {name: int(value) for name, value in result if value is not None}
    return of_member(lambda member: setattr(member, "counts", counts))


def _pattern(text: str) -> Fill | None:
    match = _PATTERN.match(text)
    if match is None:
        return None
    pattern = LoggedPattern(
        int(match[1]), int(match[2]), int(match[3]), float(match[4]), float(match[5]),
        match[6], match[7], int(match[8]),
    )  # fmt: skip
    return of_member(lambda member: member.patterns.append(pattern))


def _pattern_order(text: str) -> Fill | None:
    match = _PATTERN_ORDER.match(text)
    if match is None:
        return None
    order = tuple(match[1].split())

    def fill(member: Member) -> None:
        last = member.patterns[-1] if member.patterns else None
        if last is not None and len(last.orders) < MOST_ORDERS:
            member.patterns[-1] = replace(last, orders=(*last.orders, order))

    return of_member(fill)


def _system_start(text: str) -> Fill | None:
    match = _SYSTEM.match(text)
    if match is None:
        return None
    bandwidths = (float(match[1]), float(match[2]))

    def fill(facts: RawLog, thread: int, line: int) -> None:
        member = facts.members[facts.member_of(thread, line)]
        member.system_bw, member.system = bandwidths, []
        facts.threads[thread].in_system = True

    return fill


@Remembered
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
    result = _node_of[text]
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


def _path_line(text: str) -> Fill | None:
    """Read the source of a line's paths, and hops, bandwidth [GB/s] and kind by target."""
    match = _PATH_LINE.match(text)
    if match is None:
        return None
    entries = _PATH.findall(text, match.end())
    paths = {to: (int(n), float(bw), kind) for to, n, bw, kind in entries}

    def fill(facts: RawLog, thread: int, line: int) -> bool:
        member = facts.members[facts.member_of(thread, line)]
        if facts.path_lines < MOST_PATH_LINES:
            facts.path_lines += 1
            member.paths[match[1]] = paths
        return bool(paths)

    return fill


def _cost(text: str) -> Fill | None:
    """Read a line of the tuner's table of latencies [us] and bandwidths [GB/s]."""
    name, *cells = (cell.strip() for cell in text.split("|"))
    cells = [cell for cell in cells if cell]
    if not cells or name in ("Protocol", "Max NThreads"):
        return ignore_message if cells else None
    titles: list[str] = []
    if name == "Algorithm":
        titles = [f"{algorithm}/{p}" for algorithm in cells for p in PROTOCOLS]
    elif name.startswith(
        "Latency"
    ):  # up to 2.20: one header, "Tree/ LL | Tree/ LL128 | ..."
        titles = [
            "/".join(part.strip() for part in cell.split("/")) for cell in cells
        ]
    if titles:
        return lambda facts, thread, line: setattr(
            facts.threads[thread], "table", titles
        )
    if name not in _COLLECTIVES:
        return None
    costs = [_COST.match(cell) for cell in cells]

    def fill(facts: RawLog, thread: int, line: int) -> bool:
        table = facts.threads[thread].table
        if len(cells) > len(table):
            return False
        member = facts.members[facts.member_of(thread, line)]
        for column, cost in zip(table, costs, strict=False):
            if cost:
                algorithm, _, protocol = column.partition("/")
                member.costs[name, algorithm, protocol] = (
                    float(cost[1]),
                    float(cost[2]),
                )
        return True

    return fill


def _thresholds(text: str) -> Fill | None:
    return of_member(lambda member: setattr(member, "thresholds", text[16:].strip()))


def _search_path(text: str) -> Fill | None:
    """Count a line about the path search of modified builds."""
    is_path_text = text.startswith(("--", "Paths from ", " ("))
    return counting_fill("notes", text.split("->")[0]) if is_path_text else None


def _ruler(text: str) -> Fill | None:
    return ignore_message if text.startswith("=====") else None


OF_GRAPHS: dict[str, Reader] = {
    "Channel": _channel, "Ring": _ring, "Tree": _tree, "Trees": _trees, "Pattern": _pattern,
    "===": _system_start,
}  # fmt: skip
"""Readers of messages that are also understood without a header, by the first word."""

_BY_WORD = READERS | OF_GRAPHS | {
    "CollNet": _collnet, "Coll": _collnet, "threadThresholds": _thresholds,
}  # fmt: skip

_BY_CONTENT: tuple[tuple[str, Reader], ...] = (
    ("|", _cost),
    ("coll channels", _counts),
    (" set by ", environment),
    ("Bytes -> Algo", choice),
    (" :", _pattern_order),
    (" :", _path_line),
    ("", _search_path),
    ("", _ruler),
)
"""Readers of messages without an identifying first word, by a contained text."""


@Remembered
def fills_of(text: bytes) -> tuple[Fill, bool]:
    """Return the fill of a message, and False if the message is unknown: its fill counts it."""
    decoded = text.decode("utf-8", "replace")
    word = decoded.partition(" ")[0]
    # RCCL since 2.26 appends _impl.
    by_word = _BY_WORD.get(word) or _BY_WORD.get(word.removesuffix("_impl"))
    readers = [by_word] if by_word is not None else []
    readers += [reader for part, reader in _BY_CONTENT if part in decoded]
    for reader in readers:
        if fill := reader(decoded):
            return fill, True
    return counting_fill("unknown", decoded), False
