"""The part of a machine that a report shows: classes of wires that carried anything, and the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clusim.results.result import Result


def used_part(result: Result) -> tuple[Result, list[str]]:
    """Return a result without the classes of wires over which nothing went, and the names of these classes.

    A machine has PCIe, host memory and NICs that a collective over NVLink leaves alone; they would only crowd the
    picture. Within a class that was used idle wires stay: that they were idle says something; and so do wires between
    the switches of a network over which anything went. If nothing was sent at all, everything stays.
    """
    wires = result.wires
    busy = {
        name
        for name, count in zip(wires.classes, wires.counters["packets"].tolist(), strict=True)
        if count
    }
    ends = list(zip((name.count("/") for name in wires.names), wires.classes, strict=True))
    if any(count == 1 and name in busy for count, name in ends):
        busy |= {name for count, name in ends if not count}
    idle = [name for name in dict.fromkeys(wires.classes) if name not in busy]
    if not busy or not idle:
        return result, []
    kept: NDArray[np.int64] = np.flatnonzero([name in busy for name in wires.classes])
    shown = replace(
        wires,
        names=[wires.names[wire] for wire in kept],
        classes=[wires.classes[wire] for wire in kept],
        rate_Bps=wires.rate_Bps[kept],
        from_endpoint=wires.from_endpoint[kept],
        counters=wires.counters[kept],
        mean_Bps=None if wires.mean_Bps is None else wires.mean_Bps[kept],
    )
    histories = {name: table[kept] for name, table in result.bins.wires.items()}
    return replace(result, wires=shown, bins=replace(result.bins, wires=histories)), idle
