"""Content of a log before any inference: processes, communicator handles of ranks, counts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from clusim.base.json_schema import JsonObject
from clusim.formats.logs.columns import NONE, Columns, Repeating
from clusim.formats.logs.infer_collective import LoggedRoute
from clusim.formats.logs.lines import Remembered

T = TypeVar("T")

MAX_KINDS = 500
"""Maximum number of distinct kinds of lines; further kinds are counted together."""

MOST_HANDLES = 1 << 17
"""Maximum number of communicator handles; lines about later handles are only counted."""

MOST_THREADS = 1 << 17
"""Maximum number of distinct threads."""

MOST_LOGGED_CALLS = 1 << 26
"""Maximum number of stored calls; later lines are counted."""

MOST_CHOSEN = 1 << 24
"""Maximum number of stored tuner lines; later lines are counted."""

MOST_COMMUNICATORS = 1 << 15
"""Maximum number of communicators; handles of later communicators are only counted."""

_TREE_COLUMNS = ("member", "channel", "up", "rank", "down0", "down1", "down2")

MOST_CHOICES = 1 << 16
"""Maximum number of distinct tuner choices; later choices become one unknown choice."""

MOST_PATH_LINES = 1 << 17
"""Maximum number of stored lines of paths between devices."""

MOST_ORDERED = 1 << 23
"""Maximum number of stored ranks in printed rings."""

MOST_ORDERS = 1 << 10
"""Maximum orders of one result of the graph search, which has one per channel."""

_RECENT_HANDLES = 256
"""Number of recent handles of a process that are searched by rank."""


@dataclass(slots=True)
class Process:
    """A process that wrote lines; `label` is its rank in the launcher's tags."""

    host: str
    pid: int
    label: int = NONE
    network: str = ""
    lines: int = 0
    members: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Thread:
    """A thread of a process, with its device and the handle of its last line (`member`)."""

    process: int
    tid: int
    device: int
    member: int = NONE
    table: list[str] = field(default_factory=list)
    in_system: bool = False
    indents: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoggedPattern(JsonObject):
    """A result of NCCL's graph search, as it printed it.

    Attributes
    ----------
    bw_intra, bw_inter : float
        Of a channel, inside a node and between nodes [10^9 bytes/s].
    orders : list
        The ranks of each channel.
    """

    KEYS = (
        "pattern",
        "channels",
        "bw_intra",
        "bw_inter",
        "type_intra",
        "type_inter",
        "cross_nic",
        "same_channels",
        "orders",
    )

    pattern: int
    cross_nic: int
    channels: int
    bw_intra: float
    bw_inter: float
    type_intra: str
    type_inter: str
    same_channels: int
    orders: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class SystemNode:
    """A line of the topology print: depth, link, bandwidth [GB/s], and name."""

    depth: int
    link: str
    bw: float
    name: str
    note: str


@dataclass(slots=True)
class Member:
    """One rank's handle of one communicator, as described by its lines."""

    process: int
    thread: int
    run: int
    line: int
    pointer: int = 0
    rank: int = NONE
    n_ranks: int = NONE
    device: int = NONE
    nvml: int = NONE
    bus: int = NONE
    comm_id: int = 0
    function: str = ""
    parent: int = NONE
    split: int = NONE
    color: int = NONE
    key: int = NONE
    n_nodes: int = NONE
    local_rank: int = NONE
    local_ranks: int = NONE
    mnnvl: int = NONE
    started: bool = False
    complete: bool = False
    ended: str = ""
    channel_total: int = NONE
    counts: dict[str, int] = field(default_factory=dict)
    orders: dict[int, list[int]] = field(default_factory=dict)
    cut_orders: frozenset[int] = frozenset()
    nvls: bool | None = None
    nvls_heads: dict[int, list[int]] = field(default_factory=dict)
    n_heads: int = NONE
    patterns: list[LoggedPattern] = field(default_factory=list)
    system: list[SystemNode] = field(default_factory=list)
    system_bw: tuple[float, float] | None = None
    paths: dict[str, dict[str, tuple[int, float, str]]] = field(default_factory=dict)
    costs: dict[tuple[str, str, str], tuple[float, float]] = field(
        default_factory=dict
    )
    thresholds: str = ""
    timings: dict[str, float] = field(default_factory=dict)
    network: str = ""
    connected: frozenset[str] = frozenset()


