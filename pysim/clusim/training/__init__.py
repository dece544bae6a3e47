"""Training steps, simulated: a workload and a fabric in, a `TrainingResult` out."""

from __future__ import annotations

from clusim.training.api import train
from clusim.training.breakdown import Breakdown, breakdown
from clusim.training.request import TrainRequest
from clusim.training.result import TrainingResult
from clusim.training.run import trained
from clusim.training.sweep import scaling
from clusim.training.trainingreport import training_report

__all__ = [
    "Breakdown",
    "TrainRequest",
    "TrainingResult",
    "breakdown",
    "scaling",
    "train",
    "trained",
    "training_report",
]
