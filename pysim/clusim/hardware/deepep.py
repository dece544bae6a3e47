"""GPU costs of DeepEP's expert exchanges, in addition to the wires.

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
**Parameters** The figures below, per thread block (SM).
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, calibrated

_ROWS, _QUICK = "deepep-h100", "deepep-low-latency-h100"


def _read(value: str, what: str) -> Figure:
    return calibrated(value, f"{what}, aiconfigurator's tables of DeepEP on 8 H100", _ROWS)


def _quick(value: str | float, what: str) -> Figure:
    return calibrated(value, f"{what}, aiconfigurator's tables of DeepEP on 8 H100", _QUICK)


_ONE = "line through the rows with one token"
_MANY = "median of the rows with 1,024 tokens and 128 experts or more, of 450 GB/s"
_FEW = "median of the rows with 1,024 tokens and 16 experts or fewer"

DEEPEP: dict[str, Figure] = {
    "dispatch_fixed": _read("25.6us", "median of the rows with one token"),
    "combine_fixed": _read("37.5us", "median of the rows with one token"),
    "dispatch_token": _read("419ns", "fit to rows with 4 SMs and 2,048 tokens or more"),
    "combine_token": _read("780ns", "fit to rows with 4 SMs and 2,048 tokens or more"),
    "dispatch_rate": _read("23.5 GB/s", "fit to rows with 4 SMs and 2,048 tokens or more"),
    "combine_rate": _read("29.1 GB/s", "fit to rows with 4 SMs and 2,048 tokens or more"),
    "low_latency_dispatch_fixed": _quick("8.7us", _ONE),
    "low_latency_combine_fixed": _quick("10.9us", _ONE),
    "low_latency_dispatch_expert": _quick("15.8ns", _ONE),
    "low_latency_combine_expert": _quick("6.6ns", _ONE),
    "low_latency_dispatch_token": _quick("2.44us", _FEW),
    "low_latency_combine_token": _quick("902ns", _FEW),
    "low_latency_dispatch_share": _quick(0.536, _MANY),
    "low_latency_combine_share": _quick(0.467, _MANY),
}
"""Times, rates of one direction, and shares of NVLink, by name."""
