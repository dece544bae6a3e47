"""Random images: fabric, programs, kernels, sources and faults, and a hypothesis strategy for them."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from clusim.engine.abi import NONE
from clusim.engine.image import Image
from support.images import Place
from support.random_fabric import Bounds, RandomFabric
from support.random_schedule import Program, Programs
from support.random_spreads import spread_image

__all__ = ["Bounds", "images", "random_image"]

SIZES = {
    "tiny": Bounds(2, 1, 1, 1, 0, 0, 4, wild=False),
    "small": Bounds(),
    "medium": Bounds(8, 4, 5, 4, 6, 8, 40),
}


def random_image(rng: random.Random, *, size: str | Bounds = "small") -> Image:
    """Return a random image.

    Parameters
    ----------
    rng : random.Random
        The only source of randomness.
    size : str or Bounds
        "tiny", "small" (a reference run takes 10 to 100 ms), "medium", or explicit bounds.
    """
    bounds = SIZES[size] if isinstance(size, str) else size
    fabric = RandomFabric(rng, bounds)
    _add_tasks(fabric)
    for _ in range(rng.randint(0, bounds.sources)):
        _add_source(fabric)
    _add_faults(fabric)
    image = fabric.builder.build()
    return spread_image(image, random.Random(rng.getrandbits(64)))


def _add_tasks(fabric: RandomFabric) -> None:
    """Add programs, some twice, between kernels, delays and markers, in a random graph."""
    rng, bounds, builder = fabric.rng, fabric.bounds, fabric.builder
    programs = Programs(fabric)
    least = min(bounds.programs, 1 + (rng.random() < 0.5))
    todo = ["program"] * rng.randint(least, bounds.programs)
    busy = rng.random() < 0.5  # several kernels on one endpoint, from the beginning
    todo += ["kernel"] * rng.randint(0, bounds.kernels)
    todo += rng.choices(["delay", "marker", "program again"], k=rng.randint(0, 2))
    rng.shuffle(todo)
    made: list[tuple[int, Program]] = []
    for index, what in enumerate(todo):
        after = tuple(rng.sample(range(index), rng.randint(0, min(index, 2))))
        if what == "kernel" and busy:
            _add_kernel(fabric, (), fabric.gpus[0])
        elif what == "kernel":
            _add_kernel(fabric, after, rng.choice(fabric.gpus))
        elif what == "delay":
            builder.task("delay", after, delay_ps=rng.choice([0, 0, 1, 7000]))
        elif what == "program again" and made:
            before, program = made.pop()
            made.append((programs.start(program, tuple({*after, before})), program))
        elif what == "program":
            program = programs.make()
            made.append((programs.start(program, after), program))
        else:
            builder.task("marker", after)


def _add_kernel(fabric: RandomFabric, after: tuple[int, ...], place: Place) -> None:
    rng = fabric.rng
    fabric.builder.task(
        "kernel",
        after,
        endpoint=place.ep,
        compute_ps=rng.choice([1, rng.randint(1, 200000), rng.randint(1, 200000), 50000]),
        mem_bytes=rng.choice([0, rng.randint(1, 60000), rng.randint(1, 60000), 5000]),
        sms=rng.choice([1, 4, 16, 40]),
    )


def _add_source(fabric: RandomFabric) -> None:
    rng, builder, bounds = fabric.rng, fabric.builder, fabric.bounds
    place = rng.choice(fabric.gpus)
    others = [gpu for gpu in fabric.gpus if gpu != place]
    taken = sum(row["endpoint"] == place.ep for row in builder.rows.get("sources", []))
    if taken + 1 >= builder.rows["endpoints"][place.ep]["cta_slots"]:
        return
    packet, burst = rng.choice(fabric.packets)
    starts = sorted(rng.randrange(30000) for _ in range(rng.randint(1, 5)))
    most = packet * burst * bounds.packets // 2
    messages = [(start, rng.randint(1, most), rng.choice(others)) for start in starts]
    vias = [fabric.vias(place, dst) for _, _, dst in messages]
    rated = fabric.controls and rng.random() < 0.7
    builder.source(
        place,
        messages,
        vias=[(first or NONE, last or NONE) for first, last in vias],
        control=rng.choice(fabric.controls) if rated else NONE,
        key=rng.choice([rng.randrange(8), rng.getrandbits(32)]),
        packet_bytes=packet,
        burst=burst,
        policy=rng.choice(["stripe", "pinned", "adaptive"]),
        vc=rng.randrange(builder.nvc),
        flags=rng.randrange(2),
    )


def _add_faults(fabric: RandomFabric) -> None:
    """Slow wires down, take them down and up again, slow endpoints; seldom leave a wire down."""
    rng, builder = fabric.rng, fabric.builder
    if rng.random() < 0.3:
        return
    times: list[tuple[int, dict[str, int]]] = []
    for _ in range(rng.randint(0, fabric.bounds.faults)):
        time_ps = rng.choice([0, rng.randrange(5000), rng.randrange(60000)])
        wire = rng.randrange(len(builder.rows["wires"]))
        what = rng.choice(["rate", "down", "down", "slow"])
        if what == "slow":
            index = rng.choice(fabric.gpus).ep
            times.append((time_ps, {"index": index, "num": rng.choice([512, 1024, 3000])}))
        elif what == "rate":
            num, den = rng.choice([(1, 100), (1, 25), (7, 1000)])
            times.append((time_ps, {"wire": wire, "num": num, "den": den}))
        else:
            times.append((time_ps, {"wire": wire, "num": 0, "den": 1}))
            if rng.random() < 0.97:
                later = time_ps + rng.choice([1, 1000, 30000])
                times.append((later, {"wire": wire, "num": 1, "den": 40}))
    for time_ps, fields in sorted(times, key=lambda item: item[0]):
        builder.fault(time_ps, **fields)


def _bounds() -> st.SearchStrategy[Bounds]:
    return st.builds(
        Bounds,
        ranks=st.integers(2, 6),
        parallel=st.integers(1, 3),
        programs=st.integers(0, 3),
        sources=st.integers(0, 2),
        kernels=st.integers(0, 4),
        faults=st.integers(0, 5),
        packets=st.integers(1, 12),
        wild=st.booleans(),
    )


def images() -> st.SearchStrategy[Image]:
    """Return a hypothesis strategy for images; shrinking lowers the bounds and the seed."""
    return st.builds(
        lambda seed, bounds: random_image(random.Random(seed), size=bounds),
        st.integers(0, 2**32 - 1),
        _bounds(),
    )
