"""Nodes of a run and their NCCL; topologies and communicators are created once per process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.files import note_input
from clusim.base.terms.operations import Collective
from clusim.lowering import Broken, plan_change
from clusim.nccl import LATEST, Communicator, parse_env, parse_version
from clusim.nccl.calls.choice import Communicators, ways
from clusim.nccl.env import SYMMETRIC
from clusim.nccl.transports import transported, with_plugins
from clusim.nccl.versions import Version
from clusim.topology import Fabric, load
from clusim.topology.warnings import doubts_of

KEPT = 24
"""Fabrics, and jobs with their communicators, that a process keeps."""

CHOICES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_SYM_KERNEL", "NCCL_SYM_CTAS", SYMMETRIC)
"""Variables that only the tuner looks at, not the search for channels."""


@dataclass(frozen=True)
class Setup:
    """Machines and NCCL of a run; can be sent to other processes.

    Attributes
    ----------
    topology : str, Path or Fabric
        Preset, file or generator, or a fabric that is there already.
    nodes : int or None
        Machines that are joined; None is what the topology has.
    per_node : int or None
        GPUs of every machine that take part; None is all.
    version : str
        Release of NCCL; empty is the newest known.
    env : tuple of (str, str)
        Its environment variables.
    ranks : tuple of int or None
        Ranks that take part; None is all, or what `per_node` or `gpus` says.
    faults : tuple
        What breaks besides the topology's own faults: texts, or `clusim.lowering.Fault`.
    messages : tuple of int or None
        Where a run stands for one of more machines or bytes: channels of sends and receives, in all and for a peer, and
        the least size for which messages are cut [bytes]; None is NCCL's.
    gpus : tuple of int or None
        GPUs of every machine that take part, as they are numbered there; None is all, or what `per_node` says.
    beside : tuple of tuple of int
        GPUs of every machine of further communicators that do the same at the same time, in
        `clusim.simulation.extrapolate_bytes`.
    """

    topology: str | Path | Fabric
    nodes: int | None = None
    per_node: int | None = None
    version: str = ""
    env: tuple[tuple[str, str], ...] = ()
    ranks: tuple[int, ...] | None = None
    faults: tuple[Any, ...] = ()
    messages: tuple[int, int, int] | None = None
    gpus: tuple[int, ...] | None = None
    beside: tuple[tuple[int, ...], ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Be sent as what was given, without fabrics and communicators that were made of it."""
        return Setup, tuple(getattr(self, item.name) for item in fields(self))

    @property
    def name(self) -> str:
        """Return the system's name."""
        return self.topology.name if isinstance(self.topology, Fabric) else str(self.topology)

    @property
    def release(self) -> Version:
        """Return the release of NCCL."""
        return parse_version(self.version) if self.version else LATEST

    @cached_property
    def fabric(self) -> Fabric:
        """Return the fabric of all GPUs of the machines, whole, with the transports that the variables allow."""
        machine = loaded(self.topology, self.nodes)
        if not self.env:
            return machine
        return transported(machine, parse_env(dict(self.env)).of_release(self.release))

    @cached_property
    def broken(self) -> Broken:
        """Return the faults, of the topology's file and given ones."""
        return _broken(self.fabric, self.faults)

    @property
    def doubts(self) -> list[str]:
        """Return what makes every answer doubtful, and what settles it: assumptions about the machine."""
        return doubts_of(self.fabric)

    @property
    def known(self) -> Fabric:
        """Return the topology of plans: without the parts that are down from the start."""
        return self.broken.known

    def said(self, collective: Collective | None, sizes: Sequence[int]) -> tuple[str, ...]:
        """Return the notes on plans: stand-ins, variables without effect, changes by faults.

        Parameters
        ----------
        collective : Collective or None
            None is sends and receives.
        """
        notes = self.comm.notes
        if self.known is self.fabric:
            return notes
        healthy = ways(self.communicator(whole=True), collective, sizes)
        return (*notes, plan_change(healthy, ways(self.comm, collective, sizes)))

    @cached_property
    def comm(self) -> Communicator:
        """Return the communicator of the GPUs that take part."""
        return self.communicator()

    def communicators(self) -> Communicators:
        """Return new communicators of any ranks, on what is known; they may be given rings of their own."""
        return Communicators(self.known, self.release, parse_env(dict(self.env)))

    def communicator(self, *, whole: bool = False) -> Communicator:
        """Return the communicator; what only the tuner looks at shares one search.

        Parameters
        ----------
        whole : bool
            Plan as if nothing were down from the start.
        """
        searched = tuple(item for item in self.env if item[0] not in CHOICES)
        common = _communicators(self.fabric if whole else self.known, self.release, searched)
        settings = with_plugins(self.fabric, parse_env(dict(self.env)), self.release)
        comm = replace(common.of(self._chosen).comm, settings=settings)
        if self.messages is None:
            return comm
        channels, per_peer, least_bytes = self.messages
        return replace(
            comm, p2p_channels=channels, p2p_per_peer=per_peer, p2p_least_bytes=least_bytes
        )

    @property
    def _chosen(self) -> tuple[int, ...] | None:
        """Return the ranks that take part; None is all."""
        gpus = self.gpus if self.per_node is None else tuple(range(self.per_node))
        if gpus is None:
            return self.ranks
        if self.ranks is not None:
            raise InputError("ranks and GPUs per machine say both who takes part; give one")
        return _of_each(self.fabric, gpus)

    @property
    def num_nodes(self) -> int:
        """Return the machines."""
        return self.comm.group.num_nodes

    @property
    def num_ranks(self) -> int:
        """Return the GPUs that take part."""
        return self.comm.group.num_ranks

    def on(self, machine: Fabric) -> Setup:
        """Return the same on another fabric, which is there already."""
        return self if machine is self.fabric else replace(self, topology=machine, nodes=None)

    @property
    def together(self) -> tuple[Setup, ...]:
        """Return this and what is beside it, a communicator each."""
        others = (replace(self, per_node=None, gpus=gpus, beside=()) for gpus in self.beside)
        return (self, *others)

    def smaller(self, nodes: int) -> Setup:
        """Return the same with so many machines, which send and receive on as many channels as these."""
        comm = self.comm
        messages = comm.p2p_channels, comm.p2p_per_peer, comm.p2p_least_bytes
        return replace(self, nodes=nodes, messages=messages)

    def cut_for(self, num_bytes: int) -> Setup:
        """Return the same with messages that are cut as those of so many bytes at least."""
        return replace(self, messages=(self.comm.p2p_channels, self.comm.p2p_per_peer, num_bytes))


