"""Run an engine to its end in slices, so that Ctrl-C works, progress shows and histories are kept.

Stopping an engine between slices changes no result: it only ever stops between two timestamps.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import EnvironmentFailure, InputError
from clusim.engine.abi import Mode, State, Stop
from clusim.engine.image import Image
from clusim.engine.outcome import Engine
from clusim.results.bins import BinRecorder
from clusim.simulation.time_limit import Watch

Array = NDArray[Any]
EngineName = Literal["c", "reference"]
Progress = Callable[[float, int], None]
"""Called now and then with the part done (0 to 1) and the simulated time [ps]."""

SLICE_S = 0.05
"""Aim for the wall time of one slice: how long Ctrl-C may take to be seen [s]."""

MOST_THREADS = 4
"""Threads of the engine unless another number is asked for: what one of them has to hand out limits more."""

SHOW_S = 0.05
"""Wall time from which on it is too long to say after every slice how much is done [s]."""


class Sink(Protocol):
    """Takes what a run gives while it runs; a trace file is one.

    Attributes
    ----------
    takes_proxies : bool
        Whether it wants the records of proxies as well, which are not in the schedule.
    """

    takes_proxies: bool

    def records(self, records: Array) -> None:
        """Take completion records, in time order."""
        ...

    def tick(self, now_ps: int, engine: Engine, recorder: BinRecorder) -> None:
        """Be called after each slice; may flush."""
        ...


def start_engine(image: Image, engine: str, records: bool, threads: int | None = 1) -> Engine:
    """Return the engine called `engine`, loaded with `image`.

    Parameters
    ----------
    threads : int or None
        Most threads of the C engine; None: one for every core, at most `MOST_THREADS`.
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
        threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)
    return compiled.Simulation(image, records=records, threads=threads)


@contextmanager
def _deferred_interrupt() -> Iterator[list[bool]]:
    """Turn Ctrl-C into a flag that is looked at between slices, so that it cannot get lost.

    An exception that arrives while a library calls back into Python may be swallowed there. A second
    Ctrl-C acts at once. Outside the main thread, or with a handler of the caller's, nothing is changed.
    """
    asked = [False]
    usual = signal.default_int_handler
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not usual:
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked[0]:
            usual(number, frame)
        asked[0] = True

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, usual)


class Session:
    """One run in progress.

    Parameters
    ----------
    instances : int, optional
        How many of the image's first instances are the schedule's; the others are proxies. By default all.
    packet_hops : int, optional
        Estimated packet-hops of the whole run, of which `part_done` is a share; 0 is not known.
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
        self._show_at_s = 0.0
        self._packet_hops = packet_hops

    def run(
        self, sinks: list[Sink], progress: Progress | None = None, watch: Watch | None = None
    ) -> Stop:
        """Run to the end and return `Stop.DONE` or `Stop.DEADLOCK`; every sink sees every record.

        Where the time of `watch` is up before that, `Stop.EVENTS` is returned. After DONE the laws of every run are
        checked, so that nobody who gets here has a number that breaks one.

        Raises
        ------
        InternalError
            The engine broke a law, e.g. of conservation.
        RangeExceeded
            The run would leave the ranges that engines compute with.
        KeyboardInterrupt
            Ctrl-C was pressed; what came before it is with the sinks.
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
                mine = records if sink.takes_proxies else self._without_proxies(records)
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
                # On large machines it takes a while to look at all programs: at most one part in twenty.
                took_s = time.perf_counter() - began_s
                self._show_at_s = began_s + (20 * took_s if took_s > SHOW_S else 0)

    def _without_proxies(self, records: Array | None) -> Array | None:
        if self._instances is None or records is None:
            return records
        return records[records["instance"] < self._instances]

    def _slice(self) -> Stop:
        """Advance for about `SLICE_S`, past as many bin edges as come; close the last bin at the end."""
        end_s = time.perf_counter() + SLICE_S
        while True:
            began_s = time.perf_counter()
            stop = self.engine.run(self.recorder.next_edge_ps, self._budget)
            took_s = time.perf_counter() - began_s
            self.wall_s += took_s
            if stop is Stop.EVENTS and took_s < SLICE_S / 2:
                self._budget *= 2
            if stop in (Stop.TIME, Stop.DONE, Stop.DEADLOCK):
                self.sample()
            if stop is not Stop.TIME or time.perf_counter() > end_s:
                return stop

    def sample(self) -> None:
        """Close the present bin here."""
        engine = self.engine
        self.recorder.sample(engine.now_ps, engine.wires(), engine.mem_bytes_256())

    def part_done(self) -> float:
        """Return the part of the packet-hops that is done, from 0 to 1.

        Where the run has none, it is the part of the programs that are done.
        """
        if self._packet_hops:
            return min(1.0, int(self.engine.wires()["packets"].sum()) / self._packet_hops)
        states = self.engine.instance_states()["state"]
        return float(np.mean(states == State.DONE)) if len(states) else 0.0


def loop_counts(image: Image) -> Array:
    """Return the number of loops of each instance through its template, at least 1."""
    rows = image.instances
    chunk = np.maximum(1, rows["chunk_bytes"].astype(np.float64))
    template = image.templates[rows["template"]] if len(rows) else image.templates
    span = np.where(template["mode"] == Mode.INTERLEAVED, chunk * template["nchunks"], chunk)
    return np.asarray(np.maximum(1.0, np.ceil(rows["length"] / span)))
