"""Random images on which switches may work in windows of time."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from clusim.engine.abi import NONE, ConnKind, FaultKind, Policy, TaskKind
from clusim.engine.image import DTYPES, Image
from clusim.engine.simulation import Simulation
from support.random_images import random_image
from support.random_spreads import without_spreads

__all__ = ["choosing_image", "led_image", "paired_image", "windowed_image"]

LEAST_PS = 400


def _without_loads(image: Image) -> Image:
    """Let no packet choose by load."""
    image = without_spreads(image)
    for flows in (image.conns, image.sources):
        flows["policy"][flows["policy"] == Policy.ADAPTIVE] = Policy.STRIPE
    return image


def _without(image: Image) -> Image:
    """Take away what makes the engine handle every packet of all switches by an event."""
    conns, sources, wires = image.conns.copy(), image.sources.copy(), image.wires.copy()
    for flows in (conns, sources):
        flows["control"] = NONE
    wires["buffer_bytes"][wires["xoff_bytes"] > 0] = 1 << 20  # a paused wire's may be too small
    for name in ("xoff_bytes", "xon_bytes", "ecn_min_bytes", "ecn_max_bytes", "ecn_threshold"):
        wires[name] = 0
    faults = image.faults[image.faults["kind"] != FaultKind.RATE]
    return replace(image, conns=conns, sources=sources, wires=wires, faults=faults)


def windowed_image(seed: int, size: str = "small") -> Image:
    """Return a random image with switches whose queues nobody looks at, and no trees of them."""
    while True:
        image = random_image(random.Random(seed), size=size)
        kinds = set(image.conns["kind"].tolist())
        if (image.nodes["endpoint"] == NONE).any() and ConnKind.AGGREGATION not in kinds:
            return _without(_without_loads(image))
        seed += 1_000_000


def choosing_image(seed: int, size: str = "small") -> Image:
    """Return a random image with spreads, on which switches without a choice may work in windows."""
    while True:
        image = random_image(random.Random(seed), size=size)
        kinds = set(image.conns["kind"].tolist())
        spreads = image.spreads
        detours = (spreads["detour_lo"] < spreads["detour_hi"]).any()
        if (
            len(spreads)
            and not detours
            and (image.nodes["endpoint"] == NONE).any()
            and ConnKind.AGGREGATION not in kinds
        ):
            image = _without(image)
            if Simulation(image, windows=True).windows == "switches":
                return image
        seed += 1_000_000


def _without_short_times(image: Image, rng: random.Random) -> Image:
    """Make what an endpoint waits for so long that it can work in windows."""
    wires, endpoints, units = image.wires.copy(), image.endpoints.copy(), image.units.copy()
    costs, tasks, sources = image.costs.copy(), image.tasks.copy(), image.sources.copy()
    wires["latency_ps"][wires["latency_ps"] < LEAST_PS] = rng.choice([LEAST_PS, 700])
    fixed = costs["fixed_ps"] < 2 * LEAST_PS  # an endpoint may be faster than others
    costs["fixed_ps"][fixed] = rng.choice([2 * LEAST_PS, 1001])
    for times, name in (
        (endpoints, "read_latency_ps"),
        (endpoints, "response_latency_ps"),
        (units, "latency_ps"),
    ):
        times[name][times[name] < LEAST_PS] = rng.choice([LEAST_PS, 600])
    tasks["kind"][tasks["kind"] == TaskKind.KERNEL] = TaskKind.MARKER
    sources["flags"] = 0
    out_of = [(wires["src"] == endpoints["node"][k]).sum() for k in sources["endpoint"]]
    messages = image.messages
    if any(count != 1 for count in out_of):
        sources, messages = sources[:0], messages[:0]
    return replace(
        image,
        wires=wires,
        endpoints=endpoints,
        units=units,
        costs=costs,
        tasks=tasks,
        sources=sources,
        messages=messages,
    )


def led_image(seed: int, size: str = "small") -> Image:
    """Return a random image whose endpoints may work in windows, nearly always."""
    while True:
        image = windowed_image(seed, size)
        fetched = (image.conns["kind"] == ConnKind.READ) | (image.conns["stage"] != NONE)
        if not fetched.any() or not (image.conns["kind"] == ConnKind.WRITE).any():
            return _without_short_times(image, random.Random(seed))
        seed += 1_000_000


_TRIES = """
    0 0 0 34 0 7 25 0 0 0 0 0 30 0 0 0 0 0 0 15 17 0 0 2 0 3 9 50 0 25 0 0 22 25 53 0 16 5
    11 18 21 29 11 6 0 0 0 0 2 0 0 3 0 47 0 0 30 0 0 6 0 0 0 0 15 7 7 0 0 13 3 0 3 0 0 0 0
    0 41 12 18 0 0 0 0 6 16 0 0 0 5 0 0 4 17 0 5 0 9 0 1 9 5 0 3 0 0 1 0 0 12 11 0 16 3 0
    18 3 0 0 0 13 0 0 0 0 0 19 0 3 0 8 0 8 0 0 0 1 0 20 0 10 0 0 24 23 0 0 0 11 0 9 0 0 10
    0 60 0 3 5 0 6 4 4 4 1 0 0 10 0 0 0 0 0 0 3 0 0 0 0 0 4 0 0 25 0 29 0 10 0 23 0 0 0 0
    0 0 10 17 13
"""
_PASSED_OVER = [int(count) for count in _TRIES.split()]
"""How many images the search for a paired one passes over, by seed: it took most of the time of tests."""


def _near(image: Image) -> np.ndarray:
    """Return a mask of the wires between switches and endpoints that have no other link, one of each switch."""
    wires = image.wires
    ends = set(image.endpoints["node"].tolist())
    links = np.bincount(wires["src"], minlength=len(image.nodes))
    pairs: dict[int, int] = {}
    for src, dst in zip(wires["src"].tolist(), wires["dst"].tolist(), strict=True):
        if src in ends and links[src] == 1 and dst not in ends:
            pairs.setdefault(dst, src)
    ways = zip(wires["src"].tolist(), wires["dst"].tolist(), strict=True)
    return np.array([pairs.get(dst) == src or pairs.get(src) == dst for src, dst in ways])


def paired_image(seed: int, size: str = "small") -> Image:
    """Return a random image with hosts that are near to switches, so that both work as one; all its transfers write."""
    seed += 1_000_000 * (_PASSED_OVER[seed] if size == "small" and seed < len(_PASSED_OVER) else 0)
    while True:
        image = led_image(seed, size)
        near = _near(image)
        writes = np.isin(image.conns["kind"], (ConnKind.WRITE, ConnKind.FLAG))
        if near.any() and writes.all() and (image.conns["stage"] == NONE).all():
            break
        seed += 1_000_000
    rng = random.Random(seed)
    wires, formats, nodes = image.wires.copy(), image.formats.copy(), image.nodes.copy()
    wires["latency_ps"][near] = rng.choice([1, 30, 200])
    wires["buffer_bytes"][near] *= rng.choice([1, 3, 30])  # credit may run short, and may not
    formats["control_256"][:] = 0
    nodes["unit"] = NONE
    units = np.empty(0, DTYPES["units"])
    return replace(image, wires=wires, formats=formats, nodes=nodes, units=units)
