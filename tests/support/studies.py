"""What comes out of a request of any kind: a module that other processes find as well."""

from __future__ import annotations

from typing import Any

from clusim.replays import ReplayRequest, replay
from clusim.simulation.api import result_of
from clusim.simulation.request import Request, ScheduleRequest, TrafficRequest
from clusim.training import TrainRequest, trained

__all__ = ["study"]


def study(request: object) -> Any:
    """Return the fingerprint of a run or a training step, the JSON of a replay."""
    if isinstance(request, ReplayRequest):
        return replay(request).to_json()
    if isinstance(request, TrainRequest):
        return trained(request).result.fingerprint
    assert isinstance(request, Request | ScheduleRequest | TrafficRequest)
    return result_of(request).fingerprint
