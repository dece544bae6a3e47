"""Times of the passes of a pipeline, if only the passes before them delay them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.workload.pipeline_schedules import Action, StageLayout, before


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Passes with times on an ideal system, in which only passes need time.

    Attributes
    ----------
    start, end : list of dict
        By stage: action -> slot.
    slots : int
        Length of the step.
    """

    start: list[dict[Action, int]]
    end: list[dict[Action, int]]
    slots: int

    def busy(self, stage: int) -> int:
        """Return the slots in which a stage works."""
        return sum(
            self.end[stage][action] - self.start[stage][action]
            for action in self.end[stage]
        )

    @property
    def idle(self) -> int:
        """Idle slots of all stages together."""
        return sum(self.slots - self.busy(stage) for stage in range(len(self.end)))


def timeline(
    orders: Sequence[Sequence[Action | list[Action]]],
    layout: StageLayout | None = None,
    *,
    forward: int = 1,
    backward: int = 2,
    weight: int = 1,
) -> PassTimes:
    """Compute the times of all passes on an ideal system, with these slots per pass.

    If the orders contain W, `backward` is the time of the input gradients only. Without a layout parts cycle
    through the stages. Passes in a list run in parallel: their results are available when all are complete.
    Raises `InputError` if stages wait for each other.
    """
    stages = len(orders)
    length = {"F": forward, "B": backward, "W": weight, "BW": backward + weight}
    if layout is None:
        chunks = 1 + max(
            (
                a.chunk
                for actions_of_stage in orders
                for stage_actions in actions_of_stage
                for a in _as_list(stage_actions)
            ),
            default=0,
        )
        layout = StageLayout(stages, chunks)
    start: list[dict[Action, int]] = [{} for _ in orders]
    end: list[dict[Action, int]] = [{} for _ in orders]
    times: list[dict[Action, int]] = [{} for _ in orders]
    at = [0] * stages
    clock = [0] * stages
    moved = True
    while moved:
        moved = False
        for stage, actions_of_stage in enumerate(orders):
            while at[stage] < len(actions_of_stage):
                actions = _as_list(actions_of_stage[at[stage]])
                sources = [before(action, stage, layout) for action in actions]
                needed = [source for source in sources if source is not None]
                if any(action not in times[other] for other, action in needed):
                    break
                clock[stage] = max(
                    clock[stage], *(times[s][a] for s, a in needed), 0
                )
                for action in actions:
                    start[stage][action.gives] = clock[stage]
                    clock[stage] += length[action.kind]
                    end[stage][action.gives] = clock[stage]
                times[stage] |= {action.gives: clock[stage] for action in actions}
                at[stage] += 1
                moved = True
    for stage, actions_of_stage in enumerate(orders):
        if at[stage] < len(actions_of_stage):
            raise InputError(
                f"pipeline orders: stage {stage} waits for ever to do {_as_list(actions_of_stage[at[stage]])[0]}"
            )
    return PassTimes(start, end, max(clock))


def _as_list(action: Action | list[Action]) -> list[Action]:
    return [action] if isinstance(action, Action) else action
