"""Software of measured rows from the dates and texts beside them: release of the library, plugin, variables, launch.

Only properties that a row leaves blank are inferred. A text names them (``NCCL 2.26.3``, ``ROCm 6.2``, ``aws-ofi-nccl
1.13.2``, ``NCCL_CROSS_NIC=0``, ``-g 8``), or has the month of a container of NVIDIA (``NGC 25.04``) with the newest
NCCL of that time. A column `date` also selects the newest NCCL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusim.base.errors import ClusimError
from clusim.nccl.constants import RELEASE_MONTHS
from clusim.nccl.env import parse_env
from clusim.nccl.rccl import RELEASES

_NCCL = re.compile(r"\bNCCL(?: version)?[ :=v]+(2\.\d+(?:\.\d+)?)", re.IGNORECASE)
_ROCM = re.compile(r"\bROCm[ :=v]*(\d+\.\d+)", re.IGNORECASE)
_PLUGIN = re.compile(r"\b(aws-ofi-nccl)[ :=v]*(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)
_VARIABLE = re.compile(r"\bNCCL_[A-Z0-9_]+=[^\s,;]+")
_LAUNCH = re.compile(r"(?<!\S)-([gt]) ?(\d+)\b")
_NGC = re.compile(r"\b(?:NGC|nvcr\.io/nvidia/pytorch:) ?(\d\d)\.(\d\d)\b")
_DATE = re.compile(r"\b(20[12]\d)-(0[1-9]|1[0-2])\b")


@dataclass(frozen=True, slots=True)
class ShownSoftware:
    """An inferred property of a row: column and value, and the text that shows it."""

    column: str
    value: str
    text: str

    def note(self) -> str:
        """Return a note for people."""
        return f"{self.column} {self.value} inferred from {self.text!r}"


def infer_columns(
    cells: Mapping[str, str], texts: Mapping[str, str]
) -> list[ShownSoftware]:
    """Return the software in texts of a row for its blank cells.

    Parameters
    ----------
    texts : mapping
        Cells of columns without other effect.
    """
    columns = [
        evidence
        for name, text in texts.items()
        for evidence in _find_properties(text, dated=name == "date")
        if not cells.get(evidence.column)
        and not (evidence.column == "nccl_version" and cells.get("release"))
    ]
    first: dict[str, ShownSoftware] = {}
    for evidence in columns:
        first.setdefault(evidence.column, evidence)
    return list(first.values())


def _find_properties(text: str, *, dated: bool) -> Iterator[ShownSoftware]:
    """Yield the properties that a text shows, named ones before those of a month; `dated` texts are dates."""
    for match in _NCCL.finditer(text):
        yield ShownSoftware("nccl_version", match[1], match[0])
    for match in _ROCM.finditer(text):
        if release := _of_rocm(match[1]):
            yield ShownSoftware("nccl_version", release, match[0])
    for match in _PLUGIN.finditer(text):
        yield ShownSoftware("plugin", f"{match[1].lower()} {match[2]}", match[0])
    variables = [
        match[0] for match in _VARIABLE.finditer(text) if _is_obeyed(match[0])
    ]
    if variables:
        yield ShownSoftware("environment", " ".join(variables), ", ".join(variables))
    for match in _LAUNCH.finditer(text):
        column = "gpus_per_process" if match[1] == "g" else "threads_per_process"
        yield ShownSoftware(column, match[2], match[0])
    for match in (*_NGC.finditer(text), *(_DATE.finditer(text) if dated else ())):
        year = match[1] if len(match[1]) == 4 else f"20{match[1]}"
        if release := release_of_date(f"{year}-{match[2]}"):
            yield ShownSoftware("nccl_version", release, match[0])


def release_of_date(month: str) -> str:
    """Return the newest release of NCCL before a month (``2025-04``); empty before the first."""
    older = [release for release, since in RELEASE_MONTHS.items() if since < month]
    return older[-1] if older else ""


def _of_rocm(text: str) -> str:
    """Return the release of RCCL in a ROCm; empty before the first with data."""
    older = [
        release
        for release, rocm in RELEASES.items()
        if _numbers(rocm) <= _numbers(text)
    ]
    return older[-1] if older else ""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _is_obeyed(assignment: str) -> bool:
    """Return True if a variable is simulated; the network is the system's."""
    name, _, value = assignment.partition("=")
    if name in ("NCCL_NET", "NCCL_IB_HCA"):
        return False
    try:
        return bool(parse_env({name: value}).names)
    except ClusimError:
        return False
