"""Importers of collective algorithms in other tools' formats, as schedules."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from clusim.base.extensions import find_extension

__all__ = ["plan_reader"]


def plan_reader(path: str) -> ModuleType:
    """Return the module with `read_plan` and `build` for the file of a plan: MSCCL (.xml) or MSCCL++.

    Raises
    ------
    EnvironmentFailure
        The reader of MSCCL++, of the distribution ``clusim-formats``, is not installed.
    """
    if path.lower().endswith(".xml"):
        return import_module("clusim.formats.algorithms.msccl")
    return find_extension(
        "clusim.plans", "mscclpp", f"{path}: MSCCL++ execution plan"
    ).module()
