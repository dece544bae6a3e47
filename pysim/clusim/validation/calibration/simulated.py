"""Simulated times of measured rows on a system with moved figures.

Every set of figures is an overlay in a temporary file, so that workers load it by name. Kernels are simulated once for
equal figures of the topology; figures of launches need no further simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.base.executors import Jobs
from clusim.base.tables import group_values
from clusim.hardware.figures import Figure
from clusim.lowering import QUICK
from clusim.nccl.launch import host_of
from clusim.nccltests.jobs import Failure, PerfKernel, each_kernel
from clusim.nccltests.sweep import TESTS
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.topology.overlays import is_launch, write_overlay
from clusim.validation.collectives.measurements import CurveGroup, Row
from clusim.validation.collectives.systems import setup_of

Notify = Callable[[str], None]
"""Called with the last work."""


@dataclass
class RowTimes:
    """Simulated times of rows.

    Attributes
    ----------
    system : str
        Preset or file.
    folder : Path
        Temporary folder of the overlays.
    """

    rows: Sequence[Row]
    system: str
    folder: Path
    jobs: Jobs = None
    notify: Notify | None = None
    count: int = 0
    _kernels: dict[tuple[str, int], PerfKernel] = field(default_factory=dict)
    _files: dict[str, str] = field(default_factory=dict)
    _setups: dict[tuple[str, CurveGroup], Setup] = field(default_factory=dict)

    def logs(
        self,
        figures: Mapping[str, Figure],
        numbers: Sequence[int] | None = None,
    ) -> Array:
        """Return the logarithms of the times of rows [us] with figures by place.

        Parameters
        ----------
        numbers : sequence of int or None
            Indices of the rows; None is all.

        Raises
        ------
        InputError
            A row cannot be simulated, or a figure is out of range.
        """
        chosen = range(len(self.rows)) if numbers is None else numbers
        of_system = {
            place: figure
            for place, figure in figures.items()
            if not is_launch(place)
        }
        self._simulate(of_system, chosen)
        name, key = self._file_of(figures), self._file_of(of_system)
        result = []
        for number in chosen:
            row, kernel = self.rows[number], self._kernels[key, number]
            case = self._case(number, name)
            time_ps = row.harness.time_ps(
                host_of(case.setup.comm), case.operation, kernel
            )
            result.append(time_ps / 1e6)
        return np.log(result)

    def _simulate(
        self, figures: Mapping[str, Figure], numbers: Sequence[int]
    ) -> None:
        name = self._file_of(figures)
        cases = group_values(
            (self._case(n, name), n)
            for n in numbers
            if (name, n) not in self._kernels
        )
        for case, kernel in each_kernel(cases, jobs=self.jobs):
            if isinstance(kernel, Failure):
                where = self.rows[cases[case][0]].where
                raise InputError(f"{where}: {kernel.reason}")
            for number in cases[case]:
                self._kernels[name, number] = kernel
            self.count += 1
            if self.notify is not None:
                self.notify(f"{self.count} kernels were simulated")

    def _case(self, number: int, name: str) -> Request:
        """Return the request of a row on a system."""
        row = self.rows[number]
        key = name, row.group
        if key not in self._setups:
            self._setups[key] = setup_of(replace(row.group, system=name))
        operation = TESTS[row.group.collective].of.name
        return Request(
            self._setups[key], operation, row.size_bytes, granularity=QUICK
        )

    def _file_of(self, figures: Mapping[str, Figure]) -> str:
        """Return the name of the system with figures."""
        if not figures:
            return self.system
        text = repr(sorted((place, str(f.value)) for place, f in figures.items()))
        if text not in self._files:
            path = self.folder / f"{len(self._files)}.yaml"
            base = Path(self.system)
            write_overlay(
                path, str(base.resolve()) if base.exists() else self.system, figures
            )
            self._files[text] = str(path)
        return self._files[text]
