"""Unmodified programs on a simulated system, in virtual time."""

from clusim.programs.launch import TorchProgram, run_program
from clusim.programs.report import ProgramRun

__all__ = ["ProgramRun", "TorchProgram", "run_program"]
