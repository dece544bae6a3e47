"""Engine run in slices, for Ctrl-C, progress, histories and the wall-clock limit.

Stopping an engine between slices changes no result: it stops only between two timestamps. Progress covers the
preparation until the engine starts; notebooks show it in place of a terminal's bar.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import EnvironmentFailure, InputError, TimeLimitReached
from clusim.base.units import format_time
from clusim.engine.abi import Engine, Mode, State, Stop
from clusim.engine.image import Image
from clusim.results.bins import BinRecorder

PS_PER_S = 10**12


class Watch:
    """Wall-clock limit of a run from its construction on, and reports of its preparation.

    Preparation checks it between its parts (`begins`). A command also calls `interrupt` from a timer, so that
    one long part, such as reading a large file, ends as well.

    Parameters
    ----------
    limit_ps : int or None
        Wall-clock limit of the run, all its preparations included [ps]; None is unlimited.
    tell : callable or None
        Called with the name of each part of the preparation.
    """

    def __init__(
        self, limit_ps: int | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        if limit_ps is not None and limit_ps < 1:
            raise InputError(f"time limit {limit_ps} ps: must be positive")
        self.limit_ps = limit_ps
        self.tell = tell
        self._preparing = "its input was read"
        self._end_s = (
            None if limit_ps is None else time.monotonic() + limit_ps / PS_PER_S
        )

    @property
    def over(self) -> bool:
        """True if the limit is reached."""
        return self._end_s is not None and time.monotonic() >= self._end_s

    @property
    def words(self) -> str:
        """Text of the limit."""
        return f"time limit of {format_time(self.limit_ps or 0)}"

    def begins(self, part: str) -> None:
        """Report the next part of the preparation.

        Raises
        ------
        TimeLimitReached
            The limit was reached before the simulation began.
        """
        self._preparing = part
        self.interrupt()
        if self.tell is not None:
            self.tell(part)

    def simulates(self) -> None:
        """Record that an engine runs from now on, which checks `over` itself."""
        self._preparing = ""

    def interrupt(self) -> None:
        """Raise `TimeLimitReached` if the limit is reached before the simulation began."""
        if self._preparing and self.over:
            raise TimeLimitReached(
                f"{self.words}: reached before {self._preparing}; use a longer limit"
            )


EngineName = Literal["c", "reference"]
Progress = Callable[[float, int], None]
"""Callback with the fraction done (0 to 1) and the simulated time [ps]."""

SLICE_S = 0.05
"""Target wall time of one slice, the response time of Ctrl-C [s]."""

MOST_THREADS = 4
"""Default maximum of engine threads: beyond, the distributing thread is the limit."""

EDGES = 16
"""Maximum number of bin edges that the engine samples without a stop."""

SHOW_S = 0.05
"""Wall time above which the progress is not computed after every slice [s]."""


class Sink(Protocol):
    """Receiver of a run's records, such as a trace file.

    Attributes
    ----------
    takes_proxies : bool
        Whether to also pass the records of proxies, which are not in the schedule.
    """

    takes_proxies: bool

    def records(self, records: Array) -> None:
        """Receive completion records, in time order."""
        ...

    def tick(self, now_ps: int, engine: Engine, recorder: BinRecorder) -> None:
        """Handle the end of a slice; may flush."""
        ...


def running_tasks() -> int:
    """Return the number of tasks that the computer executes now or could, this one included; 1 if unknown."""
    try:
        return int(
            Path("/proc/loadavg").read_text("ascii").split()[3].partition("/")[0]
        )
    except (OSError, ValueError, IndexError):
        return 1


def idle_cores(cores: int, running: int) -> int:
    """Return how many of `cores` run this program alone beside `running` tasks, itself included; at least 1.

    A thread pays on an idle core only: two threads that share a core with other programs are up to 24% slower than one.
    """
    return max(1, min(cores, (os.cpu_count() or cores) - (running - 1)))


def start_engine(
    image: Image, engine: str, records: bool, threads: int | None = 1
) -> Engine:
    """Return the engine called `engine`, loaded with `image`.

    Parameters
    ----------
    threads : int or None
        Most threads of the C engine; None: `idle_cores`, at most `MOST_THREADS`.
    """
    if engine == "reference":
        from clusim.engine import reference

        return reference.ReferenceSimulation(image, records=records)
    if engine != "c":
        raise InputError(f"engine {engine!r}: unknown; use c or reference")
    try:
        from clusim.engine import simulation as compiled
    except ImportError as error:
        raise EnvironmentFailure(
            f"C engine: not built ({error}); run `pip install .`, or use the reference engine"
        ) from None
    if threads is None:
        threads = min(
            idle_cores(len(os.sched_getaffinity(0)), running_tasks()), MOST_THREADS
        )
    return compiled.Simulation(image, records=records, threads=threads)


@contextmanager
def _deferred_interrupt() -> Iterator[list[bool]]:
    """Turn Ctrl-C into a flag that is checked between slices, so that it cannot get lost.

    An exception raised while a library calls back into Python may be swallowed there. A second
    Ctrl-C acts at once. Outside the main thread, or with the caller's handler, there is no change.
    """
    is_requested = [False]
    usual = signal.default_int_handler
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not usual:
        yield is_requested
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if is_requested[0]:
            usual(number, frame)
        is_requested[0] = True

    signal.signal(signal.SIGINT, ask)
    try:
        yield is_requested
    finally:
        signal.signal(signal.SIGINT, usual)


class Session:
    """One run in progress.

    Parameters
    ----------
    instances : int, optional
        Number of the image's first instances that are the schedule's; the others are proxies. By default all.
    packet_hops : int, optional
        Estimated packet-hops of the complete run, the base of `part_done`; 0 is unknown.
    """

    def __init__(
        self,
        image: Image,
        engine: Engine,
        recorder: BinRecorder,
        instances: int | None = None,
        packet_hops: int = 0,
    ) -> None:
        self.image = image
        self._instances = instances
        self.engine = engine
        self.recorder = recorder
        self.wall_s = 0.0
        self._budget = 20_000
        self._until_ps = -1
        self._taken = 0
        self._show_at_s = 0.0
        self._packet_hops = packet_hops

    def run(
        self,
        sinks: list[Sink],
        progress: Progress | None = None,
        watch: Watch | None = None,
    ) -> Stop:
        """Run to the end; return `Stop.DONE` or `Stop.DEADLOCK`. Sinks receive all records.

        At the limit of `watch`, `Stop.EVENTS` is returned. After DONE the laws of every run are checked, so that no
        returned number breaks one.

        Raises
        ------
        InternalError
            The engine broke a law, e.g. of conservation.
        RangeExceeded
            The run would leave the value ranges of the engines.
        KeyboardInterrupt
            Ctrl-C was pressed; the sinks have all earlier records.
        """
        with _deferred_interrupt() as interrupted:
            watch = watch or Watch()
            watch.simulates()
            return self._run(sinks, progress, watch, interrupted)

    def _run(
        self,
        sinks: list[Sink],
        progress: Progress | None,
        watch: Watch,
        interrupted: list[bool],
    ) -> Stop:
        while True:
            stop = self._slice()
            records = self.engine.records() if sinks else None
            for sink in sinks:
                mine = (
                    records if sink.takes_proxies else self._without_proxies(records)
                )
                if mine is not None and len(mine):
                    sink.records(mine)
                sink.tick(self.engine.now_ps, self.engine, self.recorder)
            if stop is Stop.DONE:
                self.engine.check_conservation()
            if stop in (Stop.DONE, Stop.DEADLOCK):
                return stop
            if interrupted[0]:
                raise KeyboardInterrupt
            if watch.over:
                self.sample()
                return Stop.EVENTS
            if progress is not None and time.perf_counter() > self._show_at_s:
                began_s = time.perf_counter()
                progress(self.part_done(), self.engine.now_ps)
                # On large systems the progress is slow to compute: spend at most one part in twenty on it.
                took_s = time.perf_counter() - began_s
                self._show_at_s = began_s + (20 * took_s if took_s > SHOW_S else 0)

    def _without_proxies(self, records: Array | None) -> Array | None:
        if self._instances is None or records is None:
            return records
        return records[records["instance"] < self._instances]

    def _slice(self) -> Stop:
        """Advance for about `SLICE_S`, across any bin edges; close the last bin at the end."""
        end_s = time.perf_counter() + SLICE_S
        while True:
            if self.engine.now_ps >= self._until_ps:
                self._plan()
            began_s = time.perf_counter()
            stop = self.engine.run(self._until_ps, self._budget)
            took_s = time.perf_counter() - began_s
            self.wall_s += took_s
            if stop is Stop.EVENTS and took_s < SLICE_S / 2:
                self._budget *= 2
            self._take()
            if stop in (Stop.DONE, Stop.DEADLOCK):
                self.sample()
            if stop is not Stop.TIME or time.perf_counter() > end_s:
                return stop

    def _plan(self) -> None:
        """Have the engine sample the next edges of bins, and stop at the last one."""
        recorder = self.recorder
        count = min(recorder.edges_left, EDGES)
        flows = recorder.flows.numbers
        self.engine.sample(recorder.next_edge_ps, recorder.width_ps, count, flows)
        self._until_ps = recorder.next_edge_ps + (count - 1) * recorder.width_ps
        self._taken = 0

    def _take(self) -> None:
        """Close the bins that have ended."""
        samples = self.engine.samples()
        self.recorder.add(*(rows[self._taken :] for rows in samples))
        self._taken = len(samples[0])

    def sample(self) -> None:
        """Close the current bin at the present time."""
        engine = self.engine
        state = engine.wires(), engine.mem_bytes_256(), engine.flows()
        self.recorder.sample(engine.now_ps, *state)

    def part_done(self) -> float:
        """Return the fraction of packet-hops that is done, from 0 to 1.

        Without packet-hops, it is the fraction of completed programs.
        """
        if self._packet_hops:
            return min(
                1.0, int(self.engine.wires()["packets"].sum()) / self._packet_hops
            )
        states = self.engine.instance_states()["state"]
        return float(np.mean(states == State.DONE)) if len(states) else 0.0


def loop_counts(image: Image) -> Array:
    """Return the number of loops of each instance through its template, at least 1."""
    rows = image.instances
    chunk = np.maximum(1, rows["chunk_bytes"].astype(np.float64))
    template = image.templates[rows["template"]] if len(rows) else image.templates
    span = np.where(
        template["mode"] == Mode.INTERLEAVED, chunk * template["nchunks"], chunk
    )
    return np.asarray(np.maximum(1.0, np.ceil(rows["length"] / span)))


QUIET_S = 2.0
"""A shorter call shows no progress [s]."""

BETWEEN_S = 0.2
"""Least time between two updates of the bar [s]."""


class _NotebookBar:
    """Progress bar below a notebook cell, removed at the end."""

    def __init__(
        self, display: Callable[..., Any], html: Callable[[str], Any]
    ) -> None:
        self._display, self._html = display, html
        self._handle: Any = None
        self._next_s = time.monotonic() + QUIET_S

    def draw(self, part: float, said: str) -> None:
        """Show the progress of the call."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + BETWEEN_S
        bar = self._html(
            f'<progress max="1" value="{part:.3f}"></progress> {part:.0%}, {said}'
        )
        if self._handle is None:
            self._handle = self._display(bar, display_id=True)
        else:
            self._handle.update(bar)

    def stop(self) -> None:
        """Remove the bar."""
        if self._handle is not None:
            self._handle.update(self._html(""))


def _bar() -> _NotebookBar | None:
    """Return a bar if this process is the kernel of a notebook."""
    # Outside notebooks IPython is not needed, and its import is slow.
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import HTML, display

    return _NotebookBar(display, HTML)


@contextmanager
def _stop(bar: _NotebookBar | None) -> Iterator[_NotebookBar | None]:
    try:
        yield bar
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def shown_in_notebook(progress: Progress | None) -> Iterator[Progress | None]:
    """Yield the progress callback of a run: `progress`, else a bar in notebooks, else None."""
    with _stop(None if progress is not None else _bar()) as bar:
        if bar is None:
            yield progress
        else:
            yield lambda part, now_ps: bar.draw(
                part, f"{format_time(now_ps)} simulated"
            )


@contextmanager
def counted_in_notebook(
    progress: Callable[[int, int], None] | None,
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield the same for counted work."""
    with _stop(None if progress is not None else _bar()) as bar:
        if bar is None:
            yield progress
        else:
            yield lambda done, total: bar.draw(
                done / max(1, total), f"{done} of {total} calls"
            )
