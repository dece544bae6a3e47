"""Reader of logs into `RawLog` and `TableReader`: regular lines in bulk, others singly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import InputError
from clusim.formats.logs.digits import hashes
from clusim.formats.logs.dressing import Dressing
from clusim.formats.logs.lines import FRONT_BYTES, LABEL, OTHER, front, label_of, stamps, token
from clusim.formats.logs.messages import NamedHandle, note_handle, parse_choice
from clusim.formats.logs.raw_log import RawLog
from clusim.formats.logs.repeating import NONE
from clusim.formats.logs.scan import Calls, Scan, find_calls
from clusim.formats.logs.settings import (
    Connections,
    KnownTexts,
    SettingLines,
    find_branches,
    find_connections,
    find_handles,
)
from clusim.formats.logs.single import NOISE_FACTOR, SingleLines
from clusim.formats.logs.source import STDIN, blocks
from clusim.formats.logs.tables import TableReader

Positions = NDArray[np.int64]

SINGLE_LINES, SINGLE_BYTES = 500_000, 128
"""Limit of lines read one at a time: the first, plus one per this number of log bytes [B]."""

_PREFIX_BYTES = 64
_CHOICE_BYTES = 128


class _Lines(NamedTuple):
    """Lines of a block that are read one at a time, with their rows in the scan if any.

    `rank` is, by row, the rank of a line with an unknown handle that is otherwise understood; `NONE` for
    others. `named` has, by row, the lines that name handles.
    """

    scan: Scan
    data: bytes
    first: int
    chosen: Positions
    rows: Positions
    threads: Positions
    rank: Positions
    named: dict[int, NamedHandle]


class LogReader:
    """Reader of any number of logs in sequence; `facts` and `tables` have their content."""

    def __init__(self) -> None:
        """Start empty."""
        self.facts = RawLog()
        self.tables: list[TableReader] = []
        self._prefixes, self._stamps, self._choices = KnownTexts(), KnownTexts(), KnownTexts()
        self._routes, self._names, self._comms, self._streams = (
            KnownTexts(),
            KnownTexts(),
            KnownTexts(),
            KnownTexts(),
        )
        self._places: list[tuple[int, int]] = []
        self._noise: dict[int, str] = {}
        self._settings = SettingLines(self.facts)
        self._processes = np.zeros(0, np.int64)
        self._times = np.zeros(0, np.int64)
        self._settled, self._settled_at = np.zeros(0, np.int64), 0

    def read(self, names: Iterable[str]) -> None:
        """Read these logs; ``-`` is standard input."""
        for name in names:
            self._file(name)

    def _file(self, name: str) -> None:
        facts = self.facts
        base = facts.lines
        tables = TableReader(name)
        single = SingleLines(facts, tables, self._noise)
        nulls = 0
        started = False
        dressing = Dressing()

        def report(text: str) -> None:
            facts.problems.append((name, text))

        for block in blocks(name, report):
            if not started:
                facts.files.append(name)
                facts.file_lines.append(base)
                self.tables.append(tables)
                started = True
            facts.bytes += len(block)
            nulls += block.count(b"\0") if b"\0" in block else 0
            self._block(dressing.off(block), facts.lines + 1, single)
        if not started:
            report("is empty")
            facts.files.append(name)
            facts.file_lines.append(base)
            self.tables.append(tables)
        if nulls:
            wide = (
                ""
                if 3 * nulls < facts.bytes
                else "; if it is UTF-16, convert it with iconv -f UTF-16 -t UTF-8"
            )
            report(f"has {nulls} zero bytes; the text around them may be lost{wide}")
        if dressing.repeats:
            text = f"Ray dropped {dressing.repeats} similar lines: set RAY_DEDUP_LOGS=0 to keep all"
            report(text)
        single.close()

    def _block(self, data: bytes, line: int, single: SingleLines) -> None:
        """Read one block; `line` is the number of its first line."""
        facts, scan = self.facts, Scan.of(data)
        facts.lines = line + len(scan.starts) - 1
        facts.nccl_lines += int(np.count_nonzero(scan.has_nccl))
        threads, regular = self._threads(scan)
        calls, is_call = find_calls(scan)
        if calls is not None and not regular.all():
            calls = calls.only(regular[calls.rows])
        is_call &= regular
        done = is_call | self._tunings(scan, threads, regular & ~is_call, line)
        done |= self._skip_noise(scan, regular & ~done)
        done |= self._settings.take(scan, self._process_of(threads), regular & ~done)
        connections, routes = self._connections(scan, data, regular & ~done)
        branches = find_branches(scan, regular & ~done)
        named = find_handles(scan, regular & ~done)
        # Lines to read one at a time, and the row of each in the scan, NONE if it is not regular.
        singles = scan.has_nccl.copy()
        spliced = int(np.count_nonzero(regular)) < int(np.count_nonzero(singles))
        singles[scan.regular[done]] = False
        row_of = np.full(len(scan.starts), NONE, np.int64)
        rest = np.flatnonzero(regular & ~done)
        row_of[scan.regular[rest]] = rest
        singles |= scan.candidates(single.waiting or spliced)
        facts.app_lines += int(np.count_nonzero(~singles & ~scan.has_nccl))
        rank = np.full(len(scan.regular), NONE, np.int64)
        if connections is not None:
            ends = connections.source, connections.target
            rank[connections.rows] = np.where(connections.side == 2, ends[1], ends[0])
        if branches is not None:
            rank[branches.rows] = branches.rank
        self._bound(singles, scan.regular[rank >= 0])
        chosen = np.flatnonzero(singles)
        lines = _Lines(scan, data, line, chosen, row_of[chosen], threads, rank, named)
        handles = self._singles(single, lines)
        if branches is not None:
            own = handles[branches.rows][branches.line]
            table = np.stack((own, *branches.numbers), axis=1)
            facts.trees.add_table(table[own != facts.lost_handle])
        if connections is not None:
            spoken = handles[connections.rows]
            known = spoken != facts.lost_handle
            connections, routes, spoken = connections.only(known), routes[known], spoken[known]
            facts.connections.add(
                {
                    "member": spoken, "channel": connections.channel, "index": connections.index,
                    "source": connections.source, "target": connections.target, "route": routes,
                    "side": connections.side,
                }
            )  # fmt: skip
        if calls is not None and len(calls.rows):
            self._calls(scan, data, calls, threads, line)

    def _bound(self, singles: NDArray[np.bool_], cheap: Positions) -> None:
        """Limit the lines that are read one at a time, without counting cheap lines."""
        facts = self.facts
        dear = singles.copy()
        dear[cheap] = False
        rows = np.flatnonzero(dear)
        left = max(0, SINGLE_LINES + facts.bytes // SINGLE_BYTES - facts.single_lines)
        facts.single_lines += min(left, len(rows))
        facts.passed_over += max(0, len(rows) - left)
        singles[rows[left:]] = False

    def _singles(self, single: SingleLines, lines: _Lines) -> Positions:
        """Read lines one at a time, in order; return by row the handles of lines with a rank."""
        facts = self.facts
        scan, data, line = lines.scan, lines.data, lines.first
        handles = np.full(len(scan.regular), NONE, np.int64)
        if len(lines.chosen) == 0:
            return handles
        rank = (
            np.where(lines.rows >= 0, lines.rank[lines.rows], NONE) if len(handles) else lines.rows
        )
        who = lines.threads[lines.rows] if len(handles) else lines.rows
        # Consecutive lines of a thread about the same rank are about the same handle.
        again = (rank[1:] >= 0) & (rank[1:] == rank[:-1]) & (who[1:] == who[:-1])
        looked = np.concatenate(([True], ~again))
        chosen, rows = lines.chosen[looked], lines.rows[looked]
        starts, ends = scan.starts[chosen].tolist(), scan.ends[chosen].tolist()
        message = scan.message[rows].tolist() if len(handles) else starts
        spoken: list[int] = []
        for number, start, end, row, thread, own, text_at in zip(
            chosen.tolist(), starts, ends, rows.tolist(), who[looked].tolist(), rank[looked].tolist(),
            message, strict=True,
        ):  # fmt: skip
            handle = NONE
            if row < 0:
                single.line(data[start:end], line + number)
            elif own >= 0:
                handle = facts.member_of(thread, line + number, own)
            elif row in lines.named and not facts.threads[thread].in_system:
                note_handle(facts, thread, line + number, lines.named[row])
            else:
                text = data[text_at:end].decode("utf-8", "replace")
                single.message(thread, line + number, text)
            spoken.append(handle)
        known = lines.rows >= 0
        handles[lines.rows[known]] = np.array(spoken, np.int64)[np.cumsum(looked) - 1][known]
        return handles

    def _connections(
        self, scan: Scan, data: bytes, among: NDArray[np.bool_]
    ) -> tuple[Connections | None, Positions]:
        """Return the connections among these rows and their routes, without unknown routes."""
        result = find_connections(scan, among)
        if result is None:
            return None, np.zeros(0, np.int64)
        start, end = result.route

        def make(row: int) -> int:
            return self.facts.route_of(data[start[row] : end[row]].decode("utf-8", "replace"))

        routes = self._routes.look(result.route_hash, make)
        good = routes >= 0
        return result.only(good), routes[good]

    def _threads(self, scan: Scan) -> tuple[Positions, NDArray[np.bool_]]:
        """Return the thread of each row, and a mask of the rows that also have a regular front."""
        facts, n = self.facts, len(scan.regular)
        good = np.ones(n, np.bool_)
        threads = np.zeros(n, np.int64)
        self._times = np.full(n, NONE, np.int64)
        if n == 0:
            return threads, good
        good &= scan.token_end - scan.token <= _PREFIX_BYTES
        labels = self._fronts(scan, good)
        rows = np.flatnonzero(good)
        keys = hashes(scan.buffer, scan.token[rows], scan.token_end[rows], _PREFIX_BYTES)
        threads[rows] = self._prefixes.look(keys, lambda i: self._prefix(scan, int(rows[i])))
        good[rows] &= threads[rows] >= 0
        for row, label in labels.items():
            if good[row]:
                facts.processes[facts.threads[int(threads[row])].process].label = label
        speakers, times = np.unique(threads[good], return_counts=True)
        for thread, lines in zip(speakers.tolist(), times.tolist(), strict=True):
            process = facts.processes[facts.threads[thread].process]
            process.lines += lines
            facts.clean_hosts.add(process.host)
        return threads, good

    def _process_of(self, threads: Positions) -> Positions:
        """Return the processes of threads, which do not change while logs are read."""
        new = self.facts.threads[len(self._processes) :]
        if new:
            self._processes = np.append(
                self._processes, np.array([t.process for t in new], np.int64)
            )
        known = self._processes if len(self._processes) else np.full(1, NONE)
        return known[threads]

    def _fronts(self, scan: Scan, good: NDArray[np.bool_]) -> dict[int, int]:
        """Parse the fronts before headers: store times, remove rows with other text from `good`.

        Returns the rank labels of launchers, each by one row.
        """
        line_start = scan.starts[scan.regular]
        fronts = np.flatnonzero(good & (scan.token > line_start))
        labels: dict[int, int] = {}
        if len(fronts) == 0:
            return labels
        start, end = line_start[fronts], scan.token[fronts]
        times = stamps(scan.buffer, start, end)
        left = np.flatnonzero(times < 0)
        keys = hashes(scan.buffer, start[left], end[left], FRONT_BYTES)

        def make(i: int) -> int:
            j = left[i]
            stamp, label = front(bytes(scan.buffer[start[j] : end[j]]))
            if label != NONE and stamp < 0:
                return LABEL - label
            return stamp

        result = self._stamps.look(keys, make)
        labelled = np.flatnonzero(result <= LABEL)
        _, first = np.unique(result[labelled], return_index=True)
        for i in labelled[first].tolist():
            labels[int(fronts[left[i]])] = int(LABEL - result[i])
        times[left] = result
        good[fronts[times == OTHER]] = False
        self._times[fronts] = np.maximum(times, NONE)
        return labels

    def _prefix(self, scan: Scan, row: int) -> int:
        """Return the thread named in a header, or NONE."""
        text = bytes(scan.buffer[scan.token[row] : scan.token_end[row]])
        name, _, device = text[:-1].rpartition(b" [")
        result = token(name)
        if result is None or not device.isdigit():
            return NONE
        tag, host, pid, tid = result
        label = label_of(tag)
        if tag and label == NONE:
            return NONE
        thread = self.facts.thread_of(host, pid, tid, int(device))
        if label != NONE:
            self.facts.processes[self.facts.threads[thread].process].label = label
        return thread

    def _tunings(
        self, scan: Scan, threads: Positions, among: NDArray[np.bool_], line: int
    ) -> NDArray[np.bool_]:
        """Store the tuner's choices among these rows; return the mask of their rows."""
        chosen = np.zeros(len(among), np.bool_)
        rows = np.flatnonzero(among)
        first = np.searchsorted(scan.spaces, scan.message[rows])
        fits = first + 1 < len(scan.spaces)
        rows, first = rows[fits], first[fits]
        if len(rows) == 0:
            return chosen
        one, two = (scan.head_words(scan.spaces[first + i] + 1) for i in (0, 1))
        rows = rows[(one == scan.BYTES) | (two == scan.BYTES)]
        ends = scan.ends[scan.regular[rows]]
        keys = hashes(scan.buffer, scan.message[rows], ends, _CHOICE_BYTES)

        def make(i: int) -> int:
            text = bytes(scan.buffer[scan.message[rows[i]] : ends[i]])
            choice = parse_choice(text.decode("utf-8", "replace")) if len(text) <= 128 else None
            return NONE if choice is None else self.facts.choice_of(choice)

        result = self._choices.look(keys, make)
        rows, result = rows[result >= 0], result[result >= 0]
        chosen[rows] = True
        if len(rows) and self.facts.room(self.facts.tunings, len(rows)):
            self.facts.tunings.add(
                {"choice": result, "thread": threads[rows], "line": scan.regular[rows] + line}
            )
        return chosen

    def _skip_noise(self, scan: Scan, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Count the rows with the first 16 bytes of a known unused kind; return their mask."""
        skipped = np.zeros(len(among), np.bool_)
        rows = np.flatnonzero(among)
        if len(rows) == 0 or not self._noise:
            return skipped
        start = scan.message[rows]
        keys = scan.head_words(start) ^ (scan.head_words(start + 8) * np.uint64(NOISE_FACTOR))
        known = np.array(sorted(self._noise), np.uint64)
        at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        hit = known[at] == keys
        for i, times in enumerate(np.bincount(at[hit]).tolist()):
            if times:
                self.facts.unknown[self._noise[int(known[i])]].count += times
        skipped[rows[hit]] = True
        return skipped

    def _calls(self, scan: Scan, data: bytes, calls: Calls, threads: Positions, line: int) -> None:
        """Store the calls of a block."""
        facts = self.facts
        thread = threads[calls.rows]
        lines = scan.regular[calls.rows] + line
        start, end = calls.name_start, calls.name_end
        name = self._names.look(
            hashes(scan.buffer, start, end, 24),
            lambda i: facts.name_of(data[start[i] : end[i]].decode("utf-8", "replace")[:24]),
        )
        process = self._process_of(thread)
        member = self._resolve(process, calls, data, lines, thread)
        if (member < 0).any():  # not an address
            facts.cut_calls += int(np.count_nonzero(member < 0))
            self._calls(scan, data, calls.only(member >= 0), threads, line)
            return
        self._compare_sizes(member, calls, lines)
        for i in np.flatnonzero(calls.global_rank >= 0)[:4096].tolist():
            known = facts.members[int(member[i])]
            rank = int(calls.global_rank[i])
            if known.rank == NONE and rank < known.n_ranks:
                known.rank = rank
        stream = self._streams.look(
            _pairs(process, calls.stream_hash),
            lambda i: facts.stream_of(int(process[i]), _pointer(data, calls.stream, i)),
        )
        if not facts.room(facts.calls, len(member)):
            return
        facts.calls.add(
            {
                "name": name, "op_count": calls.op_count, "count": calls.count,
                "type": calls.type, "op": calls.op, "root": calls.root, "member": member,
                "thread": thread, "stream": stream, "in_place": calls.in_place.astype(np.int8),
                "line": lines, "time_ns": self._times[calls.rows],
            }
        )  # fmt: skip

    def _compare_sizes(self, member: Positions, calls: Calls, lines: Positions) -> None:
        """Note the calls with another number of ranks than their handle."""
        facts = self.facts
        handles, which = np.unique(member, return_inverse=True)
        sizes = np.array([facts.members[h].n_ranks for h in handles.tolist()], np.int64)
        odd = np.flatnonzero(sizes[which] != calls.n_ranks.astype(np.int64))
        _, first, times = np.unique(which[odd], return_index=True, return_counts=True)
        for row, number in zip(odd[first].tolist(), times.tolist(), strict=True):
            said = int(calls.n_ranks[row])
            facts.miscounted(int(member[row]), said, int(lines[row]), number)

    def _resolve(
        self, process: Positions, calls: Calls, data: bytes, lines: Positions, thread: Positions
    ) -> Positions:
        """Return the handle of each call, by process and address."""
        facts = self.facts

        def make(i: int) -> int:
            pointer = _pointer(data, calls.comm, i)
            if pointer == 0:
                return NONE
            self._places.append((int(process[i]), pointer))
            return len(self._places) - 1

        place = self._comms.look(_pairs(process, calls.comm_hash), make)
        first = np.full(len(self._places) + 1, NONE, np.int64)
        first[place[::-1]] = np.arange(len(place) - 1, -1, -1)
        of_place = self._settled_places()
        unique = np.flatnonzero((first[:-1] >= 0) & (of_place[:-1] < 0))
        first = first[unique]
        moved: list[tuple[int, list[tuple[int, int]]]] = []
        for number, row in zip(unique.tolist(), first.tolist(), strict=True):
            bound = facts.bindings.get(self._places[number])
            if bound is None:
                pointer = self._places[number][1]
                result = facts.member_at(int(thread[row]), pointer, int(lines[row]))
            else:
                result = bound[-1][1]
                if len(bound) > 1:
                    moved.append((number, bound))
            of_place[number] = result
            if facts.members[result].n_ranks == NONE:
                facts.members[result].n_ranks = int(calls.n_ranks[row])
        member = of_place[place]
        of_place[[number for number, _ in moved]] = NONE
        self._settled, self._settled_at = of_place[:-1], len(facts.members)
        for number, bound in moved:
            rows = np.flatnonzero(place == number)
            begins = np.array([begin for begin, _ in bound])
            which = np.maximum(np.searchsorted(begins, lines[rows], "right") - 1, 0)
            member[rows] = np.array([handle for _, handle in bound])[which]
        return member

    def _settled_places(self) -> Positions:
        """Return the handle of each place with a single handle, NONE for others.

        Valid until a new handle is added.
        """
        known = np.full(len(self._places) + 1, NONE, np.int64)  # the last is for a missing place
        if self._settled_at == len(self.facts.members):
            known[: len(self._settled)] = self._settled
        return known


def _pointer(data: bytes, where: tuple[Positions, Positions], row: int) -> int:
    """Return the address written at a place, 0 for ``(nil)``."""
    text = data[where[0][row] : where[1][row]]
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _pairs(process: Positions, key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return key ^ (process.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93))


def require_something(facts: RawLog, tables: list[TableReader]) -> None:
    """Refuse files without lines of NCCL or nccl-tests."""
    if facts.members or facts.tunings or facts.versions or any(t.runs for t in tables):
        return
    said = (facts.notes, facts.warnings, facts.timeouts, facts.environment, facts.clean_hosts)
    if any(said) or facts.spliced or facts.unread:
        return
    names = ["standard input" if name == STDIN else name for name in facts.files[:3]]
    shown = ", ".join(names) + (", ..." if len(facts.files) > 3 else "")
    why = "".join(f" ({text})" for _, text in facts.problems[:1])
    raise InputError(
        f"{shown}: no line of NCCL, RCCL or nccl-tests in {facts.lines} lines{why}; use the output"
        " of a job with NCCL_DEBUG=INFO"
    )
