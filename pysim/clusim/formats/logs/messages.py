"""Log lines of NCCL and RCCL about communicators, networks and settings.

Lines about channels are in `graphs`.

Arguments of a handler are the facts, the writing thread, the line number and the message. It returns
True if it has understood the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from clusim.base.limits import MOST_RANKS
from clusim.base.terms.operations import ALGORITHMS, PROTOCOLS, find_algorithm, find_protocol
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.lines import remembered
from clusim.formats.logs.raw_log import MOST_CHOSEN, LoggedChoice, RawLog

Handler = Callable[[RawLog, int, int, str], bool]

_COMM = re.compile(
    r"(?:\[Rank \d{1,9}\] )?(?:(\w+) )?comm (0x[0-9a-fA-F]{1,16}) rank (\d{1,9}) n[rR]anks (\d{1,9})\b(.*)",
    re.DOTALL,
)
_PAIR = re.compile(r"(?<!\w)(\w+) (0x[0-9a-fA-F]{1,16}|-?[0-9a-fA-F]{1,16})\b")
_EVENT = re.compile(r"- (?:(Init|Destroy|Abort|Finalize|Revoke) )?(\w+)")
_VERSION = re.compile(
    r"(?:^|\s)([NR])CCL version\s*:?\s*(\d{1,9}\.\d{1,18}(?:\.\d{1,18})?)(?:[-.][\w.]*)?(\+\w+\.?\d*)?"
)
_TIMINGS = re.compile(
    r"Init timings(?: - (\w+))?: rank (\d{1,9}) n[rR]anks (\d{1,9}) total (\d{1,18}(?:\.\d{1,18})?) \((.*)\)"
)
_TIMING = re.compile(r"(?<!\w)(\w+) (\d{1,18}(?:\.\d{1,18})?)")
_NAMED = re.compile(
    r"(?:(\w+): )?(\d{1,18}) Bytes -> Algo (\w{1,32}) proto (\w{1,32})"
    r"(?: channel\{Lo\.\.Hi\}=\{(\d{1,9})\.\.(\d{1,9})\})?(?: time (\d{1,18}(?:\.\d{1,18})?))?"
    r"(?: comm (0x[0-9a-f]{1,16}))?\s*$"
)
_ENV = re.compile(r"(\w+) set by (?:environment|user|config file[^ ]*) to (.*)")
_WHOLE_WITH_DOT = re.compile(r"-?\d{1,9}\.")
_NET_LIST = re.compile(
    r"\[(\d{1,9})\]([\w.-]+):(\d{1,9}/\w+|[\w.:\[\]%-]+?)(?:<\d{1,9}>)?(?=[\s;]|$)"
)
_NET_DEV = re.compile(r"\[(\d{1,9})\] ([\w.-]+):\S+:(\d{1,9})/(\w+) .*?speed=(\d{1,9})")
_VIRTUAL = re.compile(r"Made virtual device \[(\d{1,9})\] name=(\S+) speed=(\d{1,9})")
_NVLS_DEV = re.compile(r"NVLS multicast support is (not )?available on dev (\d{1,9})")
_NVLS_COMM = re.compile(r"NVLS comm (0x[0-9a-f]{1,16}) headRank (-?\d{1,9}) nHeads (\d{1,9})")
_NVLS_HEAD = re.compile(r"NVLS Head +(\d{1,9}): +(\d{1,9}(?: +\d{1,9})*)$")
_NVLS_TREE = re.compile(r"(-?\d{1,9})/(-?\d{1,9})/(-?\d{1,9})->(\d{1,9})->(-?\d{1,9})")
_MOST_SETTINGS = 4096
_KERNEL = re.compile(r"## \[[\d.]+\] \[\w+:\w+\] \w+ (K[LE])\b(?: HWID \w+ (\w+))?")


class NamedHandle(NamedTuple):
    """Content of a line about a communicator: handle, creation or end, and numbers.

    The numbers are by attribute of `Member`.
    """

    function: str
    pointer: int
    rank: int
    n_ranks: int
    verb: str
    state: str
    parent: int | None
    details: tuple[tuple[str, int], ...]


@remembered
def _named(text: str) -> NamedHandle | None:
    match = _COMM.match(text)
    if match is None:
        return None
    pairs = dict(_PAIR.findall(match[5].partition(" - ")[0].replace("- Init", " - Init")))
    pointer, rank, n_ranks = int(match[2], 16), int(match[3]), int(match[4])
    event = _EVENT.search(match[5])
    verb, state = (event[1] or "", event[2]) if event else ("", "")
    if not rank < n_ranks <= MOST_RANKS or pointer == 0:
        return None
    parent = int(pairs["parent"], 16) if "parent" in pairs else None
    return NamedHandle(
        (match[1] or "").removesuffix("_impl"),
        pointer,
        rank,
        n_ranks,
        verb,
        state,
        parent,
        tuple(_details(pairs)),
    )


def _comm(facts: RawLog, thread: int, line: int, text: str) -> bool:
    named = _named(text)
    if named is None:
        return False
    function, pointer, rank, n_ranks, verb, state, parent, details = named
    number = facts.member_at(thread, pointer, line)
    member = facts.members[number]
    # The address of a destroyed communicator is soon reused.
    known = member.rank not in (NONE, rank) or member.n_ranks not in (NONE, n_ranks)
    again = verb == "Init" and state == "START" and (member.started or member.complete)
    if (known or again or (member.ended and verb == "Init")) and verb not in ("Destroy", "Abort"):
        number = facts.new_member(thread, line, pointer)
        member = facts.members[number]
    member.rank, member.n_ranks = rank, n_ranks
    member.function = function or member.function
    for name, value in details:
        setattr(member, name, value)
    if parent is not None:
        member.parent = facts.bindings.get((member.process, parent), NONE)
    if verb == "Init":
        member.started |= state == "START"
        member.complete |= state == "COMPLETE"
        member.ended = "aborted" if state == "ABORT" else member.ended
    elif verb in ("Destroy", "Abort") and state in ("COMPLETE", "START"):
        member.ended = "destroyed" if verb == "Destroy" else "aborted"
    if verb in ("", "Init"):
        facts.speaks_of(thread, number)
    return True


_FIELDS = {
    "cudaDev": ("device", 10), "nvmlDev": ("nvml", 10), "busId": ("bus", 16),
    "commId": ("comm_id", 16), "splitCount": ("split", 10), "color": ("color", 10),
    "key": ("key", 10), "nNodes": ("n_nodes", 10), "localRanks": ("local_ranks", 10),
    "localRank": ("local_rank", 10),
}  # fmt: skip


def _details(pairs: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Yield the numbers by attribute; numbers in another base are skipped."""
    for name, text in pairs.items():
        if name in _FIELDS:
            attribute, base = _FIELDS[name]
            try:
                yield attribute, int(text, base)
            except ValueError:
                continue


