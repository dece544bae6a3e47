"""Replays of recorded jobs, simulated on their system or another one."""

from clusim.replays.api import replay
from clusim.replays.placing import ReplayRequest
from clusim.replays.replayreport import replay_report
from clusim.replays.report import CallResult, Replay

__all__ = ["CallResult", "Replay", "ReplayRequest", "replay", "replay_report"]
