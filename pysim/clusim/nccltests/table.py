"""Output of nccl-tests as its releases of 2025 print it, and its ``-J`` JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from clusim.base.errors import one_line
from clusim.base.json_schema import JsonObject
from clusim.base.tables import wrap_line
from clusim.nccltests.options import PerfOptions

TESTS_VERSION = "2.17.9"
"""Version of nccl-tests with this layout."""

JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class PerfDevice(JsonObject):
    """A rank, as nccl-tests lists it."""

    rank: int
    group: int
    pid: int
    hostname: str
    device: int
    device_hex: str
    device_info: str

    def line(self) -> str:
        """Return its line."""
        return one_line(
            f"#  Rank {self.rank:2d} Group {self.group:2d} Pid {self.pid:6d} on {self.hostname:>10s}"
            f" device {self.device:2d} [{self.device_hex}] {self.device_info}"
        )


@dataclass(frozen=True, slots=True)
class Half:
    """Half of a row: time [us], bandwidths [GB/s], wrong elements (None if unchecked)."""

    time_us: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True, slots=True)
class PerfLine:
    """A row; `how` is the granularity if not exact, `algorithm` NCCL's name of its algorithm."""

    size: int
    count: int
    type: str
    redop: str
    root: int
    halves: tuple[Half, Half]
    stamp: str = ""
    how: str = ""
    algorithm: str = ""

    def text(self) -> str:
        """Return it as printed."""
        start = f"{self.size:12d}  {self.count:12d}  {self.type:>8s}  {self.redop:>6s}  {self.root:6d}"
        stamp = f"{self.stamp:>21s}" if self.stamp else ""
        return start + "".join(_half(half) for half in self.halves) + stamp


def float_text(value: float, width: int) -> str:
    """Return a number in `width` columns with as many of two decimals as fit."""
    power, limit = 0, 1
    while isfinite(value) and value >= limit:
        power += 1
        limit *= 10
    if power < width - 2:
        return f"{value:{width}.2f}"
    if power < width - 1:
        return f"{value:{width}.1f}"
    if power < width + 1:
        return f"{value:{width}.0f}"
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"


def _half(half: Half) -> str:
    wrong = "   N/A" if half.wrong is None else f"{half.wrong:6g}"
    times = (
        float_text(half.time_us, 7),
        float_text(half.algbw, 6),
        float_text(half.busbw, 6),
    )
    return f"  {times[0]:>7s}  {times[1]:>6s}  {times[2]:>6s}  {wrong}"


def head(
    program: str,
    options: PerfOptions,
    library: int,
    devices: Sequence[PerfDevice],
    notes: Sequence[str],
) -> list[str]:
    """Return the lines before the table; `notes` are clusim's."""
    kind, step = options.step
    lines = [
        f"# nccl-tests version {TESTS_VERSION} nccl-headers={library} nccl-library={library}",
        f"# Collective test starting: {program}",
        f"# nThread {options.nthreads} nGpus {options.ngpus} minBytes {options.minbytes}"
        f" maxBytes {options.maxbytes} step: {step}({kind}) warmup iters: {options.warmup_iters}"
        f" iters: {options.iters} agg iters: {options.agg_iters} validation: {options.check}"
        f" graph: {options.cudagraph}",
    ]
    if options.blocking:
        lines.append(
            "# Blocking Enabled: wait for completion and barrier after each collective "
        )
    if options.parallel_init:
        lines.append(
            "# Parallel Init Enabled: threads call into NcclInitRank concurrently "
        )
    lines += ["#", *_comments("", notes), "# Using devices"]
    return [*lines, *(device.line() for device in devices)]


def table_head(options: PerfOptions) -> list[str]:
    """Return the three lines of titles."""
    time = "cputime" if options.report_cputime else "time"
    pad = 19 if options.report_timestamps else 0
    front = "# {:>10s}  {:>12s}  {:>8s}  {:>6s}  {:>6s}"
    half = "  {:>7s}  {:>6s}  {:>6s}  {:>6s}"
    stamp = ("timestamp", "%Y-%m-%d %H:%M:%S") if pad else ("", "")
    titles = front.format("size", "count", "type", "redop", "root")
    units = front.format("(B)", "(elements)", "", "", "")
    return [
        "#",
        front.format("", "", "", "", "")
        + "           out-of-place                       in-place          ",
        titles
        + half.format(time, "algbw", "busbw", "#wrong") * 2
        + f" {stamp[0]:>{pad}s}",
        units
        + half.format("(us)", "(GB/s)", "(GB/s)", "") * 2
        + f" {stamp[1]:>{pad}s}",
    ]


def _mean(lines: Sequence[PerfLine]) -> float:
    values = [half.busbw for line in lines for half in line.halves]
    return sum(values) / len(values) if values else 0.0


def _wrong(lines: Sequence[PerfLine]) -> int:
    return sum(1 for line in lines for half in line.halves if half.wrong)


def foot(
    program: str, lines: Sequence[PerfLine], notes: Sequence[str] = ()
) -> list[str]:
    """Return the lines after the table; `notes` are clusim's."""
    wrong = _wrong(lines)
    return [
        f"# {'Out of bounds values':<20s} : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# {'Avg bus bandwidth':<20s} : {_mean(lines):g} ",
        "#",
        *_comments(
            "clusim: ", [f"{line.size} B: {line.how}" for line in lines if line.how]
        ),
        *_comments("clusim: ", notes),
        f"# Collective test concluded: {program}",
        "",
    ]


def _comments(mark: str, notes: Sequence[str]) -> Iterator[str]:
    for note in notes:
        yield from wrap_line(f"# {mark}{one_line(note)}")


def _bool(value: object) -> str:
    return "true" if value else "false"


def _half_json(half: Half, time: str) -> dict[str, Any]:
    return {
        time: round(half.time_us, 6),
        "alg_bw": round(half.algbw, 6),
        "bus_bw": round(half.busbw, 6),
        "nwrong": None if half.wrong is None else float(half.wrong),
    }


def config_json(
    options: PerfOptions, devices: Sequence[PerfDevice]
) -> dict[str, Any]:
    """Return the arguments of a program for ``-J``."""
    kind, step = options.step
    return {
        "nthreads": options.nthreads,
        "ngpus": options.ngpus,
        "minimum_bytes": options.minbytes,
        "maximum_bytes": options.maxbytes,
        f"step_{kind}": step,
        "warmup_iters": options.warmup_iters,
        "iterations": options.iters,
        "aggregated_iterations": options.agg_iters,
        "validation": options.check,
        "graph": options.cudagraph,
        "blocking_collectives": _bool(options.blocking),
        "parallel_init": _bool(options.parallel_init),
        "devices": [device.to_json() for device in devices],
    }


def results_json(
    program: str, options: PerfOptions, lines: Sequence[PerfLine]
) -> dict[str, Any]:
    """Return the rows and their totals for ``-J``."""
    time = "cpu_time" if options.report_cputime else "time"
    wrong = _wrong(lines)
    return {
        "results": [
            {
                "size": line.size,
                "count": line.count,
                "type": line.type,
                "redop": line.redop,
                "root": f"{line.root:6d}",
                "out_of_place": _half_json(line.halves[0], time),
                "in_place": _half_json(line.halves[1], time),
                "actual_iterations": options.iters,
                "experiment_name": program,
                "granularity": line.how or "exact packets",
            }
            for line in lines
        ],
        "out_of_bounds": {"count": wrong, "okay": _bool(not wrong)},
        "average_bus_bandwidth": {
            "bandwidth": round(_mean(lines), 6),
            "okay": "unchecked",
        },
        "errors": [],
    }