@remembered
def _version_of(text: str) -> tuple[str, str] | None:
    """Return the library and its version if `text` names them."""
    match = _VERSION.search(text)
    if match is None:
        return None
    return ("RCCL" if match[1] == "R" else "NCCL"), f"{match[2]}{match[3] or ''}"


def note_version(facts: RawLog, text: str) -> bool:
    """Note the version of the library if `text` names it."""
    result = _version_of(text) if "CCL" in text else None
    if result is None:
        return False
    library, version = result
    facts.library = library if library == "RCCL" else facts.library or library
    facts.versions[version] += 1
    return True


def _version(facts: RawLog, thread: int, line: int, text: str) -> bool:
    return note_version(facts, text) or text.startswith("NCCL git version")


@remembered
def _timings_of(text: str) -> tuple[int, int, dict[str, float]] | None:
    """Return rank, number of ranks, and the times of initialisation [s]."""
    match = _TIMINGS.match(text)
    if match is None:
        return None
    rank, n_ranks = int(match[2]), int(match[3])
    if not rank < n_ranks <= MOST_RANKS:
        return None
    parts = {name: float(value) for name, value in _TIMING.findall(match[5])}
    return rank, n_ranks, {"total": float(match[4])} | parts


def _timings(facts: RawLog, thread: int, line: int, text: str) -> bool:
    result = _timings_of(text)
    if result is None:
        return False
    rank, n_ranks, timings = result
    member = facts.members[facts.member_of(thread, line, rank)]
    member.n_ranks = n_ranks if member.n_ranks == NONE else member.n_ranks
    member.timings = timings
    return True


@remembered
def _choice_of(text: str) -> LoggedChoice | None:
    """Return name, bytes, algorithm, protocol, first and last channel, time [us] of a choice."""
    match = _NAMED.match(text)
    if match is None:
        return None
    algorithm, protocol = match[3], match[4]
    if algorithm.isdecimal() and protocol.isdecimal():
        if int(algorithm) >= len(ALGORITHMS) or int(protocol) >= len(PROTOCOLS):
            return None
        algorithm, protocol = ALGORITHMS[int(algorithm)].value, PROTOCOLS[int(protocol)].value
    low, high = (int(match[5]), int(match[6])) if match[5] is not None else (NONE, NONE)
    known, way = find_algorithm(algorithm), find_protocol(protocol)
    return LoggedChoice(
        match[1] or "", int(match[2]), known.value if known else algorithm,
        way.value if way else protocol, low, high, float(match[7] or NONE),
    )  # fmt: skip


def choice(facts: RawLog, thread: int, line: int, text: str) -> bool:
    """Note a choice of the tuner."""
    result = _choice_of(text)
    if result is None:
        return False
    if len(facts.tunings) < MOST_CHOSEN:
        facts.tunings.append(facts.choice_of(result), thread, line)
    else:
        facts.later_calls += 1
    return True


