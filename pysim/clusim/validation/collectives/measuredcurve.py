"""Measured curve of a program of nccl-tests, from its output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from clusim.base.errors import InputError
from clusim.base.limits import read_text
from clusim.formats.logs import read_logs
from clusim.nccltests.options import PerfOptions
from clusim.nccltests.sweep import Program, program_named


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Measured times by size, and their launch.

    Attributes
    ----------
    times_us : dict of int to float
        Size [bytes] -> median time of its rows [us].
    dtype, redop : str
        Type and reduction of the rows, by nccl-tests' names.
    gpus, threads : int
        ``-g`` and ``-t`` of the program; 0 if the output does not contain them.
    num_ranks : int
        0 if the output does not contain it.
    omitted : int
        Rows of the program with another type, reduction, root or number of ranks than its first row.
    """

    path: str
    times_us: dict[int, float]
    dtype: str
    redop: str
    gpus: int = 0
    threads: int = 0
    num_ranks: int = 0
    omitted: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumed properties of the measurement, and omitted rows."""
        notes = []
        if not self.gpus and not self.threads:
            notes.append(
                "launch not in the file: set by -g and -t, one process per GPU without"
            )
        if self.omitted:
            kind = " ".join(
                word for word in (self.dtype, self.redop) if word != "none"
            )
            notes.append(f"{self.omitted} rows omitted: not {kind} as the first row")
        return tuple(notes)

    def apply_to(self, options: PerfOptions) -> PerfOptions:
        """Return the flags with the measured sizes, and the curve's type, reduction and launch if not given.

        ``-b`` and ``-e`` select measured sizes.

        Raises
        ------
        InputError
            A step of sizes is given, or no measured size is selected.
        """
        steps = sorted(options.given & {"i", "f"})
        if steps:
            raise InputError(
                f"-{steps[0]}: sizes are read from {self.path}; select with -b and -e"
            )
        min_size = options.minbytes if "b" in options.given else 0
        max_size = options.maxbytes if "e" in options.given else max(self.times_us)
        sizes = tuple(size for size in self.times_us if min_size <= size <= max_size)
        if not sizes:
            raise InputError(
                f"{self.path}: no row from {min_size} to {max_size} bytes"
            )
        missing = {
            "d": ("datatype", self.dtype),
            "o": ("op", self.redop if self.redop != "none" else ""),
            "g": ("ngpus", self.gpus),
            "t": ("nthreads", self.threads),
        }
        values: dict[str, Any] = {
            name: value
            for letter, (name, value) in missing.items()
            if value and letter not in options.given
        }
        if options.given & {"g", "t"}:
            values.pop("ngpus", None)
            values.pop("nthreads", None)
        return replace(options, **values, listed=sizes)


def read_curve(path: str | Path, test: Program) -> MeasuredCurve:
    """Return the rows of a program in an nccl-tests output; out of place where both are measured.

    Rows of another type, reduction, root or number of ranks than the first are omitted and counted.

    Raises
    ------
    InputError
        The file has no row of the program.
    """
    first_line = next(
        (line for line in read_text(path, strict=False).splitlines() if line), ""
    )
    if "," in first_line and "time_us" in first_line:
        raise InputError(
            f"{path}: a CSV table; compare it with `clusim validate {path}`"
        )
    runs = [run for run in read_logs([str(path)]).runs if run.sizes]
    named = [run for run in runs if _may_be(run.collective(), test)]
    if not named:
        operations = sorted({run.collective() or "unknown" for run in runs})
        has = f"; it has {', '.join(operations)}" if operations else ""
        raise InputError(f"{path}: no rows of {test.binary}{has}")
    first = named[0]
    kind = first.types[0], first.ops[0], first.roots[0], first.n_ranks
    times: dict[int, list[float]] = {}
    omitted = 0
    for run in named:
        both = zip(run.column("time"), run.column("time_in_place"), strict=True)
        kinds = zip(run.types, run.ops, run.roots, strict=True)
        for size, (outside, inside), row in zip(run.sizes, both, kinds, strict=True):
            time_us = outside if outside > 0 else inside
            if (*row, run.n_ranks) != kind:
                omitted += 1
            elif size > 0 and time_us > 0:
                times.setdefault(size, []).append(float(time_us))
    if not times:
        raise InputError(
            f"{path}: no row of {test.binary} with a size and a time above 0"
        )
    return MeasuredCurve(
        str(path),
        {size: median(some) for size, some in sorted(times.items())},
        first.types[0],
        first.ops[0],
        first.config.get("nGpus", 0),
        first.config.get("nThread", 0),
        first.n_ranks,
        omitted,
    )


def _may_be(collective: str, test: Program) -> bool:
    return test.name in (
        program_named(word).name for word in collective.split(" or ") if word
    )
