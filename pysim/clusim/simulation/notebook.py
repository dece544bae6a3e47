"""Progress of long calls in notebooks, where there is no terminal to draw a bar on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from clusim.base.units import format_time
from clusim.simulation.session import Progress

QUIET_S = 2.0
"""A call shorter than this shows nothing [s]."""

BETWEEN_S = 0.2
"""Least time between two looks of the bar [s]."""


class _NotebookBar:
    """A bar that a notebook draws below the cell while it runs, and takes away at the end."""

    def __init__(self, display: Callable[..., Any], html: Callable[[str], Any]) -> None:
        self._display, self._html = display, html
        self._handle: Any = None
        self._next_s = time.monotonic() + QUIET_S

    def draw(self, part: float, said: str) -> None:
        """Show how far the call is."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + BETWEEN_S
        bar = self._html(f'<progress max="1" value="{part:.3f}"></progress> {part:.0%}, {said}')
        if self._handle is None:
            self._handle = self._display(bar, display_id=True)
        else:
            self._handle.update(bar)

    def stop(self) -> None:
        """Take the bar away."""
        if self._handle is not None:
            self._handle.update(self._html(""))


def _bar() -> _NotebookBar | None:
    """Return a bar if this process is the kernel of a notebook."""
    # Who is not in a notebook has no use for IPython, which takes long to import.
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import HTML, display

    return _NotebookBar(display, HTML)


@contextmanager
def _stopped(bar: _NotebookBar | None) -> Iterator[_NotebookBar | None]:
    try:
        yield bar
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def shown_in_notebook(progress: Progress | None) -> Iterator[Progress | None]:
    """Give who is told of a run's progress: `progress`, in a notebook otherwise a bar below the cell, else nobody."""
    with _stopped(None if progress is not None else _bar()) as bar:
        if bar is None:
            yield progress
        else:
            yield lambda part, now_ps: bar.draw(part, f"{format_time(now_ps)} simulated")


@contextmanager
def counted_in_notebook(
    progress: Callable[[int, int], None] | None,
) -> Iterator[Callable[[int, int], None] | None]:
    """Give the same for work that is counted."""
    with _stopped(None if progress is not None else _bar()) as bar:
        if bar is None:
            yield progress
        else:
            yield lambda done, total: bar.draw(done / max(1, total), f"{done} of {total} calls")
