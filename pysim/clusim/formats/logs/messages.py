"""Log lines of NCCL and RCCL about communicators, networks and settings.

Lines about channels are in `graphs`. A reader takes the text of a message and returns what to do with it (`Fill`),
None for another message. Equal texts are read once: fills keep the values, which must not be modified.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from clusim.base.limits import MOST_RANKS
from clusim.base.terms.operations import (
    ALGORITHMS,
    PROTOCOLS,
    find_algorithm,
    find_protocol,
)
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.raw_log import (
    MOST_CHOSEN,
    LoggedChoice,
    Member,
    RawLog,
    kind_of,
)

Fill = Callable[[RawLog, int, int], object]
"""Stores a message in the facts, given its thread and line number; returns False if a limit forbids it."""

Reader = Callable[[str], Fill | None]
"""Returns the fill of a message; None if it cannot read the message."""

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
    r"(?: channel\{Lo\.\.Hi\}=\{(\d{1,9})\.\.(\d{1,9})\})?(?: cgaClusterSize \d+)?(?: time (\d{1,18}(?:\.\d{1,18})?))?"
    r"(?: comm (0x[0-9a-f]{1,16}))?\s*$"
)
_ENV = re.compile(r"(\w+) set by (?:environment|user|config file[^ ]*) to (.*)")
_WHOLE_WITH_DOT = re.compile(r"-?\d{1,9}\.")
_NET_LIST = re.compile(
    r"\[(\d{1,9})\]([\w.-]+):(\d{1,9}/\w+|[\w.:\[\]%-]+?)(?:<\d{1,9}>)?(?=[\s;]|$)"
)
_NET_DEV = re.compile(
    r"\[(\d{1,9})\] ([\w.-]+):\S+:(\d{1,9})/(\w+) .*?speed=(\d{1,9})"
)
_VIRTUAL = re.compile(
    r"Made virtual device \[(\d{1,9})\] name=(\S+) speed=(\d{1,9})"
)
_NVLS_DEV = re.compile(
    r"NVLS multicast support is (not )?available on dev (\d{1,9})"
)
_NVLS_COMM = re.compile(
    r"NVLS comm (0x[0-9a-f]{1,16}) headRank (-?\d{1,9}) nHeads (\d{1,9})"
)
_NVLS_HEAD = re.compile(r"NVLS Head +(\d{1,9}): +(\d{1,9}(?: +\d{1,9})*)$")
_NVLS_TREE = re.compile(
    r"(-?\d{1,9})/(-?\d{1,9})/(-?\d{1,9})->(\d{1,9})->(-?\d{1,9})"
)
_MOST_PLATFORMS, _MOST_KERNELS = 8, 10_000
_KERNEL = re.compile(r"## \[[\d.]+\] \[\w+:\w+\] \w+ (K[LE])\b(?: HWID \w+ (\w+))?")


def of_member(fill: Callable[[Member], object], rank: int = NONE) -> Fill:
    """Return a fill of the handle of a line, which is about this rank."""
    return lambda facts, thread, line: fill(
        facts.members[facts.member_of(thread, line, rank)]
    )


def counting_fill(table: str, text: str) -> Fill:
    """Return a fill that counts a line in a table of kinds of lines."""
    kind = kind_of[text]
    return lambda facts, thread, line: facts.count(
        getattr(facts, table), text, line, kind
    )


def ignore_message(facts: RawLog, thread: int, line: int) -> None:
    """Skip a message without data."""


def _comm(text: str) -> Fill | None:
    """Read a line about a communicator: address, rank, creation or end, and numbers."""
    match = _COMM.match(text)
    if match is None:
        return None
    pairs = dict(
        _PAIR.findall(match[5].partition(" - ")[0].replace("- Init", " - Init"))
    )
    function, pointer, rank, n_ranks = (
        match[1] or "",
        int(match[2], 16),
        int(match[3]),
        int(match[4]),
    )
    event = _EVENT.search(match[5])
    verb, state = (event[1] or "", event[2]) if event else ("", "")
    if not rank < n_ranks <= MOST_RANKS or pointer == 0:
        return None
    parent = int(pairs["parent"], 16) if "parent" in pairs else None
    details = dict(_details(pairs))

    def fill(facts: RawLog, thread: int, line: int) -> None:
        number = facts.member_at(thread, pointer, line)
        member = facts.members[number]
        # The address of a destroyed communicator is soon reused.
        contradicts = member.rank not in (NONE, rank) or member.n_ranks not in (
            NONE,
            n_ranks,
        )
        again = (
            verb == "Init"
            and state == "START"
            and (member.started or member.complete)
        )
        if (
            contradicts or again or (member.ended and verb == "Init")
        ) and verb not in _ENDS:
            number = facts.new_member(thread, line, pointer)
            member = facts.members[number]
        member.rank, member.n_ranks = rank, n_ranks
        member.function = function.removesuffix("_impl") or member.function
        for name, value in details.items():
            setattr(member, name, value)
        if parent is not None:
            member.parent = facts.bindings.get((member.process, parent), NONE)
        if verb == "Init":
            member.started |= state == "START"
            member.complete |= state == "COMPLETE"
            member.ended = "aborted" if state == "ABORT" else member.ended
        elif verb in _ENDS and state in ("COMPLETE", "START"):
            member.ended = _ENDS[verb]
        if verb in ("", "Init"):
            facts.speaks_of(thread, number)

    return fill


_ENDS = {"Destroy": "destroyed", "Abort": "aborted"}


_FIELDS = {
    "cudaDev": ("device", 10), "nvmlDev": ("nvml", 10), "busId": ("bus", 16),
    "commId": ("comm_id", 16), "splitCount": ("split", 10), "color": ("color", 10),
    "key": ("key", 10), "nNodes": ("n_nodes", 10), "localRanks": ("local_ranks", 10),
    "localRank": ("local_rank", 10), "MNNVL": ("mnnvl", 10),
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


def note_version(text: str) -> Fill | None:
    """Read the version of the library, which lines without header also contain."""
    match = _VERSION.search(text) if "CCL" in text else None
    if match is None:
        return None
    library, version = f"{match[1]}CCL", f"{match[2]}{match[3] or ''}"

    def fill(facts: RawLog, thread: int, line: int) -> None:
        facts.library = library if library == "RCCL" else facts.library or library
        facts.versions[version] += 1

    return fill


def _version(text: str) -> Fill | None:
    return note_version(text) or (
        ignore_message if text.startswith("NCCL git version") else None
    )


def _timings(text: str) -> Fill | None:
    """Read rank, number of ranks, and the times of initialisation [s]."""
    match = _TIMINGS.match(text)
    if match is None or not int(match[2]) < int(match[3]) <= MOST_RANKS:
        return None
    n_ranks = int(match[3])
    timings = {"total": float(match[4])} | {
        k: float(v) for k, v in _TIMING.findall(match[5])
    }

    def fill(member: Member) -> None:
        member.n_ranks = n_ranks if member.n_ranks == NONE else member.n_ranks
        member.timings = timings

    return of_member(fill, int(match[2]))


def choice(text: str) -> Fill | None:
    """Read name, bytes, algorithm, protocol, first and last channel, time [us] of a choice."""
    match = _NAMED.match(text)
    if match is None:
        return None
    algorithm, protocol = match[3], match[4]
    if algorithm.isdecimal() and protocol.isdecimal():
        if int(algorithm) >= len(ALGORITHMS) or int(protocol) >= len(PROTOCOLS):
            return None
        algorithm, protocol = (
            ALGORITHMS[int(algorithm)].value,
            PROTOCOLS[int(protocol)].value,
        )
    low, high = (
        (int(match[5]), int(match[6])) if match[5] is not None else (NONE, NONE)
    )
    parsed_algorithm, parsed_protocol = (
        find_algorithm(algorithm),
        find_protocol(protocol),
    )
    result = LoggedChoice(
        match[1] or "", int(match[2]), parsed_algorithm.value if parsed_algorithm else algorithm,
        parsed_protocol.value if parsed_protocol else protocol, low, high, float(match[7] or NONE),
    )  # fmt: skip

    def fill(facts: RawLog, thread: int, line: int) -> None:
        if len(facts.tunings) < MOST_CHOSEN:
            facts.tunings.append(facts.choice_of(result), thread, line)
        else:
            facts.later_calls += 1

    return fill


def environment(text: str) -> Fill | None:
    """Read a setting, with any prefix of its name."""
    match = _ENV.match(text)
    if match is None:
        return None
    name, value = match[1], match[2].strip()
    value = value[:-1] if _WHOLE_WITH_DOT.fullmatch(value) else value

    def fill(facts: RawLog, thread: int, line: int) -> bool:
        return facts.set_variable(name, value, facts.threads[thread].process)

    return fill


_VALUE = r"""('[^']{0,300}'|"[^"]{0,300}"|\S{1,300})"""
_ASSIGNED = re.compile(rf"(?<!\w)((?:NCCL|RCCL)_\w{{1,60}})={_VALUE}")
_LISTED = re.compile(rf"\s-g?env\s+((?:NCCL|RCCL)_\w{{1,60}})\s+{_VALUE}")
_LAUNCHERS = re.compile(
    r"(?:^|[\s/])(?:mpirun|mpiexec(?:\.hydra)?|srun|prterun|torchrun)\s|\w_perf\s"
)


