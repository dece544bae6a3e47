"""Lines that are read one at a time: all but regular calls, and fragments of torn lines."""

from __future__ import annotations

import re

from clusim.base.limits import MOST_COUNT, MOST_RANKS
from clusim.formats.logs.graphs import BARE, CONNECTION, by_shape, system_line
from clusim.formats.logs.infer_collective import parse_route
from clusim.formats.logs.lines import LinePart, clean, label_of, parts, stamp_ns
from clusim.formats.logs.messages import HANDLERS, environment, note_version, parse_choice
from clusim.formats.logs.raw_log import RawLog
from clusim.formats.logs.repeating import NONE
from clusim.formats.logs.tables import MOST_ROWS, TableReader

_CALL = re.compile(r"\w+: opCount [0-9a-fA-F]")
_WHOLE_CONNECTION = re.compile(r"(?:^|INFO )(Channel \d\d\S* : \d+\[.* via \S.*)$")
_HEADING = re.compile(r"#+ *\w")
_WATCHDOG = re.compile(
    r"\[Rank (\d{1,9})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,18}),"
    r" OpType=(\w{1,64}),.*?Timeout\(ms\)=(\d{1,18})\)"
)
_TORCH = re.compile(rb"\[rank\d+\]:\[[EWI] ")
_TORN = re.compile(rb"[\w.:-]{0,80} \[\d+\] NCCL INFO ")
NOISE_FACTOR = 0x9E3779B97F4A7C15
"""Factor of the second 8 bytes of a line in a key of the first 16."""

_OPEN_HEADS = 64
_TORN_WORK = 200_000
_TORN_BYTES = 2000
"""Limit of the work on torn lines: `_TORN_WORK`, plus one per this number of log bytes."""

_LONGEST = 65536
_HEADS_LIVE = 20_000
_NOISE_AFTER = 16
_USED_WORDS = frozenset(HANDLERS)


