"""Result of a run: plain columns and numbers, equal in memory and read back from a trace.

Bandwidths follow nccl-tests: ``algbw = size / time`` and ``busbw = algbw * factor``, where the factor is
the number of bytes that every rank must send per byte of the collective with an optimal point-to-point algorithm
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). GB is 10^9 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.display import Columns, Shown, Summary
from clusim.base.errors import InputError, lacking
from clusim.base.json_schema import JsonObject
from clusim.base.records import dataclass
from clusim.base.terms.operations import bus_factor
from clusim.base.terms.times import KERNEL, includes
from clusim.base.units import format_size, format_time
from clusim.engine.abi import FaultKind
from clusim.results.bins import COLUMNS, Bins
from clusim.results.diagnosis import Verdict
from clusim.results.provenance import Provenance
from clusim.results.resultjson import (
    Call,
    CallTimes,
    Ended,
    EngineWork,
    InOrderNic,
    Unfinished,
)
from clusim.results.sensitivity import Sensitivity

if TYPE_CHECKING:
    from xarray import Dataset

    from clusim.results.replicated import BlockRows


PS_PER_S = 10**12


def mean_rates_Bps(rate_Bps: Array, faults: Array, time_ps: int) -> Array:
    """Return the mean rate of every wire until `time_ps` with an image's faults [bytes/s]."""
    result = np.array(rate_Bps, np.float64)
    rows = faults[
        (faults["kind"] == FaultKind.RATE) & (faults["time_ps"] < max(1, time_ps))
    ]
    for wire in np.unique(rows["index"]).tolist():
        changes = rows[rows["index"] == wire]
        changes = changes[np.argsort(changes["time_ps"], kind="stable")]
        edges_ps = np.array(
            [0, *changes["time_ps"].tolist(), max(1, time_ps)], np.float64
        )
        rates = [result[wire], *(changes["num"] / changes["den"] * PS_PER_S)]
        result[wire] = float(np.dot(np.diff(edges_ps), rates) / edges_ps[-1])
    return result


@dataclass(frozen=True, slots=True)
class Wires:
    """Wires of the system and their traffic.

    Attributes
    ----------
    names : list of str
        ``"gpu0->nvs1.0"``; one direction of a link.
    classes : list of str
        Link class with the kinds of its two ends: ``"nvlink gpu->switch"``.
    rate_Bps : ndarray, shape (wires,)
        Nominal rate [bytes/s].
    from_endpoint : ndarray of bool, shape (wires,)
        True if the wire leaves an endpoint rather than a switch.
    counters : ndarray, shape (wires,)
        Final counters (`clusim.engine.abi.WIRE_COUNTERS`).
    mean_Bps : ndarray or None
        Mean rate over the run with its faults [bytes/s]; None: no fault touched a wire.
    """

    names: list[str]
    classes: list[str]
    rate_Bps: Array
    from_endpoint: Array
    counters: Array
    mean_Bps: Array | None = None

    @property
    def effective_Bps(self) -> Array:
        """Return the mean rate of the wires: the nominal rate, less faults [bytes/s]."""
        return self.rate_Bps if self.mean_Bps is None else self.mean_Bps


@dataclass(frozen=True, slots=True)
class Tasks:
    """Start and end of every task [ps], -1 if not reached, and the tasks of replicated blocks."""

    names: list[str]
    start_ps: Array
    end_ps: Array
    blocks: BlockRows | None = None


@dataclass(frozen=True, slots=True)
class Messages:
    """Synthetic traffic: one row per message, times in ps, `end_ps` -1 if it did not arrive.

    Messages of one `flow` follow each other.
    """

    source: Array
    destination: Array
    size_bytes: Array
    start_ps: Array
    end_ps: Array
    flow: Array


