"""Unmodified programs on a simulated system, in virtual time."""

from clusim.programs.launch import (
    ProgramRanks,
    RecordedStep,
    TorchProgram,
    run_program,
)
from clusim.programs.report import ProgramRun

__all__ = [
    "ProgramRanks",
    "ProgramRun",
    "RecordedStep",
    "TorchProgram",
    "run_program",
]
