"""Notes of every plan: chips of another library, variables without effect, variables of other releases."""

from __future__ import annotations

from collections.abc import Iterable

from clusim.nccl.env import Settings
from clusim.nccl.variables import VARIABLES
from clusim.topology.model import Fabric


def chips_of(fabric: Fabric) -> list[tuple[str, str, int]]:
    """Return name, architecture and compute capability times ten of every GPU."""
    ends = [node.endpoint for node in fabric.nodes if node.kind == "gpu" and node.endpoint]
    return [(end.chip, end.architecture, end.compute_capability) for end in ends]


def notes_on_chips(chips: Iterable[tuple[str, str, int]]) -> list[str]:
    """Return a line if NCCL's plan stands in for another library's.

    Parameters
    ----------
    chips : iterable of (str, str, int)
        Name, architecture and compute capability times ten of every GPU.
    """
    foreign = {name: number for name, architecture, number in chips if architecture == "cdna"}
    if not foreign:
        return []
    number = min(foreign.values())
    return [
        f"{' and '.join(sorted(foreign))}: runs RCCL, whose tuner is another one; the plan is NCCL's"
        f" for GPUs of compute capability {number / 10:.1f}"
    ]


def notes_on_variables(settings: Settings) -> list[str]:
    """Return lines for variables that change nothing, with the reasons, and for those of other releases."""
    reasons: dict[str, list[str]] = {}
    for name in dict.fromkeys(settings.without_effect):
        reasons.setdefault(VARIABLES[name].reason, []).append(name)
    words = [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]
    lines = ["without effect here: " + "; ".join(words)] if words else []
    unread = [f"{name} ({VARIABLES[name].releases})" for name in dict.fromkeys(settings.unread)]
    return [*lines, "not read by this release: " + ", ".join(unread)] if unread else lines
