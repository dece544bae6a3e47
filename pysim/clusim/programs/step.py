"""Simulation of a recorded step: kernels and collectives with shared SMs and wires.

**Model** One rank represents all: its kernels and collectives share its SMs (`clusim.replays.api.play`). Wires are
shared only by collectives of different communicators; a step with several communicators is simulated with all ranks, as
packets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusim.formats.recordings.model import MOST_REPEATED, Event, Group, Recording
from clusim.lowering import QUICK
from clusim.programs.clock import IssuedCall
from clusim.replays.api import Representative, played, representative
from clusim.replays.full_job import replay_recording
from clusim.replays.placing import ReplayRequest
from clusim.simulation.job import RunOptions
from clusim.simulation.session import Watch


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of a step.

    Attributes
    ----------
    alone_ps, time_ps : int
        Time without and with mutual disturbance of kernels and collectives [ps].
    whole : bool
        All ranks were simulated.
    apart : bool
        Several communicators were taken to share no wires, because the step is too large or its groups are no grid.
    """

    alone_ps: int
    time_ps: int
    whole: bool = False
    apart: bool = False


class Steps:
    """Times of calls and steps of a job of equal ranks.

    Parameters
    ----------
    request : ReplayRequest
        System and NCCL.
    """

    def __init__(self, request: ReplayRequest, num_ranks: int) -> None:
        assert request.topology is not None
        self.request, self.num_ranks = request, num_ranks
        setup = request.setup(request.topology, request.version, request.env)
        self.machine: Representative = representative(
            Recording("torch", "program", num_ranks), request, setup
        )
        self._calls: dict[IssuedCall, int] = {}
        self._steps: dict[str, StepTime] = {}

    def time_of(self, call: IssuedCall) -> int:
        """Return the time of a call on its ranks, concurrent with the calls of all peer groups [ps]."""
        if call not in self._calls:
            event = Event(
                "collective", 0, operation=call.operation, bytes=call.bytes,
                dtype=call.dtype, redop=call.redop, root=call.root, where=f"torch.distributed {call.operation}",
            )  # fmt: skip
            group = Group(f"group of {len(call.ranks)}", call.ranks)
            self._calls[call] = self.machine.time(group, event).time_ps
        return self._calls[call]

    def step(self, recording: Recording) -> StepTime:
        """Return the time of a step; equal steps are simulated once."""
        key = _digest(recording.events)
        if key not in self._steps:
            self._steps[key] = self._simulated(recording)
        return self._steps[key]

    def _simulated(self, recording: Recording) -> StepTime:
        alone = played(recording, self.machine, Watch())
        groups = {event.group for event in recording.events if event.kind == "collective"}
        if len(groups) < 2:
            return StepTime(alone.least_ps, alone.time_ps)
        job = replace(recording, events=list(recording.events), alike=False)
        too_large = len(recording.events) * self.num_ranks > MOST_REPEATED
        if too_large or len(job.finish().unrecorded) < self.num_ranks - 1:
            return StepTime(alone.least_ps, alone.time_ps, apart=True)
        asked = replace(self.request, gap="none", granularity=QUICK)
        result = replay_recording(job, asked, RunOptions(confirm=False))
        return StepTime(alone.least_ps, result.total_ps, whole=True)


def _digest(events: Sequence[Event]) -> str:
    return hashlib.sha256(repr(events).encode()).hexdigest()
