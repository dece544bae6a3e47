"""Places of causes: parts of every level add up, and instances are counted in the run."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import clusim
from clusim.base.errors import ClusimError, TimeLimitReached
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import CausePart, CauseResource
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result
from clusim.simulation import reruns
from clusim.simulation.api import result_of
from clusim.simulation.fault_cost import fault_cost
from clusim.simulation.job import RunOptions
from clusim.simulation.plan import plan
from clusim.simulation.request import Request
from clusim.simulation.session import Watch
from clusim.simulation.setup import Setup
from support.covering import THOROUGH

DRAWS = 150 if THOROUGH else 8
SYSTEMS = ("dgx-a100", "dgx-h100", "hgx-b200", "dgx-1v", "a100x4-mesh", "a100-pcie-x8", "mi300x")
OPERATIONS = ("allreduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv")


def check_parts(causes: tuple[Any, ...], total_ps: int) -> None:
    """Check that causes, resources and instances add up."""
    assert sum(cause.time_ps for cause in causes) == total_ps
    for cause in causes:
        assert isinstance(cause, CausePart)
        assert sum(row.time_ps for row in cause.resources) == cause.time_ps
        for row in cause.resources:
            assert sum(place.time_ps for place in row.places) == row.time_ps
            assert 1 <= row.on_path <= row.in_class
            assert (row.limiting or 0) + row.down <= row.in_class


def check_laws(verdict: Verdict) -> None:
    """Check that parts of every level add up, in the run and in its phases."""
    check_parts(verdict.causes, verdict.time_ps)
    sums: dict[Any, int] = {}
    at_ps = 0
    for phase in verdict.phases:
        assert phase.start_ps == at_ps
        at_ps = phase.end_ps
        check_parts(phase.causes, phase.end_ps - phase.start_ps)
        for cause in phase.causes:
            sums[cause.key] = sums.get(cause.key, 0) + cause.time_ps
    assert at_ps == verdict.time_ps
    assert sums == {cause.key: cause.time_ps for cause in verdict.causes}
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json())), "here") == verdict


def drawn(draw: random.Random) -> Result:
    """Return the run of a drawn request, often with a fault."""
    while True:
        system, nodes = draw.choice(SYSTEMS), draw.choice([None, None, 2])
        link = draw.choice(Setup(system, nodes).fabric.links)
        ends = f"{link.a}-{link.b}"
        faults = draw.choice(
            [
                *((), ()),
                (f"rank {draw.randrange(4)} slow x3",),
                (f"lanes {ends} 1/4 at 1ns",),
                (f"link {ends}.0 down",),
                (f"node {link.b} down",),
                (f"link {ends} down at 5us for 20us",),
            ]
        )
        try:
            setup = Setup(system, nodes, faults=faults)
            size, algorithm = 1 << draw.randrange(10, 23), draw.choice(["nccl", "nccl", "ring"])
            request = Request(setup, draw.choice(OPERATIONS), size, algorithm=algorithm)
            return result_of(request)
        except ClusimError:
            continue


@pytest.mark.parametrize("seed", range(DRAWS))
def test_parts_of_drawn_runs_add_up_at_every_level(seed: int) -> None:
    check_laws(drawn(random.Random(seed)).verdict)


def pair(links: int) -> clusim.Fabric:
    """Return two GPUs with parallel links."""
    net = clusim.FabricBuilder("pair", channels={"default": 1})
    net.gpu("gpu0..1", chip="a100-sxm4-80gb")
    form: Any = {"rate": "25 GB/s", "latency": "500ns", "format": "nvlink3", "buffer": "64KiB"}
    net.link("gpu0", "gpu1", count=links, **form)
    return net.build()


def wires(result: Result) -> CauseResource:
    """Return the resource of the bottleneck, which must be links."""
    first = result.verdict.headline
    assert first is not None
    assert first.kind in (CauseKind.WIRE, CauseKind.NIC, CauseKind.PCIE)
    return first.resources[0]


@pytest.mark.parametrize("down", [(), (1,), (0, 3)])
def test_links_of_a_pair_are_counted_by_hand(down: tuple[int, ...]) -> None:
    """Of four parallel links all that are up carry the data, and the others are named."""
    how: Any = {"faults": [f"link gpu0-gpu1.{number} down" for number in down], "channels": 12}
    result = clusim.collective(
        pair(4), "allreduce", "32MiB", algorithm="ring", granularity=1 << 16, **how
    )
    check_laws(result.verdict)
    row, left = wires(result), 4 - len(down)
    assert (row.unit, row.in_class, row.down, row.limiting) == ("links", 4, len(down), left)
    assert row.down_parts == tuple(f"gpu0<->gpu1.{number}" for number in down)
    names = ", ".join(row.down_parts)
    said = f"all {left} remaining links ({len(down)} down: {names})" if down else "all 4 links"
    assert result.verdict.lines()[0].endswith(f"link gpu->gpu bandwidth, {said}")


def test_a_dead_plane_is_named_where_its_neighbours_are_full() -> None:
    """A DGX A100 has 8 GPUs with two links to each of six switches."""
    how: Any = {"granularity": 1 << 16, "confirm": False}
    faults = ["plane nvswitch2 down"]
    result = clusim.collective("dgx-a100", "allreduce", "256MiB", faults=faults, **how)
    row = wires(result)
    assert (row.in_class, row.down, row.limiting) == (96, 16, 80)
    assert "all 80 remaining links (16 down: nvswitch2)" in result.verdict.lines()[0]
    sound = clusim.collective("dgx-a100", "allreduce", "256MiB", **how)
    assert (wires(sound).in_class, wires(sound).down) == (96, 0)
    assert sound.verdict.lines()[0].endswith("all 96 links")


def test_a_dead_nic_is_named_where_another_one_is_full() -> None:
    how: Any = {"nodes": 2, "granularity": 1 << 18, "confirm": False}
    faults = ["nic n0/nic2 down"]
    result = clusim.collective(
        "dgx-a100", "alltoall", "32MiB", faults=faults, ranks=(*range(4), *range(8, 12)), **how
    )
    row = wires(result)
    assert (row.unit, row.in_class, row.down) == ("NICs", 16, 1)
    assert "1 down: nic2 of node 0" in result.verdict.lines()[0]
    assert all("nic" in place.name for place in row.places)


def test_a_slow_rank_is_named_by_the_work_that_it_does_slowly() -> None:
    faults = ["rank 3 slow x1.3"]
    found = clusim.collective("dgx-a100", "allreduce", "4MiB", algorithm="ring", faults=faults)
    first = found.verdict.headline
    assert first is not None
    assert first.kind is CauseKind.STEP
    assert first.words().startswith("per-slice CTA overhead, ")
    assert "(rank 3 slow x1.3" in first.words()


def test_a_dead_part_that_matters_to_no_instance_is_not_named() -> None:
    """Latency limits a small message; the link that is down is not its cause."""
    found = clusim.collective("dgx-a100", "allreduce", "1KiB", faults=["link gpu3:nvl5 down"])
    assert "down" not in found.verdict.lines()[0]


class Late(Watch):
    """Is over from when it was told."""

    late = False

    def __init__(self) -> None:
        super().__init__(90 * 10**12)

    @property
    def over(self) -> bool:
        return self.late


def test_re_simulations_obey_the_time_limit() -> None:
    watch = Late()
    faults = ("lanes gpu3-nvswitch0.0 1/2 at 1ns",)
    request = Request(Setup("dgx-a100", faults=faults), "allreduce", 1 << 20, algorithm="ring")
    how = RunOptions(watch=watch, confirm=True)
    result, bare = (result_of(request, how) for _ in range(2))
    watch.late = True
    verdict = result.diagnose()
    assert verdict.unfinished.startswith("changes; time limit of 90 s")
    assert verdict.causes[0].saving_ps is None
    assert f"not simulated: {verdict.unfinished}" in verdict.lines()
    derived = bare.sensitivity()
    count = len(derived.derivatives)
    assert derived.unfinished.startswith(f"re-simulation of {count} of {count} derivatives; time")
    with pytest.raises(TimeLimitReached):
        fault_cost(plan(request), result, reruns.Repeats(True, None, watch))


@pytest.mark.parametrize(("runs", "cost"), [(1, False), (2, True)])
def test_the_cost_of_faults_is_simulated_within_its_budget(
    runs: int, cost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs two runs."""
    setup = Setup("a100x4-mesh", faults=("rank 1 slow x2",))
    planned = plan(Request(setup, "allreduce", 1 << 18))
    result = result_of(planned)
    monkeypatch.setattr(reruns, "CHEAP_GRANTS", runs * result.grants)
    found = fault_cost(planned, result, reruns.Repeats(budget=reruns.Budget()))
    assert (found is not None) == cost
