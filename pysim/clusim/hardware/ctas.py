"""Work of warp groups of a CTA: parameters of NCCL's kernels for all GPUs.

**Hardware** Kernels divide the warps of a CTA: by the up and down directions of a tree, by NVLS copy
loops, by messages. **Model** The throughput of a group in warps of a CTA without other work; its cost
per slice in slices of a ring. **Not modelled** Differences between chips. **Parameters** The figures
of ``ctas.yaml``.

GPU costs of DeepEP's expert exchanges, in addition to the wires.

**Hardware** Normal kernels: half of the thread blocks send, half receive. A sender scans all tokens of
the rank for each destination, and copies matching tokens; a token is sent once to each rank that has
one of its experts. Combining is the reverse, and adds up a token's copies. Between nodes a token is sent
once to each node, to the GPU with the same local index, whose blocks forward it over NVLink chunk by
chunk (csrc/kernels/internode.cu). Low-latency kernels have a block for one or several experts
(internode_ll.cu): blocks cast and send tokens in turn, to each of a token's experts, over NVLink or
RDMA.
**Model** Normal: the longer of the wire time of an all-to-all by the same number of thread blocks,
within and between nodes concurrently, and of `fixed` + (tokens x `token` + bytes / `rate`) / thread
blocks. Low latency: the longer of the wires, with a flag in each line within nodes, and of `fixed` +
experts x `expert` + the longer of tokens x `token` / thread blocks and of the intra-node bytes at
`share` of the NVLink.
**Not modelled** Full chunk buffers; extra multiprocessors that low-latency kernels hold.
**Parameters** The figures of ``ctas.yaml``, per thread block (SM).
"""

from __future__ import annotations

from pathlib import Path

from clusim.base.datafiles import read
from clusim.hardware.figures import Preset, figures, value_of

_DATA = read(Path(__file__).with_name("ctas.yaml"))

CTAS: Preset = figures(_DATA["ctas"])
"""Figures by group; trees in warps of a CTA, alone and with the opposite direction active."""

DEEPEP: Preset = figures(_DATA["deepep"])
"""Times, rates of one direction, and shares of NVLink, by name."""


def cta_figure(name: str) -> float:
    """Return the value of a figure of `CTAS`."""
    value = value_of(CTAS[name])
    if not isinstance(value, int | float):  # pragma: no cover - the table is ours
        raise TypeError(f"{name}: {value!r} is not a number")
    return value