def command_line(text: str) -> dict[str, str]:
    """Return the variables of NCCL that a pasted command line sets; empty for other text."""
    if "CCL_" not in text or _LAUNCHERS.search(text) is None:
        return {}
    assignments = [*_ASSIGNED.findall(text), *_LISTED.findall(text)]
    return {
        name: value.strip("'\"").replace("\\,", ",") for name, value in assignments
    }


def _ofi(text: str) -> Fill | None:
    """Read the platform that the plugin for libfabric detects."""
    match = re.match(r"NET/OFI Running on ([a-z0-9][\w.-]{2,40}) platform", text)
    if match is None:
        return None
    name = match[1]

    def fill(facts: RawLog, thread: int, line: int) -> None:
        if len(facts.platforms) < _MOST_PLATFORMS:
            facts.platforms.add(name)

    return fill


def _network(text: str) -> Fill | None:
    for start in ("Using network ", "Initialized NET plugin "):
        if text.startswith(start):
            name = text.removeprefix(start).strip()
            return lambda facts, thread, line: setattr(
                facts.process_at(thread), "network", name
            )
    listed = text.startswith(("NET/IB : Using", "NET/Socket : Using"))
    nics = (
        [(name, speed) for _, name, speed in _NET_LIST.findall(text)]
        if listed
        else []
    )
    device = None if listed else _NET_DEV.search(text)
    if not listed and device is None:
        return ignore_message if _VIRTUAL.search(text) else None

    def fill(facts: RawLog, thread: int, line: int) -> None:
        host = facts.nics.setdefault(facts.process_at(thread).host, {})
        for name, speed in nics:
            host.setdefault(name, speed)
        if device is not None:
            host[device[2]] = (
                f"{device[3]}/{device[4]} {int(device[5]) / 1000:g} Gb/s"
            )

    return fill


