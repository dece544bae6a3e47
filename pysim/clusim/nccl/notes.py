"""What must be said of every plan: whose tuner it is not, which variables change nothing, and which only the plan."""

from __future__ import annotations

from collections.abc import Iterable

from clusim.fabric.model import Fabric
from clusim.nccl.env import PLAN_ONLY, Settings

__all__ = ["chips_of", "notes_on_chips", "notes_on_variables"]


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
    """Return a line for variables that change nothing, and one for those that change only the plan."""
    lines = []
    if settings.without_effect:
        lines.append(f"without effect here: {', '.join(dict.fromkeys(settings.without_effect))}")
    planned = [
        name for name, key in PLAN_ONLY.items() if getattr(settings, key) not in (None, False)
    ]
    if planned:
        lines.append(
            f"{', '.join(planned)}: changes the plan, not the way of the data, which p2p_level"
            " and gdr_level of the topology decide"
        )
    return lines
