"""Replays of recorded jobs: a log or trace of a real job in, its calls simulated on that machine or another one out."""

from clusim.replaying.front import replay
from clusim.replaying.replayreport import replay_report
from clusim.replaying.report import CallResult, Replay
from clusim.replaying.request import ReplayRequest

__all__ = ["CallResult", "Replay", "ReplayRequest", "replay", "replay_report"]
