"""Measured times of nccl-tests, from CSV files (one row per size) and program outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from clusim.base.errors import InputError
from clusim.base.json_schema import JsonObject
from clusim.base.limits import MOST_COUNT, MOST_RANKS, integer, read_text, real
from clusim.base.tables import group_values, table_rows
from clusim.engine.ranges import DURATION_END_PS
from clusim.hardware.calibration import row_sets_of
from clusim.hardware.nic import plugin_release
from clusim.nccl.constants import LATEST, Version, parse_version
from clusim.nccl.env import PLUGIN, force_variables, parse_assignments, parse_env
from clusim.nccl.launch import Launch
from clusim.nccltests.sweep import Harness, iterations_of, kind_named, program_named
from clusim.validation.collectives.software import infer_columns
from clusim.validation.measured import unused_cells

NEEDED = ("system", "n_gpus", "collective", "size_bytes", "time_us")
INFORMATION = ("busbw_GBps", "runs")
"""Columns without effect on a prediction that need no note."""

MOST_TIME_US = DURATION_END_PS // 10**6
"""Longest time of a measurement [us]."""

_NEWEST = 9999
"""Last number of a plugin release that stands for the newest below a bound."""

SLOWER, SIZES = 1.15, 3
"""Least ratio of a time to one of the next times at which a curve is not monotone, and their number.

