"""Replays of recorded jobs: a log or trace of a real job in, its calls simulated on that machine or another one out."""

from clusim.replay.front import replay
from clusim.replay.report import CallResult, Replay
from clusim.replay.text import replay_report

__all__ = ["CallResult", "Replay", "replay", "replay_report"]
