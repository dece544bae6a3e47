"""Nodes of a run and their NCCL; topologies and communicators are cached per process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.files import note_input
from clusim.base.kept import file_digest
from clusim.base.records import dataclass
from clusim.base.terms.links import several
from clusim.base.terms.operations import Collective
from clusim.lowering import Broken, parse_faults, plan_change
from clusim.lowering.controls import with_policy
from clusim.lowering.spreads import reroute
from clusim.nccl.choice import Communicators, plan_ways, shared_communicators
from clusim.nccl.communicator import Communicator
from clusim.nccl.constants import LATEST, Version, parse_version
from clusim.nccl.env import SYMMETRIC, parse_env
from clusim.nccl.transports import restrict_transports, with_plugins
from clusim.policies.choice import source_digest
from clusim.topology import Fabric, load
from clusim.topology.arrays import arrays_of
from clusim.topology.model import doubts_of
from clusim.topology.subset import near_nodes, on_nodes

KEPT = 24
"""Maximum topologies cached per process, and sets of faults cached per topology."""

CHOICES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_SYM_KERNEL", "NCCL_SYM_CTAS", SYMMETRIC)
"""Variables that only the tuner reads, not the search for channels."""


@dataclass(frozen=True)
class Setup:
    """Nodes and NCCL of a run; can be sent to other processes.

    Attributes
    ----------
    topology : str, Path or Fabric
        Preset, file or generator, or a loaded fabric.
    nodes : int or None
        Number of nodes to join; None is the topology's number.
    per_node : int or None
        Participating GPUs per node; None is all.
    version : str
        NCCL version; empty is the newest known.
    env : tuple of (str, str)
        NCCL's environment variables.
    ranks : tuple of int or None
        Participating ranks; None is all, or as set by `per_node` or `gpus`.
    faults : tuple
        Faults in addition to the topology's: texts, or `clusim.lowering.Fault`.
    messages : tuple of int or None
        For runs that others are extrapolated from: channels of sends and receives, in total and per peer, and the least
        size for which messages are split [bytes]; None is NCCL's choice.
    gpus : tuple of int or None
        Participating GPUs of every node, by their local number; None is all, or as set by `per_node`.
    zones : tuple of int or None
        Numbers of the nodes that the run has, ascending, in a network of `nodes` nodes; None is all.
    beside : tuple of tuple of int
        GPUs of every node of further communicators that run the same operation concurrently, in
        `clusim.simulation.samples`.
    routing, gap_ps, reorder : str, int or None, int or str or None
        Other paths between nodes, and receiving NICs (`clusim.lowering.spreads.reroute`).
    policy : str
        Sender policy of all NICs (`clusim.lowering.controls.with_policy`); empty is the topology's.
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
    zones: tuple[int, ...] | None = None
    beside: tuple[tuple[int, ...], ...] = ()
    routing: str = "auto"
    gap_ps: int | None = None
    reorder: int | str | None = None
    policy: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the given fields only, without derived fabrics and communicators."""
        return Setup, tuple(getattr(self, item.name) for item in fields(self))

    @property
    def name(self) -> str:
        """Return the system's name."""
        return (
            self.topology.name
            if isinstance(self.topology, Fabric)
            else str(self.topology)
        )

    @property
    def identity(self) -> tuple[Any, ...]:
        """Return the topology's name and file digests, or the complete fabric, and the files of NCCL's variables."""
        settings = parse_env(dict(self.env))
        policy = source_digest(self.policy) if self.policy else ""
        of_nccl = repr((settings.graph_file, settings.tuner_config_file, policy))
        if isinstance(self.topology, Fabric):
            topology = self.topology
            return (
                topology.name,
                repr(topology.nodes),
                repr(topology.links),
                topology.faults,
                of_nccl,
            )
        files = tuple(file_digest(path) for path in self.fabric.source_files)
        return str(self.topology), files, of_nccl

    @property
    def release(self) -> Version:
        """Return the NCCL version."""
        return parse_version(self.version) if self.version else LATEST

    @cached_property
    def fabric(self) -> Fabric:
        """Return the fabric of the run's nodes, with the transports that the variables allow.

        The fabric has all GPUs, also those without ranks, and its faults are not applied.
        """
        machine = loaded(self.topology, self.nodes)
        if (self.routing, self.gap_ps, self.reorder) != ("auto", None, None):
            machine = reroute(machine, self.routing, self.gap_ps, self.reorder)
        machine = with_policy(machine, self.policy)
        if self.zones is not None:
            machine = on_nodes(machine, self.zones)
        return restrict_transports(
            machine, parse_env(dict(self.env)).of_release(self.release)
        )

    @cached_property
    def broken(self) -> Broken:
        """Return the faults of the topology's file and the given faults; setups share them."""
        arrays = arrays_of(self.fabric)
        broken_of: dict[tuple[Any, ...], Broken] = self.fabric.cache.setdefault(
            "faults", {}
        )
        if len(broken_of) >= KEPT:
            broken_of.clear()
        return broken_of.setdefault(self.faults, Broken(arrays, self.faults))

    def _fault_names(self, fault: Any) -> list[str]:
        """Return the links and ranks of a fault, given as text or `Fault`."""
        arrays, names = arrays_of(self.fabric), []
        for item in (
            parse_faults(self.fabric, [fault]) if isinstance(fault, str) else [fault]
        ):
            wire, name = item.wire, f"rank {item.rank}"
            if wire is not None:
                number = (
                    wire if isinstance(wire, int) else arrays.wire_names.index(wire)
                )
                back = int(arrays.wires["reverse"][number])
                name = arrays.wire_names[min(number, back)].replace("->", "<->")
            names.append(name)
        return names

    @property
    def repairable(self) -> list[str]:
        """Return a name of every fault, as `repaired` takes it; slow ranks have one name together."""
        names = [
            self._fault_names(fault)[0]
            for fault in (*self.fabric.faults, *self.faults)
        ]
        ranks = dict.fromkeys(name for name in names if name.startswith("rank "))
        links = list(dict.fromkeys(name for name in names if name not in ranks))
        return links + ([several(ranks)] if ranks else [])

    def repaired(self, what: str) -> Setup:
        """Return the setup without the faults of ``gpu0<->nvswitch0.0`` (or ``gpu0-nvswitch0.0``) or ``rank 3``.

        Several are joined as in ``rank 0 and rank 2``.

        Raises
        ------
        InputError
            The fault does not exist.
        """
        names_left = what.replace(" and ", ", ").split(", ")
        missing = set(names_left)

        def is_kept(fault: Any) -> bool:
            names = set(self._fault_names(fault))
            matches = (
                names | {name.replace("<->", "-") for name in names}
            ).intersection(names_left)
            missing.difference_update(matches)
            return not matches

        of_file = tuple(filter(is_kept, self.fabric.faults))
        faults = tuple(filter(is_kept, self.faults))
        if missing:
            listing = ", ".join(
                repr(str(fault)) for fault in (*self.fabric.faults, *self.faults)
            )
            words = ", ".join(name for name in names_left if name in missing)
            raise InputError(
                f"{words}: without fault in the baseline; faults: {listing or 'none'}"
            )
        setup = replace(self, faults=faults)
        if of_file == self.fabric.faults:
            return setup
        return setup.on(replace(self.fabric, faults=of_file))

    @property
    def doubts(self) -> list[str]:
        """Return the assumptions about the system that affect every result, with their remedies."""
        return doubts_of(self.fabric)

    @property
    def known(self) -> Fabric:
        """Return the topology known to NCCL's plans: without parts that are down at time 0."""
        return self.broken.planning_fabric

    def said(
        self, collective: Collective | None, sizes: Sequence[int]
    ) -> tuple[str, ...]:
        """Return the notes on plans: substitutes, variables without effect, changes by faults.

        Parameters
        ----------
        collective : Collective or None
            None is sends and receives.
        """
        notes = self.comm.notes
        if self.known is self.fabric:
            return notes
        healthy = plan_ways(self.healthy, collective, sizes)
        return (
            *notes,
            plan_change(healthy, plan_ways(self.comm, collective, sizes)),
        )

    @cached_property
    def comm(self) -> Communicator:
        """Return the communicator of the participating GPUs."""
        return self._communicator_on(self.known)

    @cached_property
    def healthy(self) -> Communicator:
        """Return the communicator as planned without the faults that are active at time 0."""
        return self._communicator_on(self.fabric)

    def communicators(self) -> Communicators:
        """Return new communicators of any ranks on the known topology; their rings may be changed."""
        return Communicators(self.known, self.release, parse_env(dict(self.env)))

    def _communicator_on(self, machine: Fabric) -> Communicator:
        """Return the communicator on a topology; setups that differ only in tuner variables share one search."""
        searched = tuple(item for item in self.env if item[0] not in CHOICES)
        common = shared_communicators(machine, self.release, searched)
        settings = with_plugins(self.fabric, parse_env(dict(self.env)), self.release)
        comm = common.of(self._chosen).comm
        comm = replace(
            comm, settings=replace(settings, library=comm.settings.library)
        )
        if self.messages is None:
            return comm
        channels, per_peer, least_bytes = self.messages
        return replace(
            comm,
            p2p_channels=channels,
            p2p_per_peer=per_peer,
            p2p_least_bytes=least_bytes,
        )

    @property
    def _chosen(self) -> tuple[int, ...] | None:
        """Return the participating ranks; None is all."""
        gpus = self.gpus if self.per_node is None else tuple(range(self.per_node))
        if gpus is None:
            return self.ranks
        if self.ranks is not None:
            raise InputError("ranks and GPUs per node both select ranks; use one")
        return _of_each(self.fabric, gpus)

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return self.comm.group.num_nodes

    @property
    def num_ranks(self) -> int:
        """Return the number of participating GPUs."""
        return self.comm.group.num_ranks

    def on(self, machine: Fabric) -> Setup:
        """Return the same setup on another, loaded fabric."""
        if machine is self.fabric:
            return self
        paths: dict[str, Any] = {
            "routing": "auto",
            "gap_ps": None,
            "reorder": None,
            "policy": "",
        }
        return replace(self, topology=machine, nodes=None, zones=None, **paths)

    @property
    def together(self) -> tuple[Setup, ...]:
        """Return this setup and its concurrent setups, one communicator each."""
        beside_setups = (
            replace(self, per_node=None, gpus=gpus, beside=())
            for gpus in self.beside
        )
        return (self, *beside_setups)

    def fewer(self, nodes: int) -> Setup:
        """Return the setup with `nodes` nodes: of given ones some at the same switches, if possible."""
        if self.zones is not None:
            nearest = near_nodes(
                loaded(self.topology, self.nodes), self.zones, nodes
            )
            return replace(self, zones=nearest)
        return replace(self, nodes=nodes)

    def smaller(self, nodes: int) -> Setup:
        """Return the setup with `nodes` nodes, and as many send and receive channels as this one."""
        comm = self.comm
        messages = comm.p2p_channels, comm.p2p_per_peer, comm.p2p_least_bytes
        return replace(self.fewer(nodes), messages=messages)

    def cut_for(self, num_bytes: int) -> Setup:
        """Return the setup with messages split from a size of `num_bytes`."""
        return replace(
            self,
            messages=(self.comm.p2p_channels, self.comm.p2p_per_peer, num_bytes),
        )