def _note_fill(text: str) -> Fill | None:
    return counting_fill("notes", text)


def _nvls(text: str) -> Fill | None:
    if match := _NVLS_DEV.match(text):
        available = match[1] is None
        return of_member(lambda member: setattr(member, "nvls", available))
    if match := _NVLS_COMM.match(text):
        pointer, n_heads = int(match[1], 16), int(match[3])
        return lambda facts, thread, line: setattr(
            facts.members[facts.member_at(thread, pointer, line)], "n_heads", n_heads
        )
    if match := _NVLS_HEAD.match(text.rstrip()):
        number, heads = int(match[1]), [int(rank) for rank in match[2].split()]
        if max(*heads, number) >= MOST_RANKS:
            return None
        return of_member(lambda member: member.nvls_heads.update({number: heads}))
    trees = _NVLS_TREE.findall(text) if text.startswith("NVLS Trees") else []
    rows = [
        (c, up, rank, *down)
        for c, (*down, rank, up) in enumerate(tuple(map(int, t)) for t in trees)
    ]
    if max((max(row[1:]) for row in rows), default=MOST_RANKS) >= MOST_RANKS:
        return None

    def fill(facts: RawLog, thread: int, line: int) -> None:
        for row in rows:
            facts.nvls_trees.append(facts.member_of(thread, line, row[2]), *row)

    return fill


def _transport_fill(text: str) -> Fill | None:
    graph = text[10:].partition(",")[0].strip()
    if graph not in (
        "all rings",
        "all trees",
        "NVLS tree",
        "NVLS",
        "all collnets",
        "collnet",
    ):
        return ignore_message if text.startswith("Connected ") else None
    return of_member(
        lambda member: setattr(member, "connected", member.connected | {graph})
    )


def _kernel(text: str) -> Fill | None:
    match = _KERNEL.match(text)
    if match is None:
        return None
    name = match[2] if match[1] == "KL" else None

    def fill(facts: RawLog, thread: int, line: int) -> None:
        if name and len(facts.kernels) < _MOST_KERNELS:
            facts.kernels[name] += 1

    return fill


READERS: dict[str, Reader] = {
    "comm": _comm, "ncclCommInitRank": _comm, "ncclCommInitRankConfig": _comm,
    "ncclCommInitRankScalable": _comm, "ncclCommInitAll": _comm, "ncclCommSplit": _comm,
    "ncclCommInitRankFunc": _comm, "ncclCommShrink": _comm, "ncclCommGrow": _comm,
    "[Rank": _comm,
    "NCCL": _version, "RCCL": _version,
    "Init": _timings,
    "NVLS": _nvls,
    "Connected": _transport_fill,
    "Using": _network, "NET/IB": _network, "NET/Socket": _network, "NET/IB:": _network,
    "Initialized": _network, "NET/OFI": _ofi,
    "##": _kernel,
    "Bootstrap": _note_fill, "Setting": _note_fill, "P2P": _note_fill, "Launch": _note_fill, "DMA-BUF": _note_fill,
    "ncclTopoGetCpuAffinity:": _note_fill,
}  # fmt: skip
"""Readers by the first word of a message."""
