"""CTA costs of NCCL's protocols Simple, LL and LL128, by GPU architecture.

**Hardware** Simple moves slices and synchronises by head and tail counters behind a fence; LL and LL128 carry flags in
the data, so that a line can be used as soon as it arrives, at 50% and 93.75% of the wire.
**Model** A fixed cost per slice step, a throughput per primitive, fences on the counters, more wire bytes per byte.
**Not modelled** Warps, the 128-byte lines themselves, unrolling.
**Parameters** The figures below, by the keys of a topology file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusim.hardware.figures import Figure, Preset, assumed, calibrated, published

_NPKIT = "GH200 npkit medians of 512 KiB and 1 MiB steps (spcl/atlahs): send and recv 48, recvReduceSend 37,"
_NPKIT += " recvCopySend 27, recvReduceCopySend 23 GB/s, times 0.9 while all channels share the GPU's memory system"
_NPKIT += " (all-gather and reduce-scatter of 64 to 512 MiB on 4 H100, waynehacking8); copySend has two stores"
_NPKIT += " per load; a further source or destination of a primitive as send and recvReduceSend, recvCopySend differ"
_HOPPER_OPS = {
    "default": 43.0,
    "recvReduce": 33.0,
    "recvReduceSend": 33.0,
    "recvReduceCopy": 33.0,
    "reduce": 33.0,
    "copySend": 32.0,
    "recvCopySend": 24.5,
    "recvReduceCopySend": 21.0,
    "recvReduceMore": 142.0,
    "sendMore": 57.0,
}
_LL128_OPS = {**_HOPPER_OPS, "sendMore": 70.0}
_LL_OPS = {"default": 20.0}
_LL_SOURCE = (
    "256 MiB LL all-reduce on 4 H100: 147 GB/s over 24 channels (waynehacking8); npkit LL send of 32 KiB"
    " 10 GB/s (spcl/atlahs)"
)
"""Every thread loads, stores and polls 8 bytes of data at a time."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed of the CTAs of an architecture.

    Attributes
    ----------
    speed, cost : float
        Throughput and fixed cost of a slice, relative to the measured ones of Hopper.
    why : str
        Basis of both; empty for Hopper.
    measured : bool
        True if `why` names a measurement, False for a clock.
    rows : tuple of str
        Measurement sets of the architecture (`clusim.hardware.calibration`).
    fixed : mapping
        Measured overrides: protocol -> fixed cost [us], source.
    flight : mapping
        Time of a hop beyond wire and fixed cost that does not occupy the CTA: protocol -> time [us],
        source. It is added to the tail, so that it counts once per hop and not per slice.
    direct_us : float
        Time to detect a flag and act on it, if LL measurements differ from Hopper's [us]; 0 uses Hopper's.
    rates : mapping
        Measured overrides: protocol -> throughput of all its primitives [GB/s of wire bytes], source.
    fifo : mapping
        Overrides of NCCL's FIFOs: protocol -> size, grain [bytes], wire bytes per data byte, library and explanation.
    """

    speed: float = 1.0
    cost: float = 1.0
    why: str = ""
    measured: bool = False
    rows: tuple[str, ...] = ()
    fixed: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    flight: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    rates: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    direct_us: float = 0.0
    fifo: Mapping[str, tuple[str, int, float, str]] = field(default_factory=dict)


_ENGINES = (
    "all-reduce of 256 B to 8 MiB by SGLang out of CUDA graphs on 2 to 8 H100 (aiconfigurator)"
)
_DIRECT_OPS = {"default": 190.0}

_OPS = {
    "ll": (_LL_OPS, _LL_SOURCE),
    "ll128": (
        _LL128_OPS,
        f"{_NPKIT}; a further store as Tree LL128 of many chunks on 4 p5en with one channel (ncclgauge)",
    ),
    "direct": (_DIRECT_OPS, _ENGINES),
}
"""Throughput of protocols on Hopper, and its source; of the others `_HOPPER_OPS`."""

_BUFFERS = {
    "simple": ("4MiB", 512, 1.0, "NCCL_BUFFSIZE"),
    "ll": (
        "512KiB",
        16,
        2.0,
        "8 lines x 512 threads x 8 steps x 16 B; half of each line are flags",
    ),
    "direct": ("4MiB", 512, 1.0, "no buffer; rooms of Simple"),
    "ll128": ("4915200B", 1920, 16 / 15, "120 x 640 x 8 x 8 B; 8 of 128 B are the flag"),
}
"""FIFO size, grain, wire bytes per data byte, explanation, by protocol.

