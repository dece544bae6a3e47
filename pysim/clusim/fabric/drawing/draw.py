"""A fabric as a picture: CPUs, the PCIe tree, GPUs, adapters, NVSwitches, and the tiers of the network.

A cluster is drawn as its network, with a box per machine, above one machine in full; parts that look alike are drawn
once, with their number. Colours say what a link is, the legend its rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusim.errors import EnvironmentFailure, InputError
from clusim.fabric.model import Fabric
from clusim.fabric.outline import outline
from clusim.files import replacing

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
    import matplotlib

    # Names are texts: a `$` in one starts no formula.
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "clusim", "text.parse_math": False}
    with matplotlib.rc_context(style):
        figure = draw(fabric)
        metadata = {"Date": None} if kind == "svg" else None
        with replacing(path) as out:
            figure.savefig(out, format=kind, dpi=130, metadata=metadata)
