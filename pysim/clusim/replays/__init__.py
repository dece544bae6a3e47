"""Replays of recorded jobs: a log or trace of a real job in, its calls simulated on that machine or another one out."""

from clusim.replays.api import replay
from clusim.replays.replayreport import replay_report
from clusim.replays.report import CallResult, Replay
from clusim.replays.request import ReplayRequest

__all__ = ["CallResult", "Replay", "ReplayRequest", "replay", "replay_report"]
