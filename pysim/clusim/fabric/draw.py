"""A fabric as a picture: CPUs, the PCIe tree, GPUs, adapters, NVSwitches, and the tiers of the network.

A cluster is drawn as its network, with a box per machine, above one machine in full; parts that look alike are drawn
once, with their number. Colours say what a link is, the legend its rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusim.errors import EnvironmentFailure, InputError
from clusim.fabric.model import Fabric
from clusim.fabric.outline import outline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "save_picture"]


def draw(fabric: Fabric) -> Figure:
    """Return the picture as a matplotlib figure."""
    try:
        from clusim.fabric.drawing import paint
    except ImportError:
        raise EnvironmentFailure("pictures need matplotlib: pip install matplotlib") from None
    return paint.render(outline(fabric))


def save_picture(fabric: Fabric, path: Path) -> None:
    """Write the picture to a file; its suffix says the format."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("svg", "png", "pdf"):
        raise InputError(f"{path}: pictures are .svg, .png or .pdf")
    figure = draw(fabric)
    import matplotlib

    try:
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "clusim"}):
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(path, format=kind, dpi=130, metadata=metadata)
    except OSError as error:
        raise EnvironmentFailure(f"{path}: cannot be written: {error.strerror or error}") from None
