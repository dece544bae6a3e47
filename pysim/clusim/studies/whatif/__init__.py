"""Studies of a baseline and its changes, each with the same plan and re-planned."""

from __future__ import annotations

from clusim.studies.whatif.api import PerfRun, what_if
from clusim.studies.whatif.table import ChangeOutcome, ChangeRow, WhatIf

__all__ = ["ChangeOutcome", "ChangeRow", "PerfRun", "WhatIf", "what_if"]
