"""Notes of every plan: chips of another library, variables without effect, variables of other releases."""

from __future__ import annotations

from collections.abc import Iterable

from clusim.hardware.catalog import FAMILIES
from clusim.nccl.constants import LATEST
from clusim.nccl.env import Settings
from clusim.nccl.rccl import library_of
from clusim.nccl.variables import VARIABLES
from clusim.topology.model import Fabric


def chips_of(fabric: Fabric) -> list[tuple[str, str, int]]:
    """Return name, architecture and compute capability times ten of every GPU."""
    ends = [
        node.endpoint
        for node in fabric.nodes
        if node.kind == "gpu" and node.endpoint
    ]
    return [(end.chip, end.architecture, end.compute_capability) for end in ends]


def assumed_like(architecture: str) -> str:
    """Return the architecture whose figures are assumed for another one, or an empty string."""
    return FAMILIES[architecture].like if architecture in FAMILIES else ""


def runs_rccl(architecture: str) -> bool:
    """Return True if GPUs of an architecture run RCCL."""
    return architecture in FAMILIES and FAMILIES[architecture].vendor == "amd"


def notes_on_chips(chips: Iterable[tuple[str, str, int]]) -> list[str]:
    """Return lines on GPUs without measurements, and on NCCL's plan for GPUs without data of RCCL.

    Parameters
    ----------
    chips : iterable of (str, str, int)
        Name, architecture and compute capability times ten of every GPU.
    """
    chip_names = list(chips)
    like = {
        name: assumed_like(architecture).capitalize()
        for name, architecture, _ in chip_names
    }
    lines = [
        f"{name}: not measured; planned and timed as {other}"
        for name, other in sorted(like.items())
        if other
    ]
    foreign = {
        name: number
        for name, architecture, number in chip_names
        if FAMILIES[architecture].vendor == "amd"
    }
    if not foreign or library_of(
        [architecture for _, architecture, _ in chip_names], LATEST
    ):
        return lines
    number = min(foreign.values())
    return [
        *lines,
        f"{' and '.join(sorted(foreign))}: runs RCCL, with a different tuner; the plan is NCCL's"
        f" for GPUs of compute capability {number / 10:.1f}",
    ]


def notes_on_variables(settings: Settings) -> list[str]:
    """Return lines for variables without effect, with the reasons, and for variables of other releases."""
    reasons: dict[str, list[str]] = {}
    for name in dict.fromkeys(settings.without_effect):
        reasons.setdefault(VARIABLES[name].reason, []).append(name)
    words = [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]
    lines = ["no effect on the simulation: " + "; ".join(words)] if words else []
    if settings.tuner_config_file is not None:
        lines += settings.tuner_config_file.notes
    unread = [
        f"{name} ({VARIABLES[name].releases})"
        for name in dict.fromkeys(settings.unread)
    ]
    return (
        [*lines, "not read by this release: " + ", ".join(unread)]
        if unread
        else lines
    )
