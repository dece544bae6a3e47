"""Which machines take part, with which NCCL; fabrics and communicators are made once per process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from clusim import fabric
from clusim.errors import InputError
from clusim.fabric import Fabric
from clusim.lowering import Broken, plan_change
from clusim.nccl import Collective, Communicator, communicator, parse_env, parse_version
from clusim.nccl.explain import ways

__all__ = ["Setup"]

KEPT = 24
"""Fabrics and communicators that a process keeps."""

CHOICES = ("NCCL_ALGO", "NCCL_PROTO")
"""Variables that only the tuner looks at, not the search for channels."""


@dataclass(frozen=True)
class Setup:
    """Machines and NCCL of a run.

    Attributes
    ----------
    topology : str
        Preset or file.
    nodes : int or None
        Machines that are joined; None is what the topology has.
    per_node : int or None
        GPUs of every machine that take part; None is all.
    version : str
        Release of NCCL.
    env : tuple of (str, str)
        Its environment variables.
    """

    topology: str
    nodes: int | None = None
    per_node: int | None = None
    version: str = "2.27"
    env: tuple[tuple[str, str], ...] = ()

    @cached_property
    def fabric(self) -> Fabric:
        """Return the fabric of all GPUs of the machines, whole."""
        return _fabric(self.topology, self.nodes)

    @property
    def broken(self) -> Broken:
        """Return what breaks, by the file of the topology."""
        return _broken(self.topology, self.nodes)

    @property
    def known(self) -> Fabric:
        """Return what plans are made on: the fabric without what is down from the start."""
        return self.broken.known

    def said(self, collective: Collective | None, sizes: Sequence[int]) -> tuple[str, ...]:
        """Return what must be said of the plans: stand-ins, variables without effect, what faults changed.

        Parameters
        ----------
        collective : Collective or None
            None is sends and receives.
        """
        notes = self.comm.notes
        if self.known is self.fabric:
            return notes
        healthy = ways(_communicator(self, whole=True), collective, sizes)
        return (*notes, plan_change(healthy, ways(self.comm, collective, sizes)))

    @cached_property
    def comm(self) -> Communicator:
        """Return the communicator of the GPUs that take part."""
        return _communicator(self)

    @property
    def num_nodes(self) -> int:
        """Return the machines."""
        return self.comm.group.num_nodes

    @property
    def num_ranks(self) -> int:
        """Return the GPUs that take part."""
        return self.comm.group.num_ranks

    def smaller(self, nodes: int) -> Setup:
        """Return the same with so many machines."""
        return replace(self, nodes=nodes)

    def __hash__(self) -> int:
        """Hash what was given."""
        return hash((self.topology, self.nodes, self.per_node, self.version, self.env))


@lru_cache(KEPT)
def _fabric(topology: str, nodes: int | None) -> Fabric:
    return fabric.load(topology, nodes=nodes)


@lru_cache(KEPT)
def _broken(topology: str, nodes: int | None) -> Broken:
    return Broken(_fabric(topology, nodes))


def _communicator(setup: Setup, *, whole: bool = False) -> Communicator:
    """Return the communicator; what only the tuner looks at shares one search.

    Parameters
    ----------
    whole : bool
        Plan as if nothing were down from the start.
    """
    searched = tuple(item for item in setup.env if item[0] not in CHOICES)
    common = _searched(setup.topology, setup.nodes, setup.per_node, setup.version, searched, whole)
    return replace(common, settings=parse_env(dict(setup.env)))


@lru_cache(KEPT)
def _searched(
    topology: str,
    nodes: int | None,
    per_node: int | None,
    version: str,
    env: tuple[tuple[str, str], ...],
    whole: bool,
) -> Communicator:
    machine = _fabric(topology, nodes) if whole else _broken(topology, nodes).known
    ranks = None if per_node is None else _first_of_each(machine, per_node)
    return communicator(machine, parse_version(version), parse_env(dict(env)), ranks=ranks)


def _first_of_each(machine: Fabric, per_node: int) -> list[int]:
    """Return the ranks of the first `per_node` GPUs of every machine."""
    zone = {node.name: node.zone for node in machine.nodes}
    seen: dict[int, int] = {}
    ranks = []
    for rank, name in enumerate(machine.ranks):
        number = seen.get(zone[name], 0)
        seen[zone[name]] = number + 1
        if number < per_node:
            ranks.append(rank)
    least = min(seen.values(), default=0)
    if least < per_node:
        raise InputError(f"{per_node} GPUs per machine: a machine of {machine.name} has {least}")
    return ranks
