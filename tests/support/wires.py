"""What can be asked of the wires of a result."""

from __future__ import annotations

from clusim.results.result import Wires


def leaving_gpus(wires: Wires) -> float:
    """Return the payload that leaves all GPUs [bytes]."""
    sources = [name.partition("->")[0].rpartition("/")[2] for name in wires.names]
    own = [index for index, name in enumerate(sources) if name.startswith("gpu")]
    return float(wires.counters["payload"][own].sum())
