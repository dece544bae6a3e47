"""A fabric as a picture: CPUs, the PCIe tree, GPUs, adapters, NVSwitches, and the tiers of the network.

A cluster is drawn as its network, with a box per machine, above one machine in full; parts that look alike are drawn
once, with their number. Colours say what a link is, the legend its rate.
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

    # Names are texts: a `$` in one starts no formula.
    with matplotlib.rc_context({"text.parse_math": False}):
        return paint.render(outline(fabric))


def plot_fabric(fabric: Fabric, figure: str = "") -> Figure:
    """Return the picture for notebooks; there is one, ``machine``, as wide as its boxes need."""
    if figure not in ("", "machine"):
        raise InputError(f"figure {figure!r}: a fabric has one picture, 'machine'")
    return draw(fabric)


def save_picture(fabric: Fabric, path: Path) -> None:
    """Write the picture to a file; its suffix says the format."""
    picture_format(path)
    Plot(draw(fabric)).save(path, dpi=130)
