"""Progress on a terminal, and a clean end when Ctrl-C is pressed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from clusim.files import destination
from clusim.units import format_time

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress as RichProgress

    from clusim.run.session import Progress

__all__ = ["counted_progress", "shown_progress"]

QUIET_S = 2.0
"""A run shorter than this shows no progress [s]."""


class _Bar:
    """Draws nothing for `QUIET_S`, then a bar with the time left on stderr."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._bar: RichProgress | None = None
        self.now_ps = 0

    def watch(self, _part: float, now_ps: int) -> None:
        """Remember how far the run is; for when nothing is drawn."""
        self.now_ps = now_ps

    def draw(self, part: float, now_ps: int) -> None:
        """Show how far the run is."""
        self.now_ps = now_ps
        if self._bar is None and time.monotonic() - self._began_s >= QUIET_S:
            self._bar = _start()
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=part, now=format_time(now_ps))

    def stop(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()


def _drawn(wanted: bool) -> bool:
    """Return whether to draw: on a terminal, if rich is installed."""
    return wanted and sys.stderr.isatty() and find_spec("rich") is not None


def _start() -> RichProgress:
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("simulated {task.fields[now]:>10}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.start()
    bar.add_task("run", total=1.0, now="")
    return bar


@contextmanager
def shown_progress(wanted: bool, trace_out: Path | None) -> Iterator[Progress]:
    """Give the callback for `simulate`; on Ctrl-C say how far the run got and what is kept."""
    bar = _Bar()
    try:
        yield bar.draw if _drawn(wanted) else bar.watch
    except KeyboardInterrupt:
        bar.stop()
        kept = f"; what was recorded is in {destination(trace_out)}.partial" if trace_out else ""
        click.echo(f"clusim: interrupted at {format_time(bar.now_ps)} simulated{kept}", err=True)
        raise SystemExit(130) from None
    finally:
        bar.stop()


@contextmanager
def counted_progress(wanted: bool, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give a callback for work that is counted, which draws a bar after `QUIET_S` on a terminal."""
    if not _drawn(wanted):
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.completed:.0f} of {task.total:.0f} " + what),
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
