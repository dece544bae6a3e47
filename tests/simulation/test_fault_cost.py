"""Cost of faults: a run against the same run without them, and with the plan of the sound system."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusim.simulation.api import result_of
from clusim.simulation.fault_cost import FaultCost, fault_cost
from clusim.simulation.job import RunOptions
from clusim.simulation.plan import plan
from clusim.simulation.request import Request
from clusim.simulation.reruns import Repeats
from clusim.simulation.setup import Setup
from clusim.studies.whatif import what_if

FAULTS = ("link gpu1-gpu2 down", "rank 1 slow x2")
QUIET = RunOptions(confirm=False)


def asked(*faults: str, **setup: object) -> Request:
    return Request(Setup("a100x4-mesh", faults=faults, **setup), "allreduce", 1 << 18)


def cost_of(request: Request, how: Repeats | None = None) -> FaultCost | None:
    planned = plan(request)
    return fault_cost(planned, result_of(planned, QUIET), how)


@pytest.mark.parametrize("fault", FAULTS)
def test_costs_are_those_of_what_if(fault: str) -> None:
    cost = cost_of(asked(fault))
    assert cost is not None
    (row,) = what_if(asked(), [(fault, asked(fault))]).rows
    assert cost.sound_ps == row.baseline.time_ps
    assert row.planned is not None
    assert cost.sound_ps + cost.added_ps == row.planned.time_ps
    assert row.held is not None
    assert cost.held_ps == (None if row.held.error else row.held.time_ps)
    assert cost.added_ps > 0


def test_rows_say_why_the_sound_plan_cannot_run() -> None:
    cost = FaultCost(1_000_000, 500_000, None, "no path")
    assert cost.rows() == [
        ("fault cost", "+500 ns (+50.0%) against the sound system, 1 us"),
        ("", "the sound system's plan cannot run: no path"),
    ]


def test_rows_name_the_held_plan_where_it_differs() -> None:
    assert len(FaultCost(1_000_000, 0, 1_000_000).rows()) == 1
    assert FaultCost(1_000_000, -500_000, 2_000_000).rows() == [
        ("fault cost", "-500 ns (-50.0%) against the sound system, 1 us"),
        ("", "with the sound system's plan 2 us (+100.0%)"),
    ]


def test_sound_and_large_runs_have_no_cost() -> None:
    assert cost_of(asked()) is None
    assert cost_of(asked(FAULTS[1]), Repeats(confirm=False)) is None


def test_faults_of_the_topology_file_are_part_of_both_runs() -> None:
    setup = asked().setup
    broken = replace(setup.fabric, faults=(FAULTS[1],))
    request = Request(Setup(broken, faults=("rank 2 slow x2",)), "allreduce", 1 << 18)
    cost = cost_of(request)
    assert cost is not None
    sound = result_of(Request(Setup(broken), "allreduce", 1 << 18), QUIET)
    assert cost.sound_ps == sound.time_ps