@dataclass(slots=True)
class Miscount:
    """Calls with another number of ranks than their handle: count, and values of the first."""

    calls: int
    n_ranks: int
    line: int


@dataclass(slots=True)
class LineKind:
    """Lines of one kind that were counted but not used."""

    count: int
    example: str
    where: str


_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|(?<!\w)[0-9][0-9a-fA-F.:]*")


@Remembered
def kind_of(text: str) -> str:
    """Return the common pattern of lines like `text`: its words, with # for numbers."""
    return _NUMBERS.sub("#", text[:160]).strip()[:100]


class LoggedChoice(NamedTuple):
    """A choice of the tuner: size [B], first and last channel, estimated time [us]."""

    name: str = ""
    size: int = 0
    algorithm: str = ""
    protocol: str = ""
    first: int = NONE
    last: int = NONE
    time_us: float = float(NONE)


UNKNOWN_CHOICE = LoggedChoice()


def _number(numbers: dict[T, int], values: list[T], value: T) -> int:
    """Return the index of a value, which is appended to `values` if it is new."""
    index = numbers.setdefault(value, len(values))
    if index == len(values):
        values.append(value)
    return index


MOST_SETTINGS, MOST_VALUES = 4096, 64
"""Variables of a job, and different values of one."""


class RawLog:
    """Content of all logs; lines are numbered consecutively over all files, see `place`."""

    def __init__(self) -> None:
        """Start empty."""
        self.files: list[str] = []
        self.file_lines: list[int] = []
        self.lines = 0
        self.bytes = 0
        self.nccl_lines = 0
        self.app_lines = 0
        self.problems: list[tuple[str, str]] = []
        self.versions: Counter[str] = Counter()
        self.library = ""
        self.processes: list[Process] = []
        self.threads: list[Thread] = []
        self.members: list[Member] = []
        self.routes: list[LoggedRoute] = []
        self.environment: dict[str, dict[str, set[int]]] = {}
        self.platforms: set[str] = set()
        self.nics: dict[str, dict[str, str]] = {}
        self.notes: dict[str, LineKind] = {}
        self.warnings: dict[str, LineKind] = {}
        self.unknown: dict[str, LineKind] = {}
        self.timeouts: dict[str, LineKind] = {}
        self.kernels: Counter[str] = Counter()
        self.run = 0
        self.run_open = False
        self.rejoined = 0
        self.cut_calls = 0
        self.spliced = 0
        self.long_lines = 0
        self.unread = self.torn_work = 0
        self.lost_handle = self.lost_thread = NONE
        self.ordered = self.path_lines = 0
        self.left_out = self.lost_handles = self.later_calls = 0
        self.torn_handles: set[int] = set()
        self.miscounts: dict[int, Miscount] = {}
        self.connections = Columns(
            "member", "channel", "index", "source", "target", "route", "side"
        )
        self.links = Columns("member", "channel", "before", "rank", "after")
        self.trees = Columns(*_TREE_COLUMNS)
        self.nvls_trees = Columns(*_TREE_COLUMNS)
        self.calls = Repeating(
            "name", "count", "type", "op", "root", "member", "thread", "stream", "in_place",
            "op_count", "line", "time_ns", running=("op_count", "line", "time_ns"),
        )  # fmt: skip
        self.tunings = Columns("choice", "thread", "line")
        self.names: list[str] = []
        self.choices: list[LoggedChoice] = []
        self.streams: dict[tuple[int, int], int] = {}
        self.bindings: dict[tuple[int, int], int] = {}
        self.call_kinds: dict[tuple[int, bytes, bool, bytes], int] = {}
        self._process: dict[tuple[str, int], int] = {}
        self._thread: dict[tuple[int, int, int], int] = {}
        self._device: dict[tuple[int, int], int] = {}
        self._of_run: dict[tuple[int, int], list[int]] = {}
        self._route: dict[str, int] = {}
        self._name: dict[str, int] = {}
        self._choice: dict[LoggedChoice, int] = {}
        self.clean_hosts: set[str] = set()
        self.bare_threads: list[int] = []

    def place(self, line: int) -> str:
        """Return file and line of a line number."""
        at = bisect_left(self.file_lines, line) - 1
        return (
            f"{self.files[at]}:{line - self.file_lines[at]}"
            if at >= 0
            else f"line {line}"
        )

    def process_of(self, host: str, pid: int) -> int:
        """Return the number of a process; create it if it is new."""
        result = self._process.get((host, pid))
        if result is None:
            result = self._process[host, pid] = len(self.processes)
            self.processes.append(Process(host, pid))
        return result

    def process_at(self, thread: int) -> Process:
        """Return the process of a thread."""
        return self.processes[self.threads[thread].process]

    def thread_of(self, host: str, pid: int, tid: int, device: int) -> int:
        """Return the number of a thread for a device; create it if it is new."""
        if len(self.threads) >= MOST_THREADS and not self.knows(
            host, pid, tid, device
        ):
            return self._lost()
        process = self.process_of(host, pid)
        result = self._thread.get((process, tid, device))
        if result is None:
            result = self._thread[process, tid, device] = len(self.threads)
            self.threads.append(Thread(process, tid, device))
        return result

    def _lost(self) -> int:
        """Return the placeholder of all threads above the limit."""
        if self.lost_thread == NONE:
            self.lost_thread = len(self.threads)
            self.threads.append(Thread(self.process_of("", NONE), NONE, NONE))
        return self.lost_thread

    def knows(self, host: str, pid: int, tid: int, device: int) -> bool:
        """Return True if this thread wrote a line before."""
        process = self._process.get((host, pid))
        return process is not None and (process, tid, device) in self._thread

    def route_of(self, text: str, route: LoggedRoute) -> int:
        """Return the number of a transport in the notation of a line."""
        index = self._route.setdefault(text, len(self.routes))
        if index == len(self.routes):
            self.routes.append(route)
        return index

    def name_of(self, name: str) -> int:
        """Return the number of a kind of call."""
        return _number(self._name, self.names, name)

    def choice_of(self, choice: LoggedChoice) -> int:
        """Return the number of a tuner's choice, `UNKNOWN_CHOICE` above the limit."""
        number = self._choice.get(choice)
        if number is None:
            full = len(self.choices) >= MOST_CHOICES
            number = _number(
                self._choice, self.choices, UNKNOWN_CHOICE if full else choice
            )
        return number

    def choice(self, number: int) -> LoggedChoice:
        """Return a choice by its number, `UNKNOWN_CHOICE` for `NONE`."""
        return self.choices[number] if number >= 0 else UNKNOWN_CHOICE

    def stream_of(self, process: int, pointer: int) -> int:
        """Return the number of a stream."""
        return self.streams.setdefault((process, pointer), len(self.streams))

    def new_member(self, thread: int, line: int, pointer: int = 0) -> int:
        """Return a new handle for the lines of `thread` from `line` on; shared above the limit."""
        if len(self.members) > MOST_HANDLES:
            self.speaks_of(thread, self.lost_handle)
            return self.lost_handle
        if len(self.members) == MOST_HANDLES:
            self.lost_handle, pointer = MOST_HANDLES, 0
        speaker = self.threads[thread]
        number, run = len(self.members), self.run
        self.members.append(
            Member(
                speaker.process, thread, run, line, pointer, device=speaker.device
            )
        )
        self.processes[speaker.process].members.append(number)
        self._of_run.setdefault((speaker.process, run), []).append(number)
        if pointer:
            self._bind(speaker.process, pointer, number)
            if not self._same_run(speaker.member):
                speaker.member = number
            if not self._same_run(
                self._device.get((speaker.process, speaker.device), NONE)
            ):
                self._device[speaker.process, speaker.device] = number
        else:
            self.speaks_of(thread, number)
        return number

    def _bind(self, process: int, pointer: int, member: int) -> None:
        self.bindings[process, pointer] = member
        self.call_kinds.clear()

    def _same_run(self, member: int) -> bool:
        return member != NONE and self.members[member].run == self.run

    def speaks_of(self, thread: int, member: int) -> None:
        """Attribute the following lines of `thread` to `member`."""
        speaker = self.threads[thread]
        speaker.member = member
        self._device[speaker.process, speaker.device] = member

    def member_at(self, thread: int, pointer: int, line: int) -> int:
        """Return the handle at an address; create it at the first mention."""
        bound = self.bindings.get((self.threads[thread].process, pointer))
        if bound is not None:
            return bound
        # Until 2.8 a communicator is first named when it is complete: the lines before are about it.
        member = self.threads[thread].member
        if self._same_run(member) and not self.members[member].pointer:
            self.members[member].pointer = pointer
            self._bind(self.threads[thread].process, pointer, member)
            return member
        return self.new_member(thread, line, pointer)

    def member_of(self, thread: int, line: int, rank: int = NONE) -> int:
        """Return the most likely handle of a line of `thread`; `rank` is the rank in the line."""
        speaker = self.threads[thread]
        result = speaker.member
        if result == NONE or not self._fits(result, rank):
            result = self._device.get((speaker.process, speaker.device), NONE)
        if result == NONE or not self._fits(result, rank):
            result = self._by_rank(speaker, rank)
            result = self.new_member(thread, line) if result == NONE else result
        if rank != NONE and self.members[result].rank == NONE:
            self.members[result].rank = rank
        return result

    def _by_rank(self, speaker: Thread, rank: int) -> int:
        """Return the process's handle of a rank; without a rank, its last if it has one device."""
        device: int | None = None
        last = NONE
        handles = self._of_run.get((speaker.process, self.run), [])
        for handle in reversed(handles[-_RECENT_HANDLES:]):
            member = self.members[handle]
            if rank != NONE:
                if member.rank == rank:
                    return handle
                continue
            last = handle if last == NONE else last
            if device is not None and member.device != device:
                return NONE
            device = member.device
        return last

    def spoken_of(self, thread: int) -> int:
        """Return the handle of the last line of `thread`, or of its device, or NONE."""
        speaker = self.threads[thread]
        if speaker.member != NONE:
            return speaker.member
        return self._device.get((speaker.process, speaker.device), NONE)

    def _fits(self, member: int, rank: int) -> bool:
        existing = self.members[member]
        return existing.run == self.run and (
            rank == NONE or existing.rank in (NONE, rank)
        )

    def set_variable(self, name: str, value: str, process: int = NONE) -> bool:
        """Note a variable of a process, or of the job's command line; return False above the limits."""
        if name not in self.environment and len(self.environment) >= MOST_SETTINGS:
            return False
        values = self.environment.setdefault(name, {})
        entry = value if value in values or len(values) < MOST_VALUES else "(others)"
        values.setdefault(entry, set()).update(() if process == NONE else (process,))
        return True

    def count(
        self,
        table: dict[str, LineKind],
        text: str,
        line: int,
        kind: str | None = None,
    ) -> None:
        """Count a line in one of the tables, by its kind or the kind of `text`, which is an example."""
        kind = kind_of[text] if kind is None else kind
        entry = table.get(kind)
        if entry is None:
            kind = kind if len(table) < MAX_KINDS else "(others)"
            entry = table.setdefault(
                kind, LineKind(0, text.strip()[:200], self.place(line))
            )
        entry.count += 1

    def note_miscount(self, member: int, n_ranks: int, line: int) -> None:
        """Note a call with another number of ranks than its handle."""
        self.miscounts.setdefault(member, Miscount(0, n_ranks, line)).calls += 1

    def next_run(self) -> None:
        """Start a new run: lines from this one on are about new communicators."""
        if self.run_open:
            self.run += 1
        self.run_open = True