Stamps = tuple[tuple[str, int, int], ...]

_KNOWN: dict[tuple[str, int | None], tuple[Fabric, Stamps]] = {}
"""Fabrics that were loaded, the oldest first, and their files as they were then."""


def _stamps(names: Iterable[str]) -> Stamps:
    """Return files with their times and sizes, which tell whether they were changed."""
    found = [(name, os.stat(name)) for name in names if os.path.exists(name)]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in found)


def loaded(topology: str | Path | Fabric, nodes: int | None) -> Fabric:
    """Return a fabric, as `clusim.load` does; a process loads it once, until one of its files is changed."""
    if isinstance(topology, Fabric):
        if nodes is not None:
            raise InputError(
                f"nodes={nodes}: {topology.name} is joined already; load it with nodes"
            )
        return topology
    key = os.fspath(topology), nodes
    if key in _KNOWN:
        found, stamps = _KNOWN[key]
        if _stamps(found.source_files) == stamps:
            for name in found.source_files:
                note_input(name)
            return found
        del _KNOWN[key]
    found = load(topology, nodes=nodes)
    while len(_KNOWN) >= KEPT:
        del _KNOWN[next(iter(_KNOWN))]
    _KNOWN[key] = found, _stamps(found.source_files)
    return found


_BROKEN: dict[tuple[int, tuple[Any, ...]], Broken] = {}
"""Faults by topology, the oldest first; a topology is identified by itself, not by an equal one."""


def _broken(machine: Fabric, faults: tuple[Any, ...]) -> Broken:
    """Return what breaks of a fabric, which several setups share, so that they also share what is left of it."""
    if not faults and not machine.faults:
        return Broken(machine)
    key = id(machine), faults
    if key not in _BROKEN:
        while len(_BROKEN) >= KEPT:
            del _BROKEN[next(iter(_BROKEN))]
        _BROKEN[key] = Broken(machine, faults)
    return _BROKEN[key]


@lru_cache(KEPT)
def _communicators(
    machine: Fabric, release: Version, env: tuple[tuple[str, str], ...]
) -> Communicators:
    return Communicators(machine, release, parse_env(dict(env)))


def _of_each(machine: Fabric, gpus: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of these GPUs of every machine."""
    zone = {node.name: node.zone for node in machine.nodes}
    seen: dict[int, int] = {}
    ranks = []
    wanted = set(gpus)
    for rank, name in enumerate(machine.ranks):
        number = seen.get(zone[name], 0)
        seen[zone[name]] = number + 1
        if number in wanted:
            ranks.append(rank)
    least = min(seen.values(), default=0)
    most = max(gpus) + 1
    if least < most:
        raise InputError(f"{most} GPUs per machine: a machine of {machine.name} has {least}")
    return tuple(ranks)
