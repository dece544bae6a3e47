"""Reader of the lines of one log: calls, messages, tables, and fragments of lines that ranks cut."""

from __future__ import annotations

import re

from clusim.formats.logs.call_lines import CallReader
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.graphs import CONNECTION, OF_GRAPHS, fills_of, system_line
from clusim.formats.logs.infer_collective import parse_route
from clusim.formats.logs.lines import (
    LinePart,
    clean,
    label_of,
    parts,
    regular_front,
    stamp_ns,
)
from clusim.formats.logs.messages import command_line, note_version
from clusim.formats.logs.raw_log import Process, RawLog
from clusim.formats.logs.tables import MOST_ROWS, TableReader

_CALL_START = re.compile(rb"\w+: opCount [0-9a-fA-F]")
_LIBRARY = re.compile(rb"NCCL(?!_)")
"""The library's name outside variable names."""

_WHOLE_CONNECTION = re.compile(r"(?:^|INFO )(Channel \d\d\S* : \d+\[.* via \S.*)$")
_HEADING = re.compile(r"#+ *\w")
_WATCHDOG = re.compile(
    r"\[Rank (\d{1,9})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,18}),"
    r" OpType=(\w{1,64}),.*?Timeout\(ms\)=(\d{1,18})\)"
)
_TORCH = re.compile(rb"\[rank\d+\]:\[[EWI] ")
_TORN = re.compile(rb"[\w.:-]{0,80} \[\d+\] NCCL INFO ")

_SPEAKER = re.compile(
    rb"(.*?)([A-Za-z0-9_][\w.-]{0,255}):(\d{1,10}):(\d{1,10}) \[(\d{1,3})\]",
    re.DOTALL,
)
_SPEAKER_BYTES = 64
"""Longest ``host:pid:tid [device]`` of a regular header."""

_MOST_WRITERS = 1 << 14
"""Maximum number of cached headers."""

_STARTS = "[#0123456789" + "".join(word[0] for word in OF_GRAPHS)
"""First letters of tags, table lines and messages without headers."""

_WORDS = ("CCL", " via ", "failure", "_perf", "Watchdog", ">:")
"""Words without which no other line is read; the last ends a launcher's tag."""

_SHORT_REST = 48
"""Longest rest of a torn line without header and transport [B]."""

_OPEN_HEADS = 64
_TORN_WORK = 200_000
_TORN_BYTES = 2000
"""Limit of the work on torn lines: `_TORN_WORK`, plus one per this number of log bytes."""

_LONGEST = 65536
_HEADS_LIVE = 20_000

_Writer = tuple[int, Process, int]
"""Thread, process and time [ns] of a header."""


