"""CTA costs of NCCL's protocols Simple, LL and LL128, by GPU architecture.

**Hardware** Simple moves slices and synchronises by head and tail counters behind a fence; LL and LL128 carry flags in
the data, so that a line can be used as soon as it arrives, at 50% and 93.75% of the wire.
**Model** A fixed cost per slice step, a throughput per primitive, fences on the counters, more wire bytes per byte.
**Not modelled** Warps, the 128-byte lines themselves, unrolling.
**Parameters** The figures of ``protocols.yaml``, by the keys of a topology file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from clusim.base.datafiles import read
from clusim.base.records import dataclass
from clusim.hardware.figures import (
    Figure,
    Preset,
    assumed,
    calibrated,
    expand_source,
    figures,
    published,
)

_DATA = read(Path(__file__).with_name("protocols.yaml"))
_SOURCES = _DATA.pop("sources")
_MEASURED = _DATA.pop("measured")
_OF_ALL = _DATA.pop("all")["figures"]
_CTA = figures(_DATA.pop("cta"), _SOURCES)


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


def _fixed_cost(arch: str, name: str, pace: Pace) -> Figure:
    """Return the fixed cost of a slice step."""
    if name == "direct" and pace.direct_us:
        return assumed(
            f"{round(pace.direct_us * 1000)}ns", f"as LL on {arch}", "12%"
        )
    if name in pace.fixed:
        own_us, source = pace.fixed[name]
        return calibrated(f"{round(own_us * 1000)}ns", source, *pace.rows)
    hopper = _DATA[name]["fixed"]
    value, source = (
        f"{round(hopper['us'] * pace.cost * 1000)}ns",
        expand_source(hopper, _SOURCES),
    )
    if pace.cost != 1:
        source += f"; x {pace.cost:g} on {arch}: {pace.why}"
        return assumed(value, source, hopper["elsewhere"])
    if pace.why:
        return assumed(value, f"{source}, Hopper", hopper["elsewhere"])
    return calibrated(value, source, *hopper["rows"], bounds=hopper.get("bounds"))


def _rates(arch: str, name: str, pace: Pace) -> Figure:
    """Return the throughput of primitives."""
    if name in pace.rates:
        GBps, source = pace.rates[name]
        return calibrated({"default": f"{GBps:g} GB/s"}, source, *pace.rows)
    hopper = _DATA[name]["throughput"]
    ops = {op: f"{rate * pace.speed:g} GB/s" for op, rate in hopper["GBps"].items()}
    source = expand_source(hopper, _SOURCES)
    if pace.speed != 1:
        source += f"; x {pace.speed:g} on {arch}: {pace.why}"
    if pace.why and not (pace.measured and name == "simple"):
        return assumed(ops, source, hopper["elsewhere"])
    return calibrated(ops, source, *hopper["rows"], *pace.rows)


def _protocol(arch: str, name: str, pace: Pace) -> Preset:
    buffer, grain, expand, explanation = pace.fifo.get(name, _DATA[name]["fifo"])
    nccl = explanation if name in pace.fifo else f"NCCL: {explanation}"
    flags = "no flags among the data" if expand == 1 else explanation
    measured = _MEASURED.get(arch, {})
    parts = (
        _OF_ALL,
        _DATA[name]["figures"],
        measured.get("all", {}),
        measured.get(name, {}),
    )
    values = {
        key: item for part in parts for key, item in figures(part, _SOURCES).items()
    }
    if name in pace.flight:
        own_us, source = pace.flight[name]
        values["tail_fence"] = calibrated(
            f"{round(own_us * 1000)}ns", source, *pace.rows
        )
    return {
        "fixed": _fixed_cost(arch, name, pace),
        "throughput": _rates(arch, name, pace),
        "expand": published(
            round(expand * 120), f"wire bytes per 120 bytes of data: {flags}"
        ),
        "buffer": published(buffer, nccl),
        "grain": published(f"{grain}B", "NCCL protocol grain"),
        **values,
    }


def protocols(arch: str, pace: Pace) -> dict[str, Preset]:
    """Return the protocols of an architecture."""
    return {name: _protocol(arch, name, pace) for name in _DATA}


def ideal_protocols() -> dict[str, Preset]:
    """Return the protocols of an ideal host, on which only the network needs time."""
    free = assumed("0", "an ideal host: all delay is the network's")
    ideal = {
        "fixed": free,
        "message_start": free,
        "round": free,
        "grid_start": free,
        "crowding": assumed(0.0, "an ideal host: no CTA is in another's way"),
        "throughput": assumed(
            {"default": "100 TB/s"}, "an ideal host: never the limit"
        ),
        "tail_fence": free,
    }
    return {
        name: {**preset, **ideal}
        for name, preset in protocols("host", Pace()).items()
    }


CTA_SKEW: Figure = _CTA["cta_skew"]
"""Time between the starts of consecutive CTAs of a collective's kernel."""

WINDOW: Figure = _CTA["window"]
"""Bytes a CTA may have requested and not yet received."""
