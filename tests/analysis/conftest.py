"""Runs of images in memory, as the analyses see those of a trace."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.analysis.network import Network
from clusim.analysis.walk import Walk
from clusim.engine.abi import Stop
from clusim.engine.image import DTYPES, Image
from clusim.results.trace.held import HeldRecords, Inputs
from support.random_images import random_image

Array = Any


@dataclass
class Ran:
    """A run of an image to its end."""

    image: Image
    stop: Stop
    time_ps: int
    records: Array
    start_ps: Array
    end_ps: Array
    wires: Array
    walk: Walk
    network: Network


def inputs_of(image: Image) -> Inputs:
    """Return an image as the inputs of a trace, with names made up."""
    nodes = [f"n{i}" for i in range(len(image.nodes))]
    kinds = ["gpu" if kind == 0 else "switch" for kind in image.nodes["kind"]]
    arrays = {name: getattr(image, name) for name in DTYPES}
    return Inputs(arrays, image.nvc, image.seed, {}, nodes, kinds, np.arange(len(image.endpoints)))


def run_image(image: Image, *, block_rows: int = 7, until_ps: int = 20_000_000) -> Ran:
    """Run an image on the C engine and prepare a walk over its records."""
    from clusim.engine.simulation import Simulation

    sim = Simulation(image)
    stop = sim.run(until_ps=until_ps)
    records = sim.records()
    start_ps, end_ps = sim.task_times()
    names = [f"n{w['src']}->n{w['dst']}.{w['ordinal']}" for w in image.wires]
    network = Network(inputs_of(image), names, ["wire"] * len(names))
    held = HeldRecords(block_rows)
    held.records(records)
    walk = Walk(held, network, start_ps, end_ps)
    return Ran(image, stop, sim.now_ps, records, start_ps, end_ps, sim.wires(), walk, network)


@cache
def run_that_ends(seed: int) -> Ran:
    """Run random images until one ends and has tasks, not only traffic."""
    draw = random.Random(seed)
    while True:
        ran = run_image(random_image(draw))
        if ran.stop == Stop.DONE and len(ran.end_ps):
            return ran


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Traces of several kinds of runs."""
    folder = tmp_path_factory.mktemp("traces")
    a100, h100 = clusim.load("dgx-a100"), clusim.load("dgx-h100")
    build = clusim.collectives.build
    cases: dict[str, Any] = {
        "pull ring": (a100, build(a100, "allreduce", "ring", 1 << 17, channels=4)),
        "push ring": (h100, build(h100, "allreduce", "ring", 1 << 17, channels=4)),
        "tree": (h100, build(h100, "allreduce", "tree", 1 << 16, protocol="ll", channels=4)),
        "nvls": (h100, build(h100, "allreduce", "nvls", 1 << 17)),
        "alltoall": (a100, build(a100, "alltoall", None, 1 << 17, channels=2)),
        "training": (h100, training_step(h100)),
    }
    paths = {}
    for name, (fabric, schedule) in cases.items():
        paths[name] = folder / f"{name.replace(' ', '-')}.h5"
        clusim.simulate(fabric, schedule, trace_out=paths[name], confirm=False)
    return paths


def training_step(fabric: Any) -> Any:
    """Return two pipeline stages with three microbatches and a gradient exchange at the end."""
    from clusim.collectives import ScheduleBuilder

    us = 1_000_000
    builder = ScheduleBuilder(fabric, "pipeline")
    for batch in range(3):
        forward = builder.kernel(0, compute_ps=30 * us, name=f"forward {batch}")
        builder.send(0, 1, 1 << 18, tag=batch, after=(forward,))
        arrived = builder.recv(1, 0, 1 << 18, tag=batch)
        builder.wait(1, arrived)
        builder.kernel(1, compute_ps=30 * us, hbm_bytes=1 << 24, name=f"forward {batch}")
    last = {rank: [builder.kernel(rank, compute_ps=20 * us, name="backward")] for rank in (0, 1)}
    builder.collective("allreduce", 1 << 20, ranks=(0, 1), stream="dp", channels=4, after=last)
    for rank in (0, 1):
        builder.kernel(rank, compute_ps=10 * us, name="optimizer")
    return builder.build()
