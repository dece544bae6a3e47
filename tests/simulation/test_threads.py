"""Threads of the engine change nothing of what comes out, and there are none where there is nothing to share."""

from __future__ import annotations

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.engine.simulation import Simulation
from clusim.lowering import lower
from clusim.simulation.api import collective
from clusim.simulation.session import MOST_THREADS, idle_cores, running_tasks, start_engine

TIMED = ("wall_s", "packet_hops_per_s", "grants_per_s")


@pytest.mark.parametrize(
    ("machine", "algorithm"), [("dgx-a100", "ring"), ("dgx-h100", "nvls")], ids=["ring", "nvls"]
)
def test_results_are_equal(machine, algorithm):
    fabric = clusim.load(machine)
    schedule = clusim.collectives.build(fabric, "allreduce", algorithm, 1 << 18)
    alone, together = (
        clusim.simulate(fabric, schedule, granularity="packet", threads=threads).to_json()
        for threads in (1, 3)
    )
    assert {**together, **dict.fromkeys(TIMED)} == {**alone, **dict.fromkeys(TIMED)}


@pytest.fixture(scope="module")
def image():
    fabric = clusim.load("dgx-a100")
    schedule = clusim.collectives.build(fabric, "allreduce", "ring", 1 << 16)
    return lower(fabric, schedule, "packet", 0).image


def test_without_windows_there_is_one_thread(image):
    assert Simulation(image, windows=False, threads=4).threads == 1


def test_there_are_no_more_threads_than_nodes(image):
    assert 2 <= Simulation(image, windows=True, threads=1000).threads <= len(image.nodes)
    assert 1 <= start_engine(image, "c", False, None).threads <= MOST_THREADS


def test_other_programs_keep_their_cores(monkeypatch):
    """Of 16 cores, 4 are ours: the first 12 other tasks have cores of their own, each of the next takes one of ours."""
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert [idle_cores(4, 1 + others) for others in (0, 12, 13, 14, 15, 16, 99)] == [
        4,
        4,
        3,
        2,
        1,
        1,
        1,
    ]


def test_the_running_tasks_are_read_from_the_system(monkeypatch):
    assert running_tasks() >= 1
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_: "0.31 0.20 0.10 7/345 1234\n")
    assert running_tasks() == 7
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_: "")
    assert running_tasks() == 1


def test_no_thread_at_all_is_refused():
    with pytest.raises(InputError, match="threads 0"):
        collective("dgx-a100", "allreduce", "64KiB", threads=0)
