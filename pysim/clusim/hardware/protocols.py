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
_NPKIT += " recvCopySend 27, recvReduceCopySend 23 GB/s"
_NPKIT += "; default like send: copySend is a send where input and output are the same buffer"
_HOPPER_OPS = {
    "default": 48.0,
    "recvReduce": 37.0,
    "recvReduceSend": 37.0,
    "recvReduceCopy": 37.0,
    "reduce": 37.0,
    "recvCopySend": 27.0,
    "recvReduceCopySend": 23.0,
}

_SCALE = {
    "pascal": (
        0.45,
        1.5,
        "clock 1.48 against 1.98 GHz, 4 loads in flight instead of 8 (unroll), no async copies",
    ),
    "volta": (0.6, 1.4, "clock 1.53 against 1.98 GHz, 4 loads in flight instead of 8 (unroll)"),
    "ampere": (0.75, 1.3, "clock 1.41 against 1.98 GHz"),
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
        1.1,
        "npkit steps of 4 to 32 KiB take 1.0-1.3 us (send, recvCopySend), flight not included",
    ),
    "ll": (
        0.11,
        "npkit LL steps 92-174 ns; with 0.5 us of flight NCCL's 0.6 us per LL step (tuning.cc)",
    ),
    "ll128": (1.35, "NCCL's 1.9 us per LL128 ring step (tuning.cc) less 0.5 us of flight"),
}
"""Fixed cost of a slice step [us] on Hopper."""

_FENCE = calibrated(
    "400ns", "fence.acq_rel.sys before the tail is posted: 0.3-0.5 us, about one store's round trip"
)
_NO_FENCE = published("0", "flags travel in the data")
_NO_HEAD_FENCE = published("0", "NCCL posts a freed slot without a fence")


def _protocol(arch: str, name: str) -> Preset:
    speed, slow, why = _SCALE[arch]
    buffer, grain, expand, explanation = _BUFFERS[name]
    fixed_us, fixed_source = _FIXED[name]
    scaled = f"; x {slow:g} on {arch}: {why}" if slow != 1 else ""
    nccl = f"NCCL: {explanation}"
    ops = {op: f"{rate * speed:g} GB/s" for op, rate in _HOPPER_OPS.items()}
    source = _NPKIT if arch == "hopper" else f"{_NPKIT}; x {speed:g} on {arch}: {why}"
    rates = Figure(ops, "measured" if arch == "hopper" else "calibrated", source)
    steps = (4, 2) if name == "simple" else (1, 1)
    return {
        "fixed": calibrated(f"{round(fixed_us * slow * 1000)}ns", fixed_source + scaled),
        "throughput": rates,
        "expand": published(
            round(expand * 120),
            "wire bytes per 120 bytes of data: "
            + ("no flags among the data" if expand == 1 else explanation),
        ),
        "tail_fence": _FENCE if name == "simple" else _NO_FENCE,
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
