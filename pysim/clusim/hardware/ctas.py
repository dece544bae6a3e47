"""Work of warp groups of a CTA: parameters of NCCL's kernels for all GPUs.

**Hardware** Kernels divide the warps of a CTA: by the up and down directions of a tree, by NVLS copy
loops, by messages. **Model** The throughput of a group in warps of a CTA without other work; its cost
per slice in slices of a ring. **Not modelled** Differences between chips. **Parameters** The figures
below.

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
**Parameters** The figures below, per thread block (SM).
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, Preset, calibrated

_ROWS, _QUICK = "deepep-h100", "deepep-low-latency-h100"


def _read(value: str, subject: str) -> Figure:
    return calibrated(value, f"{subject}, aiconfigurator's tables of DeepEP on 8 H100", _ROWS)


def _quick(value: str | float, subject: str) -> Figure:
    return calibrated(value, f"{subject}, aiconfigurator's tables of DeepEP on 8 H100", _QUICK)


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


_ALONE = "Tree Simple: 25 us for every 512 KiB more in a single chunk on the way up and down"
_BOTH = "Tree Simple: 66 us for every 512 KiB of many chunks"
_LINES = "Tree LL128: 77 us for every 480 KiB of many chunks"
_WHOLE = "Tree LL128: 11 us from 4 to 16 KiB, as a CTA without other work"


def _tree(warps: float, source: str) -> Figure:
    return calibrated(
        warps, f"{source} (all-reduce on 4 p5en with one channel, ncclgauge)", "p5en-1-channel"
    )


CTAS: Preset = {
    "tree simple up alone": _tree(14, _ALONE),
    "tree simple down alone": _tree(14, _ALONE),
    "tree simple up": _tree(10, _BOTH),
    "tree simple down": _tree(10, _BOTH),
    "tree ll128 up alone": _tree(20, _WHOLE),
    "tree ll128 down alone": _tree(20, _WHOLE),
    "tree ll128 up": _tree(12, _LINES),
    "tree ll128 down": _tree(8, _LINES),
    "local copy": calibrated(
        1.4,
        "copy rate of a warp in its GPU's memory over its send rate to another GPU: NVLS all-reduce of 2 to 256 MiB"
        " on 8 H100 (AI-benchmarking-guide)",
        "azure-hopper",
    ),
    "nvls flags": calibrated(
        1.5,
        "fixed cost of a loop of copies for the flags of all heads, in slices: loops of 2, 4 and 8 MiB on 8 H100"
        " last 12, 20 and 32 us (AI-benchmarking-guide)",
        "azure-hopper",
    ),
    "messages pushed": calibrated(
        2,
        "slices of pushed messages per fixed cost of a slice of a collective: 1.0 us for a receive where a"
        " slice lasts 2.4 us (npkit on GH200, spcl/atlahs)",
        "npkit-gh200",
    ),
}
"""Figures by group; trees in warps of a CTA, alone and with the opposite direction active."""


def cta_figure(name: str) -> float:
    """Return the value of a figure of `CTAS`."""
    value = CTAS[name].value
    if not isinstance(value, int | float):  # pragma: no cover - the table is ours
        raise TypeError(f"{name}: {value!r} is not a number")
    return value
