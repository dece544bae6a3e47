"""How busy reduction units were: from the completed slices, since a unit has no counters of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis import loops
from clusim.analysis.network import Network
from clusim.analysis.slices import Slices
from clusim.engine.abi import ConnKind, Op
from clusim.engine.opcodes import OP_FLAGS
from clusim.results.trace.held import Records

Array = NDArray[Any]


def unit_busy_ps(
    records: Records, slices: Slices, network: Network, edge_ps: Array
) -> Array | None:
    """Return the time each unit reduced in each bin [ps], shape (units, bins); None without units.

    A slice's operands are taken as spread evenly over the slice's time and over the units behind its connection.
    """
    image = network.image
    if (
        not len(image["units"])
        or not (image["conns"]["kind"] == ConnKind.MULTIMEM).any()
        or len(edge_ps) < 2
    ):
        return None
    count_spans = loops.count_spans
    if records.count * len(image["units"]) > loops.PLAIN:
        from clusim.analysis._kernels import count_spans
    reduces = (OP_FLAGS[image["prims"]["opcode"]] & Op.REDUCE) != 0
    busy = np.zeros((len(image["units"]), len(edge_ps) - 1))
    for block in records.blocks():
        for instance in np.unique(block["instance"]).tolist():
            table = slices.table(instance)
            if not reduces[table.prim].any():
                continue
            mine = block["instance"] == instance
            seq = block["seq"][mine]
            wanted = reduces[table.prims(seq)]
            if not wanted.any():
                continue
            prims = table.prim[seq[wanted]]
            for prim in np.unique(prims).tolist():
                connection = slices.connection(instance, prim, send=True)
                units = network.units_of(connection)
                off, group = image["mgroup_off"], int(image["conns"]["mgroup"][connection])
                members = int(off[group + 1] - off[group])
                now = prims == prim
                start = block["gate"][mine][wanted][now]
                end = block["time"][mine][wanted][now]
                size = table.bytes[seq[wanted]][now] * (members / max(1, len(units)))
                spread = count_spans(start, end, size.astype(np.float64), edge_ps)
                for unit in units:
                    busy[unit] += spread * (int(image["units"]["cost16"][unit]) / 65536)
    return busy
