"""Reader of log files into `RawLog` and `TableReader`."""

from __future__ import annotations

from collections.abc import Iterable

from clusim.base.errors import InputError
from clusim.formats.logs.dressing import Dressing
from clusim.formats.logs.line_reader import LineReader
from clusim.formats.logs.raw_log import RawLog
from clusim.formats.logs.source import STDIN, blocks
from clusim.formats.logs.tables import TableReader


class LogReader:
    """Reader of any number of logs in sequence; `facts` and `tables` have their content."""

    def __init__(self) -> None:
        """Start empty."""
        self.facts = RawLog()
        self.tables: list[TableReader] = []

    def read(self, names: Iterable[str]) -> None:
        """Read these logs; ``-`` is standard input."""
        for name in names:
            self._file(name)

    def _file(self, name: str) -> None:
        facts = self.facts
        base, nulls, empty = facts.lines, 0, True
        tables, dressing = TableReader(name), Dressing()
        lines = LineReader(facts, tables)

        def report(text: str) -> None:
            facts.problems.append((name, text))

        for block in blocks(name, report):
            if empty:
                self._begin(name, base, tables)
                empty = False
            facts.bytes += len(block)
            nulls += block.count(0)
            lines.block(dressing.off(block))
        if empty:
            report("is empty")
            self._begin(name, base, tables)
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
        lines.close()

    def _begin(self, name: str, base: int, tables: TableReader) -> None:
        self.facts.files.append(name)
        self.facts.file_lines.append(base)
        self.tables.append(tables)


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