The FIFO is per connection and channel (nccl src/include/device.h).
"""

_FIXED = {
    "simple": (
        2.4,
        "npkit steps of 4 to 32 KiB last 1.0 (recv) to 2.4 us (recvReduceCopySend) without flight; all-gather and"
        " reduce-scatter of 4 MiB on 4 GH200 and 4 H100 need 2.2 to 2.6 us a slice (simllm, waynehacking8)",
    ),
    "ll": (
        0.11,
        "npkit LL steps 92-174 ns; with 0.5 us of flight NCCL's 0.6 us per LL step (tuning.cc)",
    ),
    "ll128": (
        0.8,
        "a round of all warps; LL128 all-reduce of 256 MiB on 4 H100 313 GB/s (waynehacking8), collectives of 1 to"
        " 4 MiB on 4 GH200 (simllm)",
    ),
    "direct": (0.11, f"to see a flag and to act on it, the figure of LL, which fits {_ENGINES}"),
}
"""Fixed cost of a slice step [us] on Hopper."""

_FIXED_BOUNDS = {
    "simple": ["2.2us", "2.6us"],
    "ll": ["92ns", "174ns"],
    "direct": ["92ns", "174ns"],
}
"""Bounds of the fixed costs on Hopper, from their sources."""

_FIXED_ELSEWHERE = {
    "simple": ["-10%", "25%"],
    "ll": ["-16%", "180%"],
    "ll128": ["-12%", "75%"],
    "direct": ["-16%", "180%"],
}
"""Bounds of costs scaled by clocks: Hopper's below; above the costs measured on A100, relative to its clock's."""

_RATES_ELSEWHERE = {"ll": ["-12%", "100%"]}
"""Bounds of throughput scaled by clocks: Hopper's, as A100's scales with the clock; LL is twice as fast on B200."""

_FIXED_ROWS = {
    "simple": ("npkit-gh200", "simllm-gh200", "wayne-h100"),
    "ll": ("npkit-gh200", "nccl-tuning"),
    "ll128": ("wayne-h100", "simllm-gh200"),
    "direct": ("sglang-kernels",),
}
"""Measurement sets of the fixed costs."""

_FENCE = assumed(
    "400ns",
    "fence.acq_rel.sys before the tail is posted: 0.3-0.5 us, about one store's round trip",
    ["300ns", "500ns"],
)
_NO_FENCE = published("0", "flags travel in the data")
_LINES = calibrated(
    "400ns",
    "until a warp has seen the flags of its 16 lines and put the data in order: with 0.5 us of flight and the fixed"
    " cost 1.7 us a step, between NCCL's 1.9 (ring) and 1.25 us (tree, tuning.cc); Ring and Tree LL128 of 1 KiB with"
    " one channel on 4 p5en (ncclgauge)",
    "nccl-tuning",
    "p5en-1-channel",
    bounds=["300ns", "600ns"],
)
_NO_HEAD_FENCE = published("0", "NCCL posts a freed slot without a fence")
_TAIL = {
    "simple": _FENCE,
    "ll": _NO_FENCE,
    "ll128": _LINES,
    "direct": published("0", "relaxed flags, and loads without further waits"),
}


_MESSAGE_START = calibrated(
    "0.8us",
    "all-to-all of 512 B to 8 KiB on B200 needs 0.6 us (2 GPUs) to 1.5 us (8) more than launch and steps"
    " (aiconfigurator): the kernel of sends and receives deals works, channels and warps first (sendrecv.h)",
    "aiconfigurator-b200",
    bounds=["0.6us", "1.5us"],
)
_CROWDING = calibrated(
    0.9,
    "sendrecv of 32 to 256 MiB on 4 and 8 H100 (xxrjun): a CTA moves 21.1 GB/s beside 3 others, 20.3 beside 7 and 18.9"
    " beside 15",
    "xxrjun-sendrecv",
)
_MESSAGE_START_ELSEWHERE = assumed("0.8us", "as Blackwell (its all-to-all)", ["0.6us", "1.5us"])
_CROWDING_ELSEWHERE = assumed(0.9, "as Hopper (its sends and receives)", "10%")
_NO_CROWDING = assumed(
    0.0, "the rate of LL and LL128 is of 24 CTAs at once; kernels by loads and stores likewise"
)


def _crowding(arch: str, name: str) -> Figure:
    if name != "simple":
        return _NO_CROWDING
    return _CROWDING if arch == "hopper" else _CROWDING_ELSEWHERE


def _fixed(arch: str, name: str, pace: Pace) -> Figure:
    if name == "direct" and pace.direct_us:
        return assumed(f"{round(pace.direct_us * 1000)}ns", f"as LL on {arch}", "12%")
    if name in pace.fixed:
        own_us, source = pace.fixed[name]
        return calibrated(f"{round(own_us * 1000)}ns", source, *pace.rows)
    base_us, source = _FIXED[name]
    value = f"{round(base_us * pace.cost * 1000)}ns"
    if pace.cost != 1:
        why = f"{source}; x {pace.cost:g} on {arch}: {pace.why}"
        return assumed(value, why, _FIXED_ELSEWHERE[name])
    if pace.why:
        return assumed(value, f"{source}, Hopper", _FIXED_ELSEWHERE[name])
    return calibrated(value, source, *_FIXED_ROWS[name], bounds=_FIXED_BOUNDS.get(name))


def _rates(arch: str, name: str, pace: Pace) -> Figure:
    if name in pace.rates:
        GBps, source = pace.rates[name]
        return calibrated({"default": f"{GBps:g} GB/s"}, source, *pace.rows)
    table, source = _OPS.get(name, (_HOPPER_OPS, _NPKIT))
    ops = {op: f"{rate * pace.speed:g} GB/s" for op, rate in table.items()}
    if pace.speed != 1:
        source += f"; x {pace.speed:g} on {arch}: {pace.why}"
    if pace.why and not (pace.measured and name == "simple"):
        return assumed(ops, source, _RATES_ELSEWHERE.get(name, "12%"))
    rows: tuple[str, ...] = ("npkit-gh200", "wayne-h100", *pace.rows)
    if name == "direct":
        rows = _FIXED_ROWS[name]
    elif name == "ll128":
        rows = (*rows, "p5en-1-channel")
    return calibrated(ops, source, *rows)


def _tail(name: str, pace: Pace) -> Figure:
    if name not in pace.flight:
        return _TAIL[name]
    own_us, source = pace.flight[name]
    return calibrated(f"{round(own_us * 1000)}ns", source, *pace.rows)


def _protocol(arch: str, name: str, pace: Pace) -> Preset:
    buffer, grain, expand, explanation = pace.fifo.get(name, _BUFFERS[name])
    nccl = explanation if name in pace.fifo else f"NCCL: {explanation}"
    steps = (4, 2) if name == "simple" else (1, 1)
    return {
        "fixed": _fixed(arch, name, pace),
        "throughput": _rates(arch, name, pace),
        "expand": published(
            round(expand * 120),
            "wire bytes per 120 bytes of data: "
            + ("no flags among the data" if expand == 1 else explanation),
        ),
        "tail_fence": _tail(name, pace),
        "head_fence": _NO_HEAD_FENCE if name == "simple" else _NO_FENCE,
        "buffer": published(buffer, nccl),
        "slots": published(8, "NCCL_STEPS"),
        "chunk_steps": published(steps[0], "NCCL ALLREDUCE_CHUNKSTEPS; LL and LL128 use one step"),
        "slice_steps": published(steps[1], "NCCL ALLREDUCE_SLICESTEPS; LL and LL128 use one step"),
        "grain": published(f"{grain}B", "NCCL protocol grain"),
        "message_start": _MESSAGE_START if arch == "blackwell" else _MESSAGE_START_ELSEWHERE,
        "crowding": _crowding(arch, name),
    }


def protocols(arch: str, pace: Pace) -> dict[str, Preset]:
    """Return the protocols of an architecture."""
    return {name: _protocol(arch, name, pace) for name in _BUFFERS}


def ideal_protocols() -> dict[str, Preset]:
    """Return the protocols of an ideal host, on which only the network needs time."""
    free = assumed("0", "an ideal host: all delay is the network's")
    ideal = {
        "fixed": free,
        "message_start": free,
        "crowding": assumed(0.0, "an ideal host: no CTA is in another's way"),
        "throughput": assumed({"default": "100 TB/s"}, "an ideal host: never the limit"),
        "tail_fence": free,
    }
    return {name: {**preset, **ideal} for name, preset in protocols("host", Pace()).items()}


CTA_SKEW: Figure = calibrated(
    "100ns",
    "8 B all-reduces on 2 to 8 A100 need 1.3 to 2.7 us more than base plus steps (kernel start skew);"
    " spread over 24 CTAs",
    "simllm-a100",
    "superbench-a100",
    bounds=["54ns", "113ns"],
)
"""Time between the starts of consecutive CTAs of a collective's kernel."""

WINDOW: Figure = assumed(
    "32KiB",
    "a CTA of 512 threads with 4 of its 8 unrolled loads of 16 B in flight each",
    ["16KiB", "64KiB"],
)
"""Bytes a CTA may have requested and not yet received."""
