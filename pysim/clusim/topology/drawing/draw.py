"""Topology as a picture: CPUs, the PCIe tree, GPUs, NICs, NVSwitches, and the network tiers.

A cluster is drawn as its network, with a box per node, above one node in full; parts that are drawn
equally appear once, with their number. Colours mark the link class, the legend its rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusim.base.display import Plot, picture_format
from clusim.base.errors import InputError, lacking
from clusim.topology.model import Fabric
from clusim.topology.outline import outline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(fabric: Fabric) -> Figure:
    """Return the picture as a matplotlib figure."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise lacking("pictures", "matplotlib", "plot") from None
    from clusim.topology.drawing import paint

    # Names are plain text: a `$` does not start a formula.
    with matplotlib.rc_context({"text.parse_math": False}):
        return paint.render(outline(fabric))


def plot_fabric(fabric: Fabric, figure: str = "") -> Figure:
    """Return the picture for notebooks; its name is ``machine``, its width fits the boxes."""
    if figure not in ("", "machine"):
        raise InputError(f"figure {figure!r}: a fabric has one picture, 'machine'")
    return draw(fabric)


def save_picture(fabric: Fabric, path: Path) -> None:
    """Write the picture to a file, in the format of its suffix."""
    picture_format(path)
    Plot(draw(fabric)).save(path, dpi=130)
