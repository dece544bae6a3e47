"""What predictions share: equal images are one run, and nothing else is; workers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clusim.base.kept import SampleCache
from clusim.engine.image import DTYPES, Image
from clusim.nccltests import jobs
from clusim.nccltests.jobs import kernel
from clusim.simulation import anchors, extrapolate, samples
from clusim.simulation.job import Job, RunOptions
from clusim.simulation.job import run_job as simulated
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request
from clusim.simulation.samples import time_of
from clusim.simulation.setup import Setup

KIB = 1 << 10
RING_LL = (("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL"))
TREE_LL = (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL"))


def request(size: int = 4096, **fields: object) -> Request:
    return Request(Setup("a100x4-mesh", env=RING_LL), "allreduce", size, **fields)  # type: ignore[arg-type]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Digests of the runs that are made, with nothing known before."""
    made: list[bytes] = []

    def counted(job: Job, options: RunOptions) -> object:
        made.append(job.image.digest())
        return simulated(job, options)

    monkeypatch.setattr(samples, "run_job", counted)
    monkeypatch.setattr(samples, "TIMES", SampleCache(None))
    monkeypatch.setattr(extrapolate, "_TIMED", {})
    return made


def changed(image: Image, name: str) -> Image:
    """Return an image one bit of which is another."""
    table = getattr(image, name).copy()
    flat = table.view(np.uint8).reshape(-1)
    flat[len(flat) // 2] ^= 1
    return replace(image, **{name: table})


def test_any_bit_of_an_image_makes_another_digest() -> None:
    image = job_of(request()).image
    digests = {image.digest(), replace(image, seed=1).digest(), replace(image, nvc=3).digest()}
    tables = [name for name in DTYPES if len(getattr(image, name))]
    digests |= {changed(image, name).digest() for name in tables}
    assert len(digests) == 3 + len(tables)
    assert len(tables) > 12
    assert replace(image, wires=image.wires.copy()).digest() == image.digest()


def test_the_same_bytes_in_another_table_are_another_image() -> None:
    offsets = np.array([0, 7], np.uint32)
    one, other = Image(group_wires=offsets), Image(path_wires=offsets)
    assert one.digest() != other.digest()
    assert Image(group_wires=offsets[:1]).digest() != one.digest()


def test_equal_runs_are_made_once(runs: list[bytes]) -> None:
    times = [time_of(job_of(request())) for _ in range(3)]
    assert len(runs) == 1
    assert set(times) == {simulated(job_of(request()), RunOptions()).time_ps}


def test_different_questions_do_not_share(runs: list[bytes]) -> None:
    setup = request().setup
    asked = [
        request(),
        request(8192),
        request(seed=1),
        request(dtype="float16"),
        replace(request(), operation="reducescatter"),
        replace(request(), setup=replace(setup, env=TREE_LL)),
        replace(request(), setup=replace(setup, topology="gh200x4-mesh")),
        replace(request(), setup=replace(setup, ranks=(0, 1, 2))),
        replace(request(), setup=replace(setup, faults=("rank 0 slow x1.3",))),
    ]
    for one in asked:
        time_of(job_of(one))
    # Data of another type of the same size move alike.
    assert len(runs) == len(set(runs)) == len(samples.TIMES.answers) == len(asked) - 1


def test_a_burst_is_another_question(runs: list[bytes]) -> None:
    for granularity in ("packet", 4 * KIB):
        time_of(job_of(request(512 * KIB, granularity=granularity)))
    assert len(runs) == 2


def test_engines_do_not_share(runs: list[bytes]) -> None:
    for engine in ("c", "reference"):
        time_of(job_of(request(512, engine=engine)))
    assert len(runs) == 2
    assert len(set(runs)) == 1
    assert len(set(samples.TIMES.answers.values())) == 1


def test_what_is_forced_and_what_is_chosen_are_one_run(runs: list[bytes]) -> None:
    chosen = kernel(Request(Setup("a100x4-mesh"), "allreduce", 4096))
    env = (("NCCL_ALGO", chosen.algorithm), ("NCCL_PROTO", chosen.protocol))
    made = len(runs)
    forced = kernel(Request(Setup("a100x4-mesh", env=env), "allreduce", 4096))
    assert forced.time_ps == chosen.time_ps
    assert len(runs) == made


def test_curves_of_more_machines_share_the_runs_of_few(
    runs: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchors, "MOST_RANKS", 4)
    for nodes in (8, 16):
        setup = Setup("alps-gh200", nodes, 1, "2.23", RING_LL)
        kernel(Request(setup, "allreduce", nodes * 16 * KIB, granularity="quick"))
    # Two machines with 32 KiB, four with 64 KiB.
    assert len(runs) == 2


def test_two_workers_find_what_one_finds() -> None:
    cases = [
        Request(Setup(name, env=env), "allreduce", size)
        for name in ("a100x4-mesh", "gh200x4-mesh")
        for env in ((), RING_LL)
        for size in (512, 4096)
    ]
    seen: list[tuple[int, int]] = []
    both = jobs.kernels(cases, jobs=2, progress=lambda *at: seen.append(at))
    assert both == jobs.kernels(cases, jobs=1)
    assert seen[-1] == (len(cases), len(cases))
