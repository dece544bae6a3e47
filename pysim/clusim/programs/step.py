"""Simulation of a recorded step: kernels and collectives with shared SMs and wires.

**Model** One rank represents all: its kernels and collectives share its SMs (`clusim.replays.api.play`). Wires are
shared only by collectives of different communicators; a step with several communicators is simulated with all ranks, as
packets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusim.base.errors import InputError
from clusim.formats.recordings.model import Event, Group, Recording
from clusim.lowering import QUICK
from clusim.programs.clock import IssuedCall
from clusim.replays.api import Representative, played, representative
from clusim.replays.full_job import replay_recording
from clusim.replays.placing import ReplayRequest
from clusim.results.diagnosis import Verdict
from clusim.simulation.job import RunOptions
from clusim.simulation.session import Watch

MOST_TASKS = 200_000
"""Largest step, in operations of all ranks, that is simulated as one schedule of all ranks."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of a step [ps]: `alone_ps` is without mutual disturbance; `whole` is True if all ranks were simulated."""

    alone_ps: int
    time_ps: int
    whole: bool
    verdict: Verdict | None = None


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
        if len(groups) < 2 or len(recording.events) * self.num_ranks > MOST_TASKS:
            return StepTime(alone.least_ps, alone.time_ps, whole=False)
        job = replace(recording, events=list(recording.events), alike=False)
        try:
            asked = replace(self.request, gap="none", granularity=QUICK)
            result = replay_recording(job.finish(), asked, RunOptions(confirm=False))
        except InputError:
            return StepTime(alone.least_ps, alone.time_ps, whole=False)
        return StepTime(alone.least_ps, result.total_ps, whole=True, verdict=result.verdict)


def _digest(events: Sequence[Event]) -> str:
    text = "\n".join(
        f"{e.kind} {e.stream} {e.name} {e.deps} {e.duration_ps} {e.group} {e.operation} {e.bytes}"
        for e in events
    )
    return hashlib.sha256(text.encode()).hexdigest()
