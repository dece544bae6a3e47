"""What if: a baseline and changes to it, each with the plan held and with the plan that would then be made."""

from __future__ import annotations

from clusim.studies.whatif.api import PerfRun, what_if
from clusim.studies.whatif.table import ChangeOutcome, ChangeRow, WhatIf

__all__ = ["ChangeOutcome", "ChangeRow", "PerfRun", "WhatIf", "what_if"]