class SingleLines:
    """Reader of the lines of one file that are not read in bulk."""

    def __init__(self, facts: RawLog, tables: TableReader, noise: dict[int, str]) -> None:
        """Read into `facts` and `tables`; `noise` has unused kinds of lines by first 16 bytes."""
        self.facts, self.tables, self._noise = facts, tables, noise
        self._heads: list[tuple[str, int]] = []
        self._seen: dict[str, int] = {}
        self._bare = NONE
        self._indent = ""
        self._stamp = NONE
        self._run_lines = len(tables.runs)

    def close(self) -> None:
        """Finish the file."""
        self.tables.close()
        if self.tables.rows > MOST_ROWS:
            text = f"has {self.tables.rows} rows of nccl-tests; those after the first {MOST_ROWS} are not used"
            self.facts.problems.append((self.tables.source, text))

    def line(self, raw: bytes, number: int) -> None:
        """Read a line that is not regular."""
        if len(raw) > _LONGEST:
            self.facts.long_lines += 1
            raw = raw[:_LONGEST]
        line = clean(raw)
        if b"NCCL" not in line:
            self._text(line.decode("utf-8", "replace"), number)
            return
        if not self._afford(1):
            self.facts.unread += 1
            return
        label = label_of(raw)
        if match := _TORCH.search(line):  # PyTorch's lines are in another stream, which cuts NCCL's
            if match.start():
                self._open_head(line[: match.start()].decode("utf-8", "replace"), number)
            line = line[match.start() :]
        result = parts(line, self.facts.clean_hosts)
        self._stamp = NONE
        if sum(1 for part in result if part.level) > 1:
            self.facts.spliced += 1
        for part in result:
            self._part(part, number, line, label)

    def _afford(self, work: int) -> bool:
        """Return True, and count the work, if the limit for torn lines permits it."""
        facts = self.facts
        if facts.torn_work + work > _TORN_WORK + facts.bytes // _TORN_BYTES:
            return False
        facts.torn_work += work
        return True

    def _part(self, part: LinePart, number: int, line: bytes, label: int) -> None:
        facts = self.facts
        if not part.level:
            text = part.text
            if part.cut and self._heads and _TORN.match(line):
                return  # the rest of a header, which is put together with the next part
            if part.cut and (stamp := stamp_ns(text.encode())) >= 0 and len(text) < 64:
                self._stamp = stamp
                return
            if part.cut and not self._known_text(text, number):
                self._open_head(text, number)
            elif not part.cut:
                self._text(text, number)
            return
        if not part.host and self._join(line.decode("utf-8", "replace"), number):
            return
        thread = self._thread(part, label)
        if part.level == "WARN":
            facts.count(facts.warnings, part.text, number)
            return
        if part.level in ("TRACE", "CALL", "ABORT", "VERSION"):
            facts.count(facts.notes, f"{part.level} {part.text}", number)
            return
        if part.cut and CONNECTION.match(part.text):
            self._open_head(_rebuilt(part), number)
            return
        text = part.text
        if part.cut:
            self._open_head(_rebuilt(part), number)
        if 0 <= part.stamp < _STAMP_END:
            self._stamp = part.stamp * 1000
        self.message(thread, number, text, cut=part.cut)

    def _thread(self, part: LinePart, label: int) -> int:
        facts = self.facts
        if not part.host:
            return facts.thread_of("", NONE, NONE, part.device)
        thread = facts.thread_of(part.host, part.pid, part.tid, part.device)
        facts.processes[facts.threads[thread].process].lines += 1
        if part.start == 0:
            facts.clean_hosts.add(part.host)
            if label != NONE:
                facts.processes[facts.threads[thread].process].label = label
        return thread

    def message(self, thread: int, number: int, text: str, *, cut: bool = False) -> None:
        """Read the message after a header."""
        facts = self.facts
        if facts.threads[thread].in_system and system_line(facts, thread, number, text):
            return
        word = text[: text.find(" ")] if " " in text else text
        handler = HANDLERS.get(word) or HANDLERS.get(
            word.removesuffix("_impl")
        )  # of RCCL since 2.26
        if handler is not None and handler(facts, thread, number, text):
            return
        if self._other(thread, number, text, word):
            return
        if cut:
            return
        if _CALL.match(text):
            facts.cut_calls += 1
            return
        kind = facts.count(facts.unknown, text, number)
        self._learn_noise(kind, text, word)

    def _other(self, thread: int, number: int, text: str, word: str) -> bool:
        """Understand a message without a handler for its first word."""
        facts = self.facts
        if _CALL.match(text):
            return self._call(thread, number, text)
        if by_shape(facts, thread, number, text):
            return True
        if " set by " in text and environment(facts, thread, number, text):
            return True
        if "Bytes -> Algo" in text:
            choice = parse_choice(text)
            if choice is None:
                return False
            facts.add_tuning(facts.choice_of(choice), thread, number)
            return True
        return False

    def _call(self, thread: int, number: int, text: str) -> bool:
        call = parse_call(text)
        if call is None:
            return False
        name, numbers, comm, n_ranks, stream, in_place, rank = call
        facts = self.facts
        member = facts.member_at(thread, comm, number)
        known = facts.members[member]
        if known.n_ranks == NONE:
            known.n_ranks = n_ranks
        if known.n_ranks != n_ranks:
            facts.miscounted(member, n_ranks, number)
        if known.rank == NONE and 0 <= rank < known.n_ranks:
            known.rank = rank
        process = facts.threads[thread].process
        facts.add_call(
            facts.name_of(name), *numbers, member, thread, facts.stream_of(process, stream),
            int(in_place), number, self._stamp,
        )  # fmt: skip
        return True

    def _learn_noise(self, kind: str, text: str, word: str) -> None:
        """Store the start of a frequent unused kind of line; further lines are only counted."""
        times = self._seen.get(kind, 0) + 1
        if len(self._seen) < 4096 or kind in self._seen:
            self._seen[kind] = times
        head = text[:16].encode()
        if times != _NOISE_AFTER or len(head) != 16 or kind == "(others)":
            return
        if word in _USED_WORDS or text[:1] == " " or "#" in kind[:16] or word.startswith("NCCL_"):
            return
        one, two = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little")
        self._noise[one ^ (two * NOISE_FACTOR & 2**64 - 1)] = kind

    def _text(self, text: str, number: int) -> None:
        """Read a line without a header."""
        if self._known_text(text, number) or self._join(text, number):
            return
        if " via " in text and self._orphan(text, number):
            return
        if "NCCL" in text:
            mentions = "(other programs' lines that mention NCCL)"
            self.facts.count_as(self.facts.unknown, mentions, text.strip()[:200], number)
        else:
            self.facts.app_lines += 1

    def _known_text(self, text: str, number: int) -> bool:
        facts = self.facts
        bare = text.lstrip()
        if self._bare_system(text, number):
            return True
        if bare.startswith("#"):
            if self.tables.comment(bare, number - self._offset()):
                self._new_run(number)
                for run in self.tables.runs[-1:]:
                    facts.clean_hosts.update(device.host for device in run.devices[-1:])
                return True
            if _HEADING.match(bare) and self._bare != NONE:
                self._bare = NONE
            return True
        if self.tables.text(text, number - self._offset()):
            self._new_run(number)
            return True
        if note_version(facts, text):
            return True
        if "Watchdog" in text and (match := _WATCHDOG.search(text)):
            what = f"rank {match[1]}: {match[3]} {match[2]} ran over {int(match[4]) / 1000:g} s"
            kind = f"{match[3]} number {match[2]} over {int(match[4]) / 1000:g} s"
            known = facts.timeouts.get(kind)
            if known is None and len(facts.timeouts) < 500:
                facts.count_as(facts.timeouts, kind, what, number)
            elif known is not None:
                known.count += 1
            return True
        word = bare.partition(" ")[0]
        if word not in BARE or (word == "===" and not bare.startswith("=== System : ")):
            return False
        self._indent = text[: len(text) - len(bare)]
        return self._bare_message(bare, number, word)

    def _bare_system(self, text: str, number: int) -> bool:
        """Read a line of a topology print without headers."""
        if self._bare == NONE:
            return False
        thread = self.facts.bare_threads[self._bare]
        if not self.facts.threads[thread].in_system:
            return False
        return system_line(self.facts, thread, number, text.removeprefix(self._indent))

    def _bare_message(self, text: str, number: int, word: str) -> bool:
        """Read a message without header; all messages up to a heading belong together."""
        facts = self.facts
        if self._bare == NONE:
            self._bare = len(facts.bare_threads)
            thread = facts.thread_of("", -2 - self._bare, NONE, NONE)
            facts.bare_threads.append(thread)
        thread = facts.bare_threads[self._bare]
        return HANDLERS[word](facts, thread, number, text)

    def _offset(self) -> int:
        return self.facts.file_lines[-1]

    def _new_run(self, number: int) -> None:
        if len(self.tables.runs) != self._run_lines:
            self._run_lines = len(self.tables.runs)
            self.facts.next_run(number)
            self.tables.runs[-1].number = self.facts.run

    def _open_head(self, text: str, number: int) -> None:
        """Store the head of a line that another rank's line cut; its rest follows later."""
        if 0 < len(text.strip()) <= 512:
            self._heads.append((text, number))
            del self._heads[:-_OPEN_HEADS]

    def _orphan(self, text: str, number: int) -> bool:
        """Read a complete connection without its header if only one rank can have written it."""
        facts = self.facts
        matched = _WHOLE_CONNECTION.search(text)
        match = CONNECTION.match(matched[1]) if matched else None
        if match is None:
            return False
        own = int(match[5] if match[7] == "receive" else match[3])
        if not self._afford(1 + len(facts.members) // 100):
            return False
        writers = [m for m in facts.members if m.run == facts.run and m.rank == own]
        if len(writers) != 1:
            return False
        facts.rejoined += 1
        return HANDLERS["Channel"](facts, writers[0].thread, number, matched[1] if matched else "")

    def _join(self, text: str, number: int) -> bool:
        """Append a rest to the only head that it completes.

        The result is a connection, or a header of a known thread.
        """
        whole = "NCCL INFO " in text
        if not self._heads or len(text) > (256 if whole or " via " in text else 48):
            return False
        self._heads = [head for head in self._heads if head[1] > number - _HEADS_LIVE]
        fitting: list[tuple[int, LinePart]] = []
        for i, (head, _) in enumerate(self._heads):
            if not whole and " via " not in head and " via " not in text:
                continue
            if not self._afford(1):
                return False
            result = parts((head + text).encode(), self.facts.clean_hosts)
            if len(result) == 1 and result[0].host and result[0].level == "INFO":
                part = result[0]
                match = CONNECTION.match(part.text)
                torn_header = whole and self.facts.knows(part.host, part.pid, part.tid, part.device)
                if torn_header or (match and parse_route(match[8].rstrip()) is not None):
                    fitting.append((i, part))
        if len({(p.host, p.pid, p.tid, p.text) for _, p in fitting}) != 1:
            return False
        i, part = fitting[-1]
        del self._heads[i]
        self.facts.rejoined += 1
        self.message(self._thread(part, NONE), number, part.text)
        return True

    @property
    def waiting(self) -> bool:
        """True if rests of lines cut by other ranks are missing."""
        return bool(self._heads)


_STAMP_END = 1 << 53
"""Upper bound of a time stamp [us since 1970]: in ns it fits into 63 bits."""

_OP_END = 1 << 31
"""Upper bound of reduction numbers; user-defined reductions are numbered after NCCL's."""

_CALL_WHOLE = re.compile(
    r"(\w+): opCount ([0-9a-fA-F]{1,16}) sendbuff (\S+) recvbuff (\S+)(?: acc \S+)? count (\d{1,19})"
    r" datatype (\d{1,9}) op (\d{1,9}) root (-?\d{1,9}) comm 0x([0-9a-fA-F]{1,16}) \[nranks=(\d{1,9})\]"
    r" stream (?:0x([0-9a-fA-F]{1,16})|\(nil\))(?: task \d+ globalrank (\d{1,9}))?\s*$"
)


def parse_call(
    text: str,
) -> tuple[str, tuple[int, int, int, int, int], int, int, int, bool, int] | None:
    """Return the fields of a call's line, or None if it is incomplete."""
    match = _CALL_WHOLE.match(text)
    if match is None:
        return None
    numbers = (int(match[2], 16), int(match[5]), int(match[6]), int(match[7]), int(match[8]))
    rank = int(match[12]) if match[12] is not None else NONE
    bounds = (MOST_COUNT, MOST_COUNT, _OP_END, _OP_END, MOST_RANKS)
    if any(n >= most for n, most in zip(numbers, bounds, strict=True)) or (
        max(int(match[10]), rank) > MOST_RANKS
    ):
        return None
    return (
        match[1][:24], numbers, int(match[9], 16), int(match[10]), int(match[11] or "0", 16),
        match[3] == match[4], rank,
    )  # fmt: skip


def _rebuilt(part: LinePart) -> str:
    """Return a part's line in its original form."""
    where = f"{part.host}:{part.pid}:{part.tid} " if part.host else ""
    device = f"[{part.device}] " if part.device != NONE else ""
    return f"{where}{device}NCCL {part.level} {part.text}"