The repetitions of most sources differ by less.
"""

MOST_ITERS = 10**9
"""Most iterations of a measurement."""

MOST_SPREAD_PCT = 10**6
"""Largest spread of a measurement [%]."""


@dataclass(frozen=True, slots=True)
class CurveGroup(JsonObject):
    """Common properties of a curve of measurements; fields as the columns, empty if unknown.

    Attributes
    ----------
    gpus_per_process, threads_per_process : int
        As ``-g`` and ``-t`` of nccl-tests.
    plugin : str
        Network plugin, with its release or a release above it: ``aws-ofi-nccl 1.16``, ``aws-ofi-nccl <1.17``.
    environment : str
        NCCL's variables: ``NCCL_BUFFSIZE=8388608 NCCL_CROSS_NIC=0``.
    release : str
        Oldest and newest possible release of NCCL where `nccl_version` is unknown: ``2.23.4 to 2.28.9``.
    domains : int
        NVLink domains (racks) of the ranks; 0 is the least number that has enough GPUs.
    """

    KEYS = (
        "system",
        "n_nodes",
        "n_gpus",
        "collective",
        "algorithm",
        "protocol",
        "channels?",
        "domains?",
        "nccl_version",
        "gpus_per_process?",
        "threads_per_process?",
        "harness?",
        "cuda_graph",
        "plugin",
        "environment",
        "release",
    )

    system: str
    n_nodes: int = 1
    n_gpus: int = 0
    collective: str = ""
    algorithm: str = "auto"
    protocol: str = "auto"
    channels: int = 0
    nccl_version: str = ""
    gpus_per_process: int = 0
    cuda_graph: bool = False
    threads_per_process: int = 0
    harness: str = ""
    plugin: str = ""
    environment: str = ""
    release: str = ""
    domains: int = 0

    @property
    def per_node(self) -> int:
        """Return the participating GPUs per node."""
        return max(1, self.n_gpus // self.n_nodes)

    @property
    def launch_known(self) -> bool:
        """True if GPUs or threads per process are given, or the harness has only one launch."""
        return (
            bool(self.gpus_per_process or self.threads_per_process)
            or self.harness == "torch"
        )

    @property
    def launch(self) -> Launch:
        """Return the launch; the likeliest if it is unknown.

        On one node this is the launch at the top of nccl-tests' README, one thread for all GPUs; for other programs and
        several nodes it is one process per GPU.
        """
        if self.launch_known:
            threads = max(1, self.threads_per_process)
            return Launch(
                max(1, self.gpus_per_process), self.cuda_graph, threads=threads
            )
        alone = self.n_nodes > 1 or self.harness != "nccl-tests"
        return Launch(1 if alone else self.per_node, self.cuda_graph)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return the unknown properties of the measurement, with their assumed values."""
        result = []
        if not self.nccl_version:
            release_text = (
                f"only known as {self.release}" if self.release else "not given"
            )
            result.append(
                f"release of NCCL {release_text}: {self.version or LATEST} assumed"
            )
        if "<" in self.plugin:
            result.append(
                f"release of {self.plugin} not given: the newest below assumed"
            )
        if not self.launch_known:
            gpus = self.launch.gpus_per_thread
            how = f"-g {gpus}" if gpus > 1 else "one process per GPU"
            result.append(f"launch not given: {how} assumed")
        return tuple(result)

    @property
    def releases(self) -> tuple[Version, Version] | None:
        """Return the oldest and newest possible release of NCCL; None is unknown."""
        oldest, _, newest = self.release.partition(" to ")
        return (
            (parse_version(oldest), parse_version(newest or oldest))
            if self.release
            else None
        )

    @property
    def version(self) -> str:
        """Return the release of NCCL, or the newest possible one; empty is unknown."""
        return self.nccl_version or (str(self.releases[1]) if self.releases else "")

    @property
    def plugin_release(self) -> str:
        """Return the release of the network plugin, or the newest below its bound; empty is unknown."""
        release = self.plugin.partition(" ")[2]
        if not release.startswith("<"):
            return release
        numbers = list(plugin_release(release.removeprefix("<")))
        while numbers[-1] == 0 and len(numbers) > 1:
            numbers.pop()
        return ".".join(map(str, (*numbers[:-1], max(0, numbers[-1] - 1), _NEWEST)))

    @property
    def kind(self) -> str:
        """Return the collective, and the forced algorithm and protocol."""
        words = (self.collective, self.algorithm, self.protocol)
        return " ".join(word for word in words if word != "auto")

    @property
    def title(self) -> str:
        """Return a short text that distinguishes it from other groups of its system."""
        words = [f"{self.n_nodes}x{self.n_gpus // self.n_nodes}", self.collective]
        words += [word for word in (self.algorithm, self.protocol) if word != "auto"]
        if self.channels:
            words.append(f"{self.channels}ch")
        if self.threads_per_process > 1:
            words.append(f"-t{self.threads_per_process}")
        if self.gpus_per_process > 1:
            words.append(f"-g{self.gpus_per_process}")
        if self.cuda_graph:
            words.append("graph")
        if self.harness not in ("", "nccl-tests"):
            words.append(self.harness)
        words += [word.removeprefix("NCCL_") for word in self.environment.split()]
        if self.plugin:
            words.append(f"plugin {self.plugin.partition(' ')[2] or self.plugin}")
        return " ".join([*words, self.nccl_version or self.release]).strip()

    def env(self) -> tuple[tuple[str, str], ...]:
        """Return the environment, with the forced algorithm, protocol and channels, and the plugin's release."""
        algorithm, protocol = (
            "" if word == "auto" else word
            for word in (self.algorithm, self.protocol)
        )
        named = tuple(parse_assignments(self.environment.split()).items())
        plugin = ((PLUGIN, self.plugin_release),) if self.plugin_release else ()
        return (
            *named,
            *force_variables(algorithm, protocol, self.channels),
            *plugin,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One measured size.

    Attributes
    ----------
    iters : int
        Number of averaged iterations; programs run fewer for large sizes. 0 is unknown.
    spread_pct : float
        Spread of its repetitions, relative to their median [%]; 0 is unknown.
    unused : tuple of str
        Note on its columns without effect.
    uneven : bool
        True if it is slower than one of the next sizes of its curve.
    """

    id: ClassVar[str] = ""
    group: CurveGroup
    size_bytes: int = 0
    time_us: float = 0.0
    source: str = ""
    where: str = ""
    iters: int = 0
    spread_pct: float = 0.0
    unused: tuple[str, ...] = ()
    uneven: bool = False

    @property
    def columns(self) -> dict[str, Any]:
        """Return the columns by which row sets select it."""
        return asdict(self.group) | {
            "source": self.source,
            "size_bytes": self.size_bytes,
        }

    @property
    def row_sets(self) -> tuple[str, ...]:
        """Return the row sets that calibrated parameters and contain this row."""
        return row_sets_of(self.columns)

    @property
    def campaign(self) -> str:
        """Return the source, with the network plugin if it is given."""
        source = self.source or "-"
        return f"{source} ({self.group.plugin})" if self.group.plugin else source

    @property
    def harness(self) -> Harness:
        """Return its measurement method."""
        kind = self.group.harness
        return Harness(kind, self.group.launch, iterations_of(kind, self.iters))


def read_measurements(
    paths: Sequence[str | Path], *, system: str | None = None, infer: bool = True
) -> list[Row]:
    """Return the rows of CSV files and of outputs of nccl-tests.

    Parameters
    ----------
    system : str or None
        Restricts CSV files to rows of this system, and names the system of nccl-tests outputs, which do not contain it.
    infer : bool
        Infer blank software of rows of CSV files from their other texts (`clusim.validation.collectives.software`).
    """
    rows: list[Row] = []
    for path in paths:
        text = read_text(path, strict=False)
        first = next((line for line in text.splitlines() if line.strip()), "")
        if "," in first and "time_us" in first.lower():
            rows += _csv_rows(text, str(path), system, infer)
        else:
            rows += _table_rows(str(path), system)
    if not rows:
        only = f" of system {system!r}" if system else ""
        raise InputError(f"{', '.join(map(str, paths))}: no measurements{only}")
    curves = group_values(((row.group, row.source), row) for row in rows)
    uneven = {id(row) for curve in curves.values() for row in _uneven(curve)}
    return [replace(row, uneven=True) if id(row) in uneven else row for row in rows]


def _uneven(curve: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of a curve that are slower than one of the next sizes."""
    by_size = group_values((row.size_bytes, row) for row in curve)
    sizes = sorted(by_size)
    times = [median(row.time_us for row in by_size[size]) for size in sizes]
    for at, size in enumerate(sizes):
        later = times[at + 1 : at + 1 + SIZES]
        if any(times[at] > SLOWER * time for time in later):
            yield from by_size[size]


_WITHIN = {
    "n_gpus": (2, MOST_RANKS),
    "size_bytes": (0, MOST_COUNT),
    "iters": (1, MOST_ITERS),
}
"""Least and largest number of a column; of the other integers 1 and `MOST_RANKS`."""

_COLUMNS = {
    item.name: str(item.type)
    for item in (*fields(CurveGroup), *fields(Row))
    if item.name not in ("group", "where", "unused", "uneven")
}
"""Column that is read -> type."""

_READ = frozenset((*_COLUMNS, *INFORMATION))


def _csv_rows(text: str, path: str, system: str | None, infer: bool) -> list[Row]:
    rows = []
    systems: set[str] = set()
    for cells, where in table_rows(path, text, NEEDED):
        systems.add(cells["system"])
        if system is None or cells["system"] == system:
            rows.append(_row(cells, where, infer))
    if not rows and systems:
        listing = ", ".join(sorted(systems))
        raise InputError(f"{path}: no rows of system {system!r}; it has {listing}")
    return rows


def _row(cells: dict[str, str], where: str, infer: bool) -> Row:
    texts = {name: text for name, text in cells.items() if name not in _READ}
    evidence = infer_columns(cells, texts) if infer else []
    cells = cells | {item.column: item.value for item in evidence}
    values: dict[str, Any] = {
        name: _value(name, kind, cells[name], where)
        for name, kind in _COLUMNS.items()
        if cells.get(name)
    }
    if not values.get("time_us"):
        raise InputError(
            f"{where}: time_us {cells['time_us'][:40]!r}: must be a time above 0"
        )
    curve = {
        item.name: values.pop(item.name)
        for item in fields(CurveGroup)
        if item.name in values
    }
    return Row(
        CurveGroup(**curve),
        where=where,
        unused=(*unused_cells(cells, _READ), *(item.note() for item in evidence)),
        **values,
    )


def _value(name: str, kind: str, text: str, where: str) -> str | float:
    """Return the value of a cell; 0 for a missing time."""
    if kind == "bool":
        return text.lower() in ("1", "true", "yes")
    if kind == "int":
        low, high = _WITHIN.get(name, (1, MOST_RANKS))
        number = integer(text, low, high)
        if number is None:
            raise InputError(
                f"{where}: {name} {text[:40]!r}: must be an integer from {low} to {high}"
            )
        return number
    if name == "time_us":
        return real(text, 0, MOST_TIME_US) or 0
    if name == "spread_pct":
        spread = real(text, 0, MOST_SPREAD_PCT)
        if spread is None:
            raise InputError(
                f"{where}: spread_pct {text[:40]!r}: must be a number of at least 0"
            )
        return spread
    if name == "harness":
        try:
            return kind_named(text)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    if name == "collective":
        return _program(text)
    if name in _SOFTWARE:
        text = " ".join(text.replace("(inferred)", "").split())
        try:
            _SOFTWARE[name](text)
        except InputError as error:
            raise InputError(f"{where}: {name}: {error}") from None
    return text.lower() if name in ("algorithm", "protocol") else text


def _check_plugin(text: str) -> None:
    _, _, release = text.partition(" ")
    if release:
        plugin_release(release.removeprefix("<"))


def _check_release(text: str) -> None:
    oldest, _, newest = text.partition(" to ")
    if parse_version(oldest) > parse_version(newest or oldest):
        raise InputError(f"{text!r}: the first release is newer than the second")


_SOFTWARE: dict[str, Callable[[str], object]] = {
    "plugin": _check_plugin,
    "environment": lambda text: parse_env(parse_assignments(text.split())),
    "release": _check_release,
}
"""Columns of the software of a run, with the checks of their texts; ``(inferred)`` in them is left out."""


def _program(word: str) -> str:
    """Return the collective of a word by nccl-tests' name; `setup_of` reports unknown words."""
    try:
        return program_named(word).name
    except InputError:
        return word


def _table_rows(path: str, system: str | None) -> list[Row]:
    from clusim.formats.logs import read_logs

    try:
        log = read_logs([path])
    except InputError:
        raise InputError(
            f"{path}: neither a CSV table with the columns {', '.join(NEEDED)} nor output of nccl-tests"
        ) from None
    rows: list[Row] = []
    for run in log.runs:
        name = run.collective()
        if system is None:
            raise InputError(
                f"{path}: an output of nccl-tests does not name the system; set --system PRESET"
            )
        if not name or " or " in name or not run.devices:
            subject = f"{name}, not a unique collective" if name else "its program"
            raise InputError(
                f"{path}:{run.line}: cannot identify {subject}; keep the lines of nccl-tests in front of the table"
            )
        if not run.is_complete:
            raise InputError(
                f"{path}:{run.line}: {len(run.devices)} of {run.n_ranks or 'an unknown number of'} ranks are listed, so"
                " the number of nodes is unknown; keep all lines '# Rank' in front of the table"
            )
        hosts = len({device.host for device in run.devices})
        group = CurveGroup(
            system,
            hosts,
            run.n_ranks,
            program_named(name).name,
            nccl_version=_release(run.library),
            gpus_per_process=run.config.get("nGpus", 1),
            cuda_graph=run.config.get("graph", 0) > 0,
            threads_per_process=run.config.get("nThread", 1),
            harness="nccl-tests",
        )
        iters = run.config.get("iters", 0)
        for size, time_us, line in zip(
            run.sizes, run.column("time"), run.row_lines, strict=True
        ):
            if not 0 < time_us <= MOST_TIME_US:
                raise InputError(
                    f"{path}:{line}: time {time_us:g} us: must be a time above 0"
                )
            rows.append(
                Row(group, size, float(time_us), path, f"{path}:{line}", iters)
            )
    return rows


def _release(library: str) -> str:
    """Return the version of a code such as 22807."""
    if not library.isdecimal():
        return ""
    number = int(library)
    major, low_digits = divmod(number, 10_000 if number >= 10_000 else 1000)
    minor, patch = divmod(low_digits, 100)
    return f"{major}.{minor}.{patch}"


def groups(rows: Sequence[Row]) -> dict[CurveGroup, list[Row]]:
    """Return the rows by their common properties, in the order of sizes."""
    ordered = sorted(rows, key=lambda row: row.size_bytes)
    curves = group_values((row.group, row) for row in ordered)
    return {row.group: curves[row.group] for row in rows}
