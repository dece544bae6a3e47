"""The saving of a verdict is that of ``clusim what-if`` for the same change, on drawn runs."""

from __future__ import annotations

import os
import random

import pytest

from clusim.base.errors import ClusimError
from clusim.results.causes import CauseKind, VerdictCause
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.studies.whatif.api import speed_of, what_if
from clusim.topology import Fabric

DRAWS = 100 if os.environ.get("CLUSIM_THOROUGH") == "1" else 12
SYSTEMS = ("dgx-a100", "dgx-h100", "hgx-b200", "dgx-1v", "a100x4-mesh", "a100-pcie-x8", "mi300x")
OPERATIONS = ("allreduce", "all_gather", "reduce_scatter", "broadcast", "alltoall")
WORDS = {
    CauseKind.LATENCY: "latency",
    CauseKind.STEP: "step",
    CauseKind.LAUNCH: "launch",
    CauseKind.PROXY: "proxy",
    CauseKind.CTA: "cta",
    CauseKind.MEMORY: "hbm",
    CauseKind.UNIT: "unit",
    CauseKind.NIC: "*nic*-*leaf*",
}


def drawn(draw: random.Random) -> Request:
    """Return a request that NCCL can run, in a third of the cases with a slow link or rank."""
    while True:
        nodes = draw.choice([None, None, 2])
        system = draw.choice(SYSTEMS)
        setup = Setup(system, nodes)
        broken = draw.random()
        if broken < 1 / 6:
            setup = Setup(system, nodes, faults=(f"rank {draw.randrange(4)} slow x3",))
        elif broken < 1 / 3:
            link = draw.choice(setup.fabric.links)
            setup = Setup(system, nodes, faults=(f"lanes {link.a}-{link.b} 1/4 at 1ns",))
        operation, size = draw.choice(OPERATIONS), 1 << draw.randrange(10, 23)
        algorithm = draw.choice(["nccl", "nccl", "ring"])
        try:
            request = Request(setup, operation, size, algorithm=algorithm)
            result_of(request, RunOptions(bins=2, histories=False, confirm=False))
        except ClusimError:
            continue
        return request


def word(fabric: Fabric, cause: VerdictCause) -> str:
    """Return the words of ``what-if`` for the hardware that a cause is about."""
    if cause.kind in WORDS:
        return WORDS[cause.kind]
    prefix = "pcie" if cause.kind is CauseKind.PCIE else cause.what.partition(",")[0].lower()
    (name,) = {link.cls for link in fabric.links if link.cls.lower().startswith(prefix)}
    return name


@pytest.mark.parametrize("seed", range(DRAWS))
def test_a_saving_is_that_of_the_same_change(seed: int) -> None:
    request = drawn(random.Random(seed))
    result = result_of(request, RunOptions(confirm=True))
    first = result.verdict.headline
    assert first is not None
    if first.kind in (CauseKind.STRAGGLER, CauseKind.FAULT):
        sound = Request(
            Setup(request.setup.topology, request.setup.nodes),
            *(request.operation, request.size_bytes),
            algorithm="ring" if request.algorithm == "ring" else "nccl",
        )
        after_ps = result_of(sound, RunOptions(confirm=False)).time_ps
    else:
        name = word(request.setup.fabric, first)
        speed = speed_of(f"{name} x2")
        assert speed is not None
        held = what_if(request, [(name, speed)]).rows[0].held
        assert held is not None
        after_ps = held.time_ps
    assert first.saving_ps is not None
    assert first.saving_ps == pytest.approx(result.time_ps - after_ps, abs=0.01 * result.time_ps)
