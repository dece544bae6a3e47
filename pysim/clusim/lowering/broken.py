"""Faults of a run: those of the topology file and those requested for the run, as one list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clusim.lowering.faults import Fault, describe_faults, known_at_start
from clusim.lowering.faulttext import parse_faults
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric


@dataclass(frozen=True)
class Broken:
    """All faults of a run on a fabric.

    Attributes
    ----------
    own : sequence
        What breaks besides the fabric's own faults: texts, or `Fault`.
    """

    fabric: Fabric
    own: Sequence[Any] = ()

    @cached_property
    def _texts(self) -> list[str]:
        return [*self.fabric.faults, *(item for item in self.own if isinstance(item, str))]

    @cached_property
    def faults(self) -> list[Fault]:
        """Faults by wire and rank; raises `InputError` for a text that is no fault here."""
        return [
            *parse_faults(self.fabric, self._texts),
            *(item for item in self.own if not isinstance(item, str)),
        ]

    @cached_property
    def known(self) -> Fabric:
        """Topology that planning sees; the topology itself if nothing is down from the start."""
        return known_at_start(self.fabric, self.faults)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """A line for every fault, with the rates that are left."""
        return describe_faults(arrays_of(self.fabric), self.faults, self._texts)
