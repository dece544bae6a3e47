"""Times of the calls of a program on its system, in isolation and together.

**Model** A call is simulated with the calls of all groups that its ranks represent. Calls that overlap share wires
(`clusim.jobs.joint`): on all nodes of jobs of up to `MOST_RANKS` ranks, or `MOST_PLACED` if several ranks run, and for
messages and groups that do not divide the nodes evenly; collectives of larger jobs by rates on `FEW_NODES` nodes.
**Not modelled** Shared wires of collectives in larger jobs of several running ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusim.base.errors import InputError
from clusim.formats.recordings.model import ABSENT, Event, Group, Recording
from clusim.jobs.joint import JointTimes
from clusim.jobs.model import CallWork, LaunchWork
from clusim.jobs.peers import RankGroups, groups_on
from clusim.jobs.player import FRACTION, ONE, BundleStart, CallBundle
from clusim.jobs.times import Times, shared_answers
from clusim.lowering import QUICK
from clusim.replays.placing import ReplayRequest, machines_of
from clusim.replays.representative import FEW_NODES, representative
from clusim.simulation.anchors import MOST_RANKS

MOST_PLACED = 128
"""Largest job of several running ranks with collectives on shared wires [ranks]."""


class ProgramTimes:
    """Times of calls of a job: a `clusim.jobs.player.CallTimer`.

    Parameters
    ----------
    request : ReplayRequest
        System and NCCL.
    per_node : int
        Ranks per node, on its first GPUs.
    untimed : bool
        The program is only recorded: each call lasts 1 ps.

    Attributes
    ----------
    sms : int
        SMs of a GPU.
    is_apart : bool
        True after a call without shared wires.
    """

    def __init__(
        self,
        request: ReplayRequest,
        num_ranks: int,
        per_node: int,
        *,
        untimed: bool = False,
    ) -> None:
        assert request.topology is not None
        setup = request.setup(request.topology, request.version, request.env)
        job = Recording("torch", "program", num_ranks)
        self.machine = replace(representative(job, request, setup), size=per_node)
        self.num_ranks, self.untimed = num_ranks, untimed
        self.sms, self.is_apart = self.machine.sms, False
        options = (
            request.nodes,
            request.env,
            request.version,
            str(request.faults),
            per_node,
        )
        self.identity = (*setup.identity, *options)
        self.nodes = -(-num_ranks // per_node)
        self._times = Times(QUICK, shared_answers())
        self._joint: dict[int, JointTimes] = {}
        self._systems: dict[CallBundle, JointTimes] = {}
        self._held: dict[CallBundle, int] = {}

    def bundle(
        self,
        work: CallWork | LaunchWork,
        ranks: tuple[int, ...],
        groups: RankGroups,
        *,
        sole: bool,
    ) -> CallBundle:
        """Return a call of ranks with the calls of all represented groups.

        Parameters
        ----------
        groups : tuple
            Represented groups.
        sole : bool
            One rank represents all.
        """
        if self.untimed:
            return CallBundle(groups, work, 1)
        fewer = None
        if self.num_ranks > (MOST_RANKS if sole else MOST_PLACED):
            fewer = (
                self._representatives(ranks) if isinstance(work, CallWork) else None
            )
        if fewer is None or not isinstance(work, CallWork):
            return self._place(work, groups, self.nodes)
        time_ps, channels = self._time_alone(work, ranks)
        if sole:
            return self._place(work, fewer, min(self.nodes, FEW_NODES), time_ps)
        result, self.is_apart = CallBundle(groups, work, time_ps), True
        self._held[result] = channels << FRACTION
        return result

    def _representatives(self, ranks: tuple[int, ...]) -> RankGroups | None:
        """Return the groups of ranks on few nodes; None if they do not divide the nodes evenly."""
        try:
            return groups_on(min(self.nodes, FEW_NODES), ranks, self.machine.size)
        except InputError:
            return None

    def _place(
        self,
        work: CallWork | LaunchWork,
        groups: RankGroups,
        nodes: int,
        time_ps: int = ABSENT,
    ) -> CallBundle:
        """Return a call of groups on the first nodes of the system."""
        if nodes not in self._joint:
            setup = replace(self.machine.setup, nodes=nodes if nodes > 1 else None)
            self._joint[nodes] = JointTimes(setup, self._times, nodes == self.nodes)
        joint = self._joint[nodes]
        machines = machines_of(joint.setup.fabric)
        gpus = [gpu for node in machines for gpu in node[: self.machine.size]]
        placed = tuple(tuple(gpus[r] for r in group) for group in groups)
        result = CallBundle(placed, work, time_ps)
        self._systems[result] = joint
        return result

    def _time_alone(self, work: CallWork, ranks: tuple[int, ...]) -> tuple[int, int]:
        """Return time [ps] and channels of a collective, concurrent with all peer groups."""
        event = Event(
            "collective",
            0,
            operation=work.operation,
            bytes=work.bytes,
            dtype=work.dtype,
            redop=work.redop,
            root=work.root,
            where=f"torch.distributed {work.operation}",
        )

        def simulate() -> tuple[int, int]:
            kernel = self.machine.time(Group(f"group of {len(ranks)}", ranks), event)
            return kernel.time_ps, kernel.channels

        time_ps, channels = self._times.stored(
            ("program call", self.identity, event, ranks), simulate
        )
        return time_ps, channels

    def _system(self, bundle: CallBundle) -> JointTimes | None:
        """Return the system of a bundle, or of bundles that were joined; None without shared wires."""
        joint = self._joint.get(self.nodes) if bundle.time_ps == ABSENT else None
        return self._systems.get(bundle, joint)

    def isolated_ps(self, bundle: CallBundle) -> int:
        """Return the time of a bundle in isolation [ps]."""
        joint = self._system(bundle)
        return bundle.time_ps if joint is None else joint.isolated_ps(bundle)

    def is_shared(self, one: CallBundle, other: CallBundle) -> bool:
        """Return True if two bundles share wires."""
        joint = self._system(one)
        return (
            joint is not None
            and joint is self._system(other)
            and joint.is_shared(one, other)
        )

    def ends_ps(self, island: Sequence[BundleStart]) -> Sequence[int] | None:
        """Return the ends of an island's bundles [ps]; None if it is timed by rates."""
        joint = self._system(island[0].bundle)
        return None if joint is None else joint.ends_ps(island)

    def rates16(self, bundles: Sequence[CallBundle]) -> Sequence[int]:
        """Return the progress of each bundle while all are in flight [2^-16]."""
        joint = self._system(bundles[0])
        return [ONE] * len(bundles) if joint is None else joint.rates16(bundles)

    def held16(self, bundle: CallBundle) -> int:
        """Return the mean number of SMs that a bundle holds on a rank [2^-16]."""
        if bundle not in self._held:
            joint = self._system(bundle)
            self._held[bundle] = 0 if joint is None else joint.held16(bundle)
        return self._held[bundle]
