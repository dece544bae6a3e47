"""What a CTA pays: NCCL's protocols Simple, LL and LL128 per GPU architecture.

**Hardware** Simple moves slices and synchronises by head and tail counters behind a fence; LL and LL128 carry flags in
the data, so that a line can be used as soon as it arrives, at 50% and 93.75% of the wire.
**Model** A fixed cost per slice step, a throughput per primitive, fences on the counters, more wire bytes per byte.
**Not modelled** Warps, the 128-byte lines themselves, unrolling.
**Parameters** The figures below, by the keys of a topology file.
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, Preset, calibrated, published

__all__ = ["ARCHITECTURES", "CTA_SKEW", "P2P", "WINDOW"]

_NPKIT = "GH200 npkit medians of 512 KiB and 1 MiB steps (spcl/atlahs): send and recv 48, recvReduceSend 37,"
_NPKIT += " recvCopySend 27, recvReduceCopySend 23 GB/s, times 0.9 while all channels share the GPU's memory system"
_NPKIT += " (all-gather and reduce-scatter of 64 to 512 MiB on 4 H100, waynehacking8); copySend has two stores per load"
_HOPPER_OPS = {
    "default": 43.0,
    "recvReduce": 33.0,
    "recvReduceSend": 33.0,
    "recvReduceCopy": 33.0,
    "reduce": 33.0,
    "copySend": 32.0,
    "recvCopySend": 24.5,
    "recvReduceCopySend": 21.0,
}
_LL_OPS = {"default": 20.0}
_LL_SOURCE = (
    "256 MiB LL all-reduce on 4 H100: 147 GB/s over 24 channels (waynehacking8); npkit LL send of 32 KiB"
    " 10 GB/s (spcl/atlahs)"
)
"""Every thread loads, stores and polls 8 bytes of data at a time."""

_SCALE = {
    "pascal": (
        0.45,
        1.5,
        "clock 1.48 against 1.98 GHz, 4 loads in flight instead of 8 (unroll), no async copies",
    ),
    "volta": (0.6, 1.4, "clock 1.53 against 1.98 GHz, 4 loads in flight instead of 8 (unroll)"),
    "ampere": (
        0.7,
        1.3,
        "clock 1.41 against 1.98 GHz; all-gather of 1 GiB on 2 A100 (simllm)",
    ),
    "ada": (1.0, 1.1, "clock 2.5 against 1.98 GHz, no asynchronous bulk copies"),
    "hopper": (1.0, 1.0, ""),
    "blackwell": (
        1.25,
        1.0,
        "NCCL's tree rate per channel 70 against 38.7 GB/s on Hopper; half of that gain",
    ),
    "cdna": (
        0.6,
        1.5,
        "not measured: RCCL runs one workgroup per channel, clock 2.1 GHz, no unroll",
    ),
}
"""Throughput factor, fixed-cost factor and why, against the measured Hopper figures."""

_BUFFERS = {
    "simple": ("4MiB", 512, 1.0, "NCCL_BUFFSIZE"),
    "ll": (
        "512KiB",
        16,
        2.0,
        "8 lines x 512 threads x 8 steps x 16 B; half of each line are flags",
    ),
    "ll128": ("4915200B", 1920, 16 / 15, "120 x 640 x 8 x 8 B; 8 of 128 B are the flag"),
}
"""FIFO per connection and channel, grain, wire bytes per data byte, explanation (nccl src/include/device.h)."""

_FIXED = {
    "simple": (
        2.4,
        "npkit steps of 4 to 32 KiB take 1.0 (recv) to 2.4 us (recvReduceCopySend) without flight; all-gather and"
        " reduce-scatter of 4 MiB on 4 GH200 and 4 H100 need 2.2 to 2.6 us a slice (simllm, waynehacking8)",
    ),
    "ll": (
        0.11,
        "npkit LL steps 92-174 ns; with 0.5 us of flight NCCL's 0.6 us per LL step (tuning.cc)",
    ),
    "ll128": (
        0.8,
        "a round of all warps; with flight and the flags' latency NCCL's 1.9 us per LL128 ring step (tuning.cc); LL128"
        " all-reduce of 256 MiB on 4 H100 313 GB/s (waynehacking8)",
    ),
}
"""Fixed cost of a slice step [us] on Hopper."""

_OWN_FIXED = {
    ("ampere", "simple"): (
        3.9,
        "all-gather, reduce-scatter of 4 MiB and all-reduce of 2 to 8 MiB on 4 A100 (simllm): 3.6 to 4.2 us a slice,"
        " which is pulled",
    ),
    ("ampere", "ll128"): (1.8, "LL128 broadcast and all-reduce of 2 to 4 MiB on 4 A100 (simllm)"),
    ("ampere", "ll"): (0.4, "8 B all-reduce on 4 A100 takes 3.9 us more than on 2 (simllm)"),
}
"""Where a measurement says more than the scale: (architecture, protocol) -> [us], source."""

_FENCE = calibrated(
    "400ns", "fence.acq_rel.sys before the tail is posted: 0.3-0.5 us, about one store's round trip"
)
_NO_FENCE = published("0", "flags travel in the data")
_LINES = calibrated(
    "1100ns",
    "until a warp has seen the flags of its 16 lines and put the data in order: NCCL's 1.9 us per LL128 ring step"
    " (tuning.cc) less 0.5 us of flight and the fixed cost",
)
_NO_HEAD_FENCE = published("0", "NCCL posts a freed slot without a fence")
_TAIL = {"simple": _FENCE, "ll": _NO_FENCE, "ll128": _LINES}


def _protocol(arch: str, name: str) -> Preset:
    speed, slow, why = _SCALE[arch]
    buffer, grain, expand, explanation = _BUFFERS[name]
    own = _OWN_FIXED.get((arch, name))
    fixed_us, fixed_source = own or (_FIXED[name][0] * slow, _FIXED[name][1])
    if slow != 1 and own is None:
        fixed_source += f"; x {slow:g} on {arch}: {why}"
    nccl = f"NCCL: {explanation}"
    table, source = (_LL_OPS, _LL_SOURCE) if name == "ll" else (_HOPPER_OPS, _NPKIT)
    ops = {op: f"{rate * speed:g} GB/s" for op, rate in table.items()}
    if speed != 1:
        source += f"; x {speed:g} on {arch}: {why}"
    rates = calibrated(ops, source)
    steps = (4, 2) if name == "simple" else (1, 1)
    return {
        "fixed": calibrated(f"{round(fixed_us * 1000)}ns", fixed_source),
        "throughput": rates,
        "expand": published(
            round(expand * 120),
            "wire bytes per 120 bytes of data: "
            + ("no flags among the data" if expand == 1 else explanation),
        ),
        "tail_fence": _TAIL[name],
        "head_fence": _NO_HEAD_FENCE if name == "simple" else _NO_FENCE,
        "buffer": published(buffer, nccl),
        "slots": published(8, "NCCL_STEPS"),
        "chunk_steps": published(steps[0], "NCCL ALLREDUCE_CHUNKSTEPS; LL and LL128 use one step"),
        "slice_steps": published(steps[1], "NCCL ALLREDUCE_SLICESTEPS; LL and LL128 use one step"),
        "grain": published(f"{grain}B", "NCCL protocol grain"),
    }


def _ideal(name: str) -> Preset:
    """Protocol of an ideal host: only the network takes time."""
    free = calibrated("0", "an ideal host: all delay is the network's")
    return {
        **_protocol("hopper", name),
        "fixed": free,
        "throughput": calibrated({"default": "100 TB/s"}, "an ideal host: never the limit"),
        "tail_fence": free,
    }


ARCHITECTURES: dict[str, dict[str, Preset]] = {
    arch: {name: _protocol(arch, name) for name in _BUFFERS} for arch in _SCALE
} | {"host": {name: _ideal(name) for name in _BUFFERS}}
"""Protocols by architecture and name."""

P2P: dict[str, Figure] = {
    arch: published(
        "read" if arch == "ampere" else "write",
        "NCCL pulls only between two sm80 GPUs (ncclTopoCheckP2p), otherwise pushes",
    )
    for arch in ARCHITECTURES
}
"""Whether NCCL's point-to-point connections over NVLink pull or push, by architecture."""

CTA_SKEW: Figure = calibrated(
    "100ns",
    "8 B all-reduces on 2 to 8 A100 take 1.3 to 2.7 us more than base plus steps (kernel start skew);"
    " spread over 24 CTAs",
)
"""Time from the start of one CTA of a collective's kernel to that of the next."""

WINDOW: Figure = calibrated(
    "32KiB", "a CTA of 512 threads with 4 of its 8 unrolled loads of 16 B in flight each"
)
"""Bytes a CTA may have requested and not yet received."""