@dataclass(frozen=True, slots=True, repr=False)
class Result(Shown, JsonObject):
    """One finished (or, read from a partial trace, unfinished) run.

    Attributes
    ----------
    time_ps : int
        From its start to the end of the simulated work [ps].
    wall_s : float
        Wall-clock time of the engine [s].
    in_order : tuple of InOrderNic
        NICs that accept packets in order only and had traffic; empty without such NICs.
    verified : bool or None
        True if the data are right; None if no data were simulated.
    verify_note : str
        Scope of the comparison, or the first difference.
    judge, prove, derive : callable or None
        Its diagnosis by critical path, that proven by simulations, and the derivatives of its time.
    unfinished : Unfinished or None
        Partial result of a run that was ended; None if it is complete, or read from a partial trace.
    followed : str
        Runs from which the time, the only known result, was extrapolated; otherwise empty.
    """

    KEYS = (
        "time_ps",
        "*ended",
        "*call_times",
        "*work",
        "verified",
        "in_order",
        "*provenance",
    )

    time_ps: int
    wall_s: float
    fingerprint: int
    provenance: Provenance
    wires: Wires
    tasks: Tasks
    bins: Bins
    call: Call | None = None
    messages: Messages | None = None
    in_order: tuple[InOrderNic, ...] = ()
    verified: bool | None = None
    verify_note: str = ""
    complete: bool = True
    unfinished: Unfinished | None = None
    followed: str = ""
    judge: Callable[[Result], Verdict] | None = field(
        default=None, repr=False, compare=False
    )
    prove: Callable[[Result], Verdict] | None = field(
        default=None, repr=False, compare=False
    )
    derive: Callable[[Result], Sensitivity] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def verdict(self) -> Verdict:
        """Diagnosis of the run (`clusim.results.diagnosis`): by its critical path, and proven after `diagnose`."""
        if self.judge is None:
            return Verdict(self.time_ps, (), basis="the run was not recorded")
        return self.judge(self)

    def diagnose(self) -> Verdict:
        """Simulate remedies of the run (number: its `confirm`); the bottleneck has the largest saving."""
        return self.verdict if self.prove is None else self.prove(self)

    def sensitivity(self) -> Sensitivity:
        """Return the derivatives of the time by the figures of the hardware, and its interval by their bounds.

        Each derivative is an elasticity: % of the time per % of the figure. They are checked by re-simulation, and the
        interval is simulated, automatically for runs of up to 1,000,000 packet-hops, or with ``confirm=True``.

        Raises
        ------
        InputError
            The completed slices of a larger run were dropped after its verdict, or are in another process.
        """
        if self.derive is None:
            return Sensitivity(
                self.time_ps,
                note="no critical path: the slices of this run are not in memory",
            )
        return self.derive(self)

    @property
    def launched_ps(self) -> int | None:
        """Time of an iteration with launch, as nccl-tests reports it [ps]; None if unknown."""
        context = self.provenance.around
        return (
            context.iteration_ps(self.time_ps)
            if context is not None and self.complete
            else None
        )

    @property
    def model_us(self) -> float | None:
        """Estimate of NCCL's tuner [us]; None if the tuner did not choose."""
        context = self.provenance.around
        return None if context is None else context.model_us

    @property
    def packets(self) -> int:
        """Packets that endpoints sent; a burst counts as all its packets."""
        return int(self.wires.counters["packets"][self.wires.from_endpoint].sum())

    @property
    def packet_hops(self) -> int:
        """Packets summed over all wires."""
        return int(self.wires.counters["packets"].sum())

    @property
    def grants(self) -> int:
        """Packets or bursts the engine moved over a wire one by one."""
        return int(self.wires.counters["grants"].sum())

    def hops_words(self) -> str:
        """Return the packet-hops in words, with the number of burst-hops if bursts were used."""
        words = f"{self.packets:,} packets, {self.packet_hops:,} packet-hops"
        if self.grants == self.packet_hops:
            return words
        return f"{words} as {self.grants:,} burst-hops"

    def rate_words(self) -> str:
        """Return the speed of the engine: packet-hops per second, and the packets of bursts."""
        packets = f"{self.packet_hops / self.wall_s / 1e6:.1f} M packet-hops/s"
        if self.grants == self.packet_hops:
            return packets
        grants = f"{self.grants / self.wall_s / 1e6:.1f} M burst-hops/s"
        return f"{grants} ({packets})"

    @property
    def has_bandwidth(self) -> bool:
        """True if the run is one finished collective, so that it has a bandwidth."""
        return self.call is not None and self.complete

    @property
    def algbw_GBps(self) -> float:
        """Size of the collective over its time [10^9 bytes/s]."""
        call = self._the_call()
        return (
            call.size_bytes * PS_PER_S / self.time_ps / 1e9 if self.time_ps else 0.0
        )

    @property
    def busbw_GBps(self) -> float:
        """Bus bandwidth as nccl-tests defines it [10^9 bytes/s]."""
        call = self._the_call()
        return self.algbw_GBps * bus_factor(call.operation, call.ranks)

    @property
    def utilisation(self) -> Array:
        """Part of the run in which each wire was busy, shape (wires,)."""
        if not self.time_ps:
            return np.zeros(len(self.wires.names))
        return np.asarray(self.wires.counters["busy_ps"] / self.time_ps)

    def summary(self) -> Summary:
        """Return the run, its time and its bandwidth."""
        rows = {"time": format_time(self.time_ps)}
        if not self.complete:
            rows["time"] += ", unfinished"
        title, call = self.provenance.fabric, self.call
        if call is not None:
            size = format_size(call.size_bytes)
            title = f"{call.operation} {size} {call.dtype} over {call.ranks} ranks of {title}"
            rows["plan"] = (
                f"{call.algorithm}, {call.protocol}, {call.channels} channels"
            )
        if self.has_bandwidth:
            launched_ps = self.launched_ps
            launched_us = None if launched_ps is None else launched_ps / 1e6
            rows["includes"] = includes(launched_us, self.model_us)
            rows["algbw"] = f"{self.algbw_GBps:.2f} GB/s"
            rows["busbw"] = f"{self.busbw_GBps:.2f} GB/s"
        facts = [rows["time"], rows["plan"]] if call is not None else [rows["time"]]
        facts += [f"{rows['busbw']} of bus bandwidth"] if self.has_bandwidth else []
        rows["packets"] = self.hops_words()
        if self.verified is not None:
            rows["data"] = "right" if self.verified else f"wrong: {self.verify_note}"
        rows |= {"fingerprint": f"{self.fingerprint:016x}"} if self.complete else {}
        return Summary(title, tuple(facts), " ".join(self.provenance.notes), rows)

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return wires with totals, tasks, histories of wires and memory, and any messages."""
        result: dict[str, Callable[[], Columns]] = {
            "wires": self._wire_columns,
            "tasks": self._task_columns,
            "history": self._history_columns,
            "memory": self._memory_columns,
        }
        messages = self.messages
        if messages is not None:
            result["messages"] = lambda: {
                f.name: getattr(messages, f.name) for f in fields(messages)
            }
        return result

    def _wire_columns(self) -> Columns:
        wires = self.wires
        head = {
            "wire": wires.names,
            "class": wires.classes,
            "rate_Bps": wires.rate_Bps,
        }
        counters = {
            name: wires.counters[name] for name in wires.counters.dtype.names or ()
        }
        return {**head, "from_endpoint": wires.from_endpoint, **counters}

    def _task_columns(self) -> Columns:
        tasks = self.tasks
        return {
            "name": tasks.names,
            "start_ps": tasks.start_ps,
            "end_ps": tasks.end_ps,
        }

    def _history_columns(self) -> Columns:
        start_ps, names = self.bins.edge_ps[:-1], np.array(self.wires.names, object)
        values = {
            COLUMNS[name]: table.ravel() for name, table in self.bins.wires.items()
        }
        return {
            "wire": np.repeat(names, len(start_ps)),
            "time_ps": np.tile(start_ps, len(names)),
            **values,
        }

    def _memory_columns(self) -> Columns:
        start_ps, endpoints = self.bins.edge_ps[:-1], len(self.bins.hbm_bytes)
        return {
            "endpoint": np.repeat(np.arange(endpoints), len(start_ps)),
            "time_ps": np.tile(start_ps, endpoints),
            "bytes": self.bins.hbm_bytes.ravel(),
        }

    def to_xarray(self) -> Dataset:
        """Return the histories as an xarray Dataset.

        Histories of wires have the dimensions (`wire`, `time`), of memory (`endpoint`, `time`).

        Names, units and descriptions are the same as in a trace (``docs/trace-format.md``): `time` is the start of a
        bin [ps], ``busy`` [ps], ``bytes`` [B]. `wire_class` and `rate` [B/s] are coordinates of `wire`.

        Raises
        ------
        EnvironmentFailure
            xarray is not installed.
        """
        try:
            from xarray import Dataset
        except ModuleNotFoundError:
            raise lacking("to_xarray", "xarray", "notebook") from None
        from clusim.results.trace.layout import about

        wires, bins = self.wires, self.bins
        values: dict[str, Any] = {
            name: (("wire", "time"), table, about(f"/wires/{name}"))
            for name, table in bins.wires.items()
        }
        values["memory_bytes"] = (
            ("endpoint", "time"),
            bins.hbm_bytes,
            about("/hbm/bytes"),
        )
        direction, of_class = (
            {"long_name": t} for t in ("one direction of a link", "class of wire")
        )
        coords = {
            "wire": ("wire", np.array(wires.names, object), direction),
            "wire_class": ("wire", np.array(wires.classes, object), of_class),
            "rate": ("wire", wires.rate_Bps, about("/fabric/rate")),
            "time": ("time", bins.edge_ps[:-1], about("/wires/time")),
            "endpoint": ("endpoint", np.arange(len(bins.hbm_bytes))),
        }
        return Dataset(
            values,
            coords,
            {"time_ps": self.time_ps, "fabric": self.provenance.fabric},
        )

    def _the_call(self) -> Call:
        if self.call is None:
            raise InputError(
                "bandwidth: the run is not one collective; look at its tasks instead"
            )
        if not self.complete:
            raise InputError("bandwidth: the run did not finish")
        return self.call

    def _per_s(self, count: int) -> int | None:
        """Return the engine's work per second; None of an unfinished run."""
        has_rate = self.complete and not self.followed and self.wall_s > 0
        return round(count / self.wall_s) if has_rate else None

    @property
    def call_times(self) -> CallTimes | None:
        """Bandwidths and times of the only collective of a run; None for other runs."""
        call, launched_ps = self.call, self.launched_ps
        if call is None:
            return None
        return CallTimes(
            self.algbw_GBps if self.complete else None,
            self.busbw_GBps if self.complete else None,
            call,
            KERNEL,
            None if launched_ps is None else launched_ps / 1e6,
            self.model_us,
        )

    @property
    def work(self) -> EngineWork:
        """Traffic of the engine, and its rates; None for an extrapolated time."""
        is_full = self.complete and not self.followed
        return EngineWork(
            None if self.followed else self.packets,
            None if self.followed else self.packet_hops,
            None if self.followed else self.grants,
            self._per_s(self.packet_hops),
            self._per_s(self.grants),
            self.wall_s if self.complete else None,
            f"{self.fingerprint:016x}" if is_full else None,
            self.followed or None,
        )

    @property
    def ended(self) -> Ended | None:
        """Progress of a run that was ended early."""
        ended = self.unfinished
        return (
            None if ended is None else ended.progress_at(self.time_ps, self.wall_s)
        )
