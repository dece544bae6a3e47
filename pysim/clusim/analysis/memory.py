"""Memory bandwidth: use of each GPU's HBM by communication and kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clusim.analysis.critical import open_traced
from clusim.analysis.tablejson import MemoryRowJson
from clusim.base.tables import ColumnTable
from clusim.engine.abi import TaskKind


def memory(path: str | Path) -> ColumnTable:
    """Return the use of each endpoint's memory, as shares of its capacity over the run.

    `communication`, `kernels` and `left` add up to 1 unless kernels did not end. `peak` is communication's share in
    its busiest time bin, which starts at `peak_at_ps`. An unfinished kernel counts with its completed part's traffic.
    """
    traced = open_traced(path)
    result, image = traced.result, traced.network.image
    total, edges = max(1, result.time_ps), result.bins.edge_ps
    widths = np.maximum(1, np.diff(edges))
    rate = 65536.0 / image["endpoints"]["mem_cost16"]  # bytes per ps
    tasks = image["tasks"][: len(result.tasks.end_ps)]
    kernel_bytes = np.zeros(len(rate), np.int64)
    if len(tasks):
        ended = result.tasks.end_ps >= 0
        kernels = (tasks["kind"] == TaskKind.KERNEL) & ended
        np.add.at(
            kernel_bytes,
            tasks["endpoint"][kernels],
            tasks["mem_bytes"][kernels].astype(np.int64),
        )
    if (blocks := result.tasks.blocks) is not None:
        done = result.tasks.end_ps[blocks.pause] >= 0
        owner = traced.inputs.rank_endpoint[blocks.rank[done]]
        np.add.at(kernel_bytes, owner, blocks.memory[done])
    rows = []
    for endpoint in range(len(rate)):
        history = result.bins.hbm_bytes[endpoint]
        kernel = int(history.sum())
        shares = history / widths / rate[endpoint] if len(history) else np.zeros(1)
        top = int(np.argmax(shares)) if len(shares) else 0
        room = float(rate[endpoint]) * total
        talk, work = kernel / room, int(kernel_bytes[endpoint]) / room
        at = int(edges[top]) if len(history) else 0
        rows.append(
            (
                traced.network.endpoint_name(endpoint),
                traced.network.ranks[endpoint],
                float(rate[endpoint]) * 1000,
                kernel,
                kernel / total * 1000,
                talk,
                float(shares[top]),
                at,
                int(kernel_bytes[endpoint]),
                int(kernel_bytes[endpoint]) / total * 1000,
                work,
                1.0 - talk - work,
            )
        )
    rows.sort(key=lambda row: (-(row[5] + row[10]), row[1]))
    table = ColumnTable.of(MemoryRowJson.__annotations__, rows, traced.facts)
    if rows:
        row = table.rows()[0]
        table.notes.append(
            f"{row['endpoint']} uses its memory most: communication {row['communication']:.1%}, kernels"
            f" {row['kernels']:.1%}; communication peaks at {max(table.columns['peak']):.1%} of a memory's rate"
        )
    return table
