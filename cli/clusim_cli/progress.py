"""Progress on a terminal, and a clean end when Ctrl-C is pressed."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusim.base.files import destination
from clusim.base.units import format_time
from clusim_cli.terminal import draws

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from clusim.results.resultjson import Unfinished

QUIET_S = 2.0
"""A run shorter than this shows no progress [s]."""


class _Recorded:
    """State of an incomplete trace file since construction."""

    def __init__(self, trace_out: Path | None) -> None:
        self._file = (
            None if trace_out is None else Path(f"{destination(trace_out)}.partial")
        )
        self._before = self._stamp()

    def _stamp(self) -> tuple[int, int] | None:
        if self._file is None or not self._file.exists():
            return None
        about = self._file.stat()
        return about.st_ino, about.st_mtime_ns

    @property
    def words(self) -> str:
        """Results kept since then, after the cause of the end."""
        if self._stamp() in (None, self._before):
            return ""
        return f"; the partial trace is {self._file}"


class Shown:
    """Progress display: after `QUIET_S`, preparation and its time, then a bar with time left.

    It is drawn on stderr.

    Parameters
    ----------
    drawn : bool
        True to draw the display.
    trace_out : path or None
        Trace file.
    """

    def __init__(self, drawn: bool, trace_out: Path | None = None) -> None:
        self._trace = _Recorded(trace_out)
        self._began_s = time.monotonic()
        self._bar: RichProgress | None = None
        self._what = ""
        self._late: threading.Timer | None = None
        self._lock = threading.Lock()
        self._drawn = drawn
        self.now_ps = 0

    def begins(self, part: str) -> None:
        """Show the current preparation; long indivisible ones are shown from `QUIET_S` on."""
        if not self._drawn:
            return
        with self._lock:
            self._what = part
            if self._bar is not None:
                self._bar.reset(self._bar.task_ids[0], total=None, now=part)
            elif self._late is None:
                self._late = threading.Timer(QUIET_S, self._show_late)
                self._late.daemon = True
                self._late.start()

    def _show_late(self) -> None:
        with self._lock:
            if self._drawn and self._bar is None and self._what:
                self._bar = _start(self._what)

    def progress(self, part: float, now_ps: int) -> None:
        """Show how far the run is."""
        self.now_ps = now_ps
        if not self._drawn:
            return
        with self._lock:
            if self._bar is None and time.monotonic() - self._began_s >= QUIET_S:
                self._bar = _start("")
            if self._bar is not None:
                task = self._bar.task_ids[0]
                if self._what:  # the remaining time is estimated from the run only
                    self._bar.reset(task)
                now = f"simulated {format_time(now_ps):>10}"
                self._bar.update(task, total=1.0, completed=part, now=now)
            self._what = ""

    def ended(self, words: str) -> int:
        """Report on stderr the reason for an early end and the kept trace; return the exit code."""
        click.echo(f"clusim: {words}{self._trace.words}", err=True)
        return 1

    def interrupted(self, number: int) -> int:
        """Report on stderr the progress at a signal and the kept trace; return the exit code."""
        self.stop()
        at = f" at {format_time(self.now_ps)} simulated" if self.now_ps else ""
        by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
        with suppress(OSError):  # the terminal may be gone
            click.echo(f"clusim: interrupted{by}{at}{self._trace.words}", err=True)
        return 128 + number

    def stop(self) -> None:
        """Remove the bar from the screen."""
        with self._lock:
            self._drawn = False
            if self._bar is not None:
                self._bar.stop()


def _drawn(wanted: bool) -> bool:
    """Return True if the bar can be drawn: on a capable terminal, with rich installed."""
    return wanted and draws(sys.stderr) and find_spec("rich") is not None


def _start(part: str) -> RichProgress:
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("{task.fields[now]}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.start()
    bar.add_task("run", total=None, now=part)
    return bar


@contextmanager
def shown_progress(wanted: bool, trace_out: Path | None) -> Iterator[Shown]:
    """Yield the callbacks of a run; on Ctrl-C, SIGTERM or SIGHUP report its progress and the kept trace."""
    bar = Shown(_drawn(wanted), trace_out)
    try:
        yield bar
    except KeyboardInterrupt:
        raise SystemExit(bar.interrupted(signal.SIGINT)) from None
    except SystemExit as error:
        if isinstance(error.code, int) and error.code > 128:
            bar.interrupted(error.code - 128)
        raise
    finally:
        bar.stop()


def said_ended(ended: Unfinished | None, time_ps: int, shown: Shown) -> int:
    """Return the exit code of a run; report on stderr the time of an early end."""
    return 0 if ended is None else shown.ended(ended.words(time_ps))


@contextmanager
def counted_progress(
    wanted: bool, noun: str
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback for counted work, which draws a bar after `QUIET_S` on a terminal."""
    if not _drawn(wanted):
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.completed:.0f} of {task.total:.0f} " + noun),
        progress.BarColumn(),
        progress.TimeRemainingColumn(),
    )
    bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
    began_s = time.monotonic()

    def draw(done: int, total: int) -> None:
        if not bar.tasks:
            if time.monotonic() - began_s < QUIET_S:
                return
            bar.start()
            bar.add_task("work", total=total)
        bar.update(bar.task_ids[0], completed=done)

    try:
        yield draw
    finally:
        bar.stop()