Stamps = tuple[tuple[str, int, int], ...]

_KNOWN: dict[tuple[str, int | None], tuple[Fabric, Stamps]] = {}
"""Loaded fabrics, oldest first, and the stamps of their files at that time."""


def _stamps(names: Iterable[str]) -> Stamps:
    """Return files with modification times and sizes, to detect changes."""
    result = [(name, os.stat(name)) for name in names if os.path.exists(name)]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in result)


def loaded(topology: str | Path | Fabric, nodes: int | None) -> Fabric:
    """Return a fabric, as `clusim.load` does.

    A process loads it once, until one of its files is changed.
    """
    if isinstance(topology, Fabric):
        if nodes is not None:
            raise InputError(
                f"nodes={nodes}: {topology.name} is joined already; load it with nodes"
            )
        return topology
    key = os.fspath(topology), nodes
    if key in _KNOWN:
        result, stamps = _KNOWN[key]
        if _stamps(result.source_files) == stamps:
            for name in result.source_files:
                note_input(name)
            return result
        del _KNOWN[key]
    result = load(topology, nodes=nodes)
    while len(_KNOWN) >= KEPT:
        del _KNOWN[next(iter(_KNOWN))]
    _KNOWN[key] = result, _stamps(result.source_files)
    return result


def _of_each(machine: Fabric, gpus: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of the GPUs with these local numbers on every node."""
    zone = {node.name: node.zone for node in machine.nodes}
    counts: dict[int, int] = {}
    ranks = []
    positions = set(gpus)
    for rank, name in enumerate(machine.ranks):
        number = counts.get(zone[name], 0)
        counts[zone[name]] = number + 1
        if number in positions:
            ranks.append(rank)
    fewest = min(counts.values(), default=0)
    count = max(gpus) + 1
    if fewest < count:
        raise InputError(
            f"{count} GPUs per node: a node of {machine.name} has {fewest}"
        )
    return tuple(ranks)