class LineReader:
    """Reader of the lines of one file."""

    def __init__(self, facts: RawLog, tables: TableReader) -> None:
        """Read into `facts` and `tables`."""
        self.facts, self.tables = facts, tables
        self._writers: dict[bytes, _Writer] = {}
        self._heads: list[tuple[str, int]] = []
        self._bare = NONE
        self._indent = ""
        self._stamp = NONE
        self._calls = CallReader(facts)
        self._run_lines = len(tables.runs)

    def block(self, data: bytes) -> None:
        """Read the next lines of the file, complete and without added text."""
        facts, writers, calls, regular = self.facts, self._writers, self._calls, 0
        for number, line in enumerate(data.split(b"\n")[:-1], facts.lines + 1):
            head, mark, text = line.partition(b" NCCL INFO ")
            writer = (
                (writers.get(head) or self._writer(head, text)) if mark else None
            )
            if not line:
                facts.app_lines += 1
                continue
            if writer is None:
                self._irregular(line, number)
                continue
            thread, process, stamp = writer
            if text in fills_of:
                self.message(thread, number, text)
            elif not calls.read(thread, number, text, stamp):
                if _LIBRARY.search(text):
                    self._irregular(line, number)
                    continue
                self.message(thread, number, text)
            process.lines += 1
            regular += 1
        facts.nccl_lines += regular
        facts.lines += data.count(b"\n")
        self._calls.flush()

    def _writer(self, head: bytes, text: bytes) -> _Writer | None:
        """Return the writer named in the header before a message, None if the line is not regular."""
        at = head.rfind(b" ", 0, max(0, head.rfind(b" ["))) + 1
        front, name = head[:at], head[at:]
        prefix = regular_front(front)
        if prefix is None:
            return None
        speaker = self._writers.get(name)
        if (
            speaker is None
            and len(name) <= _SPEAKER_BYTES
            and not _LIBRARY.search(text)
        ):
            speaker = self._speaker(name)
        if speaker is None:
            return None
        thread, process, _ = speaker
        stamp, label = prefix
        if label != NONE:
            process.label = label
        return self._keep_text(head, (thread, process, stamp))

    def _keep_text(self, text: bytes, writer: _Writer) -> _Writer:
        if len(self._writers) >= _MOST_WRITERS:
            self._writers.clear()
        self._writers[text] = writer
        return writer

    def _speaker(self, name: bytes) -> _Writer | None:
        """Return the writer of ``host:pid:tid [device]``, else None."""
        match = _SPEAKER.fullmatch(name)
        if match is None:
            return None
        tag, host, pid, tid, device = match.groups()
        label = label_of(tag)
        if tag and label == NONE:
            return None
        thread = self.facts.thread_of(host.decode(), int(pid), int(tid), int(device))
        process = self.facts.process_at(thread)
        if label != NONE:
            process.label = label
        self.facts.clean_hosts.add(process.host)
        return self._keep_text(name, (thread, process, NONE))

    def close(self) -> None:
        """Finish the file."""
        self.tables.close()
        if self.tables.rows > MOST_ROWS:
            text = f"has {self.tables.rows} rows of nccl-tests; those after the first {MOST_ROWS} are not used"
            self.facts.problems.append((self.tables.source, text))

    def _irregular(self, raw: bytes, number: int) -> None:
        """Read a line without a single header of the library at its start."""
        if self._foreign(raw):
            self.facts.app_lines += 1
            return
        self.facts.nccl_lines += b"NCCL" in raw
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
        if match := _TORCH.search(
            line
        ):  # PyTorch's lines are in another stream, which cuts NCCL's
            if match.start():
                self._open_head(
                    line[: match.start()].decode("utf-8", "replace"), number
                )
            line = line[match.start() :]
        result = parts(line, self.facts.clean_hosts)
        self._stamp = NONE
        if sum(1 for part in result if part.level) > 1:
            self.facts.spliced += 1
        for part in result:
            self._part(part, number, line, label)

    def _foreign(self, line: bytes) -> bool:
        """Return True if a line cannot be of NCCL, nccl-tests, or the rest of a torn line."""
        if (
            self._bare != NONE
            or self.tables.in_row
            or (self._heads and len(line) <= _SHORT_REST)
        ):
            return False
        text = line.decode("latin-1")
        return text.lstrip()[:1] not in _STARTS and not any(
            word in text for word in _WORDS
        )

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
            if (
                part.cut
                and (stamp := stamp_ns(text.encode())) >= 0
                and len(text) < 64
            ):
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
        if part.cut:
            self._open_head(_rebuilt(part), number)
        if 0 <= part.stamp < _STAMP_END:
            self._stamp = part.stamp * 1000
        self.message(thread, number, part.text.encode(), cut=part.cut)

    def _thread(self, part: LinePart, label: int) -> int:
        facts = self.facts
        if not part.host:
            return facts.thread_of("", NONE, NONE, part.device)
        thread = facts.thread_of(part.host, part.pid, part.tid, part.device)
        process = facts.process_at(thread)
        process.lines += 1
        if part.start == 0:
            facts.clean_hosts.add(part.host)
            process.label = label if label != NONE else process.label
        return thread

    def message(
        self, thread: int, number: int, text: bytes, *, cut: bool = False
    ) -> None:
        """Read the message after a header."""
        facts = self.facts
        if facts.threads[thread].in_system and system_line(
            facts, thread, number, text.decode("utf-8", "replace")
        ):
            return
        if text not in fills_of and _CALL_START.match(text):
            if not self._calls.read(thread, number, text, self._stamp):
                facts.cut_calls += not cut
            return
        fill, is_known_text = fills_of[text]
        if (
            (is_known_text or not cut)
            and fill(facts, thread, number) is False
            and not cut
        ):
            facts.count(facts.unknown, text.decode("utf-8", "replace"), number)

    def _text(self, text: str, number: int) -> None:
        """Read a line without a header."""
        if self._known_text(text, number) or self._join(text, number):
            return
        if settings := command_line(text):
            for name, value in settings.items():
                self.facts.set_variable(name, value)
            return
        if " via " in text and self._orphan(text, number):
            return
        if "NCCL" in text:
            mentions = "(other programs' lines that mention NCCL)"
            self.facts.count(self.facts.unknown, text, number, mentions)
        else:
            self.facts.app_lines += 1

    def _known_text(self, text: str, number: int) -> bool:
        facts = self.facts
        bare = text.lstrip()
        if self._bare_system(text, number):
            return True
        if bare.startswith("#"):
            if self.tables.comment(bare, number - self._offset()):
                self._new_run()
                for run in self.tables.runs[-1:]:
                    facts.clean_hosts.update(
                        device.host for device in run.devices[-1:]
                    )
                return True
            if _HEADING.match(bare) and self._bare != NONE:
                self._bare = NONE
            return True
        if self.tables.text(text, number - self._offset()):
            self._new_run()
            return True
        if version := note_version(text):
            version(facts, NONE, number)
            return True
        if "Watchdog" in text and (match := _WATCHDOG.search(text)):
            timeout = f"rank {match[1]}: {match[3]} {match[2]} ran over {int(match[4]) / 1000:g} s"
            kind = f"{match[3]} number {match[2]} over {int(match[4]) / 1000:g} s"
            facts.count(facts.timeouts, timeout, number, kind)
            return True
        word = bare.partition(" ")[0]
        fill = OF_GRAPHS[word](bare) if word in OF_GRAPHS else None
        if fill is None:
            return False
        self._indent = text[: len(text) - len(bare)]
        return fill(facts, self._bare_thread(), number) is not False

    def _bare_system(self, text: str, number: int) -> bool:
        """Read a line of a topology print without headers."""
        if self._bare == NONE:
            return False
        thread = self.facts.bare_threads[self._bare]
        if not self.facts.threads[thread].in_system:
            return False
        return system_line(
            self.facts, thread, number, text.removeprefix(self._indent)
        )

    def _bare_thread(self) -> int:
        """Return the thread of messages without header; all up to a heading belong together."""
        facts = self.facts
        if self._bare == NONE:
            self._bare = len(facts.bare_threads)
            thread = facts.thread_of("", -2 - self._bare, NONE, NONE)
            facts.bare_threads.append(thread)
        return facts.bare_threads[self._bare]

    def _offset(self) -> int:
        return self.facts.file_lines[-1]

    def _new_run(self) -> None:
        if len(self.tables.runs) != self._run_lines:
            self._run_lines = len(self.tables.runs)
            self.facts.next_run()
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
        writer_rank = int(match[5] if match[7] == "receive" else match[3])
        if not self._afford(1 + len(facts.members) // 100):
            return False
        writers = [
            m for m in facts.members if m.run == facts.run and m.rank == writer_rank
        ]
        if len(writers) != 1:
            return False
        facts.rejoined += 1
        fill = OF_GRAPHS["Channel"](match[0])
        return (
            fill is not None and fill(facts, writers[0].thread, number) is not False
        )

    def _join(self, text: str, number: int) -> bool:
        """Append a rest to the only head that it completes.

        The result is a connection, or a header of a known thread.
        """
        is_complete = "NCCL INFO " in text
        if not self._heads or len(text) > (
            256 if is_complete or " via " in text else _SHORT_REST
        ):
            return False
        self._heads = [
            head for head in self._heads if head[1] > number - _HEADS_LIVE
        ]
        fitting: list[tuple[int, LinePart]] = []
        for i, (head, _) in enumerate(self._heads):
            if not is_complete and " via " not in head and " via " not in text:
                continue
            if not self._afford(1):
                return False
            result = parts((head + text).encode(), self.facts.clean_hosts)
            if len(result) == 1 and result[0].host and result[0].level == "INFO":
                part = result[0]
                match = CONNECTION.match(part.text)
                torn_header = is_complete and self.facts.knows(
                    part.host, part.pid, part.tid, part.device
                )
                if torn_header or (
                    match and parse_route(match[8].rstrip()) is not None
                ):
                    fitting.append((i, part))
        if len({(p.host, p.pid, p.tid, p.text) for _, p in fitting}) != 1:
            return False
        i, part = fitting[-1]
        del self._heads[i]
        self.facts.rejoined += 1
        self.message(self._thread(part, NONE), number, part.text.encode())
        return True


_STAMP_END = 1 << 53
"""Upper bound of a time stamp [us since 1970]: in ns it fits into 63 bits."""


def _rebuilt(part: LinePart) -> str:
    """Return a part's line in its original form."""
    where = f"{part.host}:{part.pid}:{part.tid} " if part.host else ""
    device = f"[{part.device}] " if part.device != NONE else ""
    return f"{where}{device}NCCL {part.level} {part.text}"
