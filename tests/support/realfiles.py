"""Real files and what is right about them: tests/corpus, or a larger directory that CLUSIM_CORPUS names.

What a file says is data too, in tests/corpus/answers; a larger directory has the files of the smaller one, whole.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

from support.covering import THOROUGH

SMALL = Path(__file__).resolve().parents[1] / "corpus"
CORPUS = Path(os.environ.get("CLUSIM_CORPUS") or SMALL)
IN_FULL = CORPUS != SMALL or THOROUGH
"""True if tests damage files as often as a larger corpus deserves."""


def real_files(*folders: str, pattern: str = "*") -> list[Path]:
    """Return the files of some folders of the corpus; a folder without any is an error, not a reason to skip."""
    found = []
    for folder in folders:
        paths = sorted((CORPUS / folder).glob(pattern))
        assert paths, f"no {pattern} in {CORPUS / folder}"
        found += paths
    return found


def answers(name: str) -> list[dict[str, str]]:
    """Return the rows of a table of right answers."""
    with (SMALL / "answers" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