@remembered
def _setting_of(text: str) -> tuple[str, str] | None:
    """Return name and value of a setting."""
    match = _ENV.match(text)
    if match is None:
        return None
    value = match[2].strip()
    return match[1], value[:-1] if _WHOLE_WITH_DOT.fullmatch(value) else value


def environment(facts: RawLog, thread: int, line: int, text: str) -> bool:
    """Note a setting, with any prefix of its name."""
    setting = _setting_of(text)
    if setting is None:
        return False
    name, value = setting
    if name not in facts.environment and len(facts.environment) >= _MOST_SETTINGS:
        return False
    values = facts.environment.setdefault(name, {})
    if value not in values and len(values) >= 64:
        value = "(others)"
    values.setdefault(value, set()).add(facts.threads[thread].process)
    return True


def _network(facts: RawLog, thread: int, line: int, text: str) -> bool:
    process = facts.processes[facts.threads[thread].process]
    if text.startswith("Using network "):
        process.network = text[14:].strip()
        return True
    if text.startswith("Initialized NET plugin "):
        process.network = text[23:].strip()
        return True
    host = facts.nics.setdefault(process.host, {})
    if text.startswith(("NET/IB : Using", "NET/Socket : Using")):
        for _index, name, speed in _NET_LIST.findall(text):
            host.setdefault(name, speed)
        return True
    if match := _NET_DEV.search(text):
        host[match[2]] = f"{match[3]}/{match[4]} {int(match[5]) / 1000:g} Gb/s"
        return True
    return _VIRTUAL.search(text) is not None


def _noted(facts: RawLog, thread: int, line: int, text: str) -> bool:
    facts.count(facts.notes, text, line)
    return True


@remembered
def _nvls_trees(text: str) -> list[tuple[int, ...]]:
    """Return the trees of a line, by channel; empty if one contains an impossible rank."""
    trees = [tuple(map(int, result)) for result in _NVLS_TREE.findall(text)]
    return trees if max(map(max, trees), default=0) < MOST_RANKS else []


def _nvls(facts: RawLog, thread: int, line: int, text: str) -> bool:
    if match := _NVLS_DEV.match(text):
        member = facts.members[facts.member_of(thread, line)]
        member.nvls = match[1] is None
        return True
    if match := _NVLS_COMM.match(text):
        member = facts.members[facts.member_at(thread, int(match[1], 16), line)]
        member.n_heads = int(match[3])
        return True
    if match := _NVLS_HEAD.match(text.rstrip()):
        heads = [int(rank) for rank in match[2].split()]
        if max(heads) >= MOST_RANKS or int(match[1]) >= MOST_RANKS:
            return False
        facts.members[facts.member_of(thread, line)].nvls_heads[int(match[1])] = heads
        return True
    if text.startswith("NVLS Trees"):
        trees = _nvls_trees(text)
        for channel, (d0, d1, d2, rank, up) in enumerate(trees):
            member_number = facts.member_of(thread, line, rank)
            facts.nvls_trees.append(member_number, channel, up, rank, d0, d1, d2)
        return bool(trees)
    return False


def _connected(facts: RawLog, thread: int, line: int, text: str) -> bool:
    graph = text[10:].partition(",")[0].strip()
    if graph not in ("all rings", "all trees", "NVLS tree", "NVLS", "all collnets", "collnet"):
        return text.startswith("Connected ")
    facts.members[facts.member_of(thread, line)].connected |= {graph}
    return True


def _kernel(facts: RawLog, thread: int, line: int, text: str) -> bool:
    match = _KERNEL.match(text)
    if match is None:
        return False
    if match[1] == "KL" and match[2] and len(facts.kernels) < 10_000:
        facts.kernels[match[2]] += 1
    return True


HANDLERS: dict[str, Handler] = {
    "comm": _comm, "ncclCommInitRank": _comm, "ncclCommInitRankConfig": _comm,
    "ncclCommInitRankScalable": _comm, "ncclCommInitAll": _comm, "ncclCommSplit": _comm,
    "ncclCommInitRankFunc": _comm, "ncclCommShrink": _comm, "ncclCommGrow": _comm,
    "[Rank": _comm,
    "NCCL": _version, "RCCL": _version,
    "Init": _timings,
    "NVLS": _nvls,
    "Connected": _connected,
    "Using": _network, "NET/IB": _network, "NET/Socket": _network, "NET/IB:": _network,
    "Initialized": _network,
    "##": _kernel,
}  # fmt: skip
"""Handlers by the first word of a message."""


for _word in ("Bootstrap", "Setting", "P2P", "Launch", "DMA-BUF", "ncclTopoGetCpuAffinity:"):
    HANDLERS[_word] = _noted
