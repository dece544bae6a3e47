"""``--time-limit``: what is known is printed, and the command fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import TimeLimitReached
from clusim.base.resources import cluster_workloads
from clusim.simulation.session import Watch
from clusim_cli import options
from support.covering import THOROUGH

pytestmark = pytest.mark.proof

Clusim = Callable[..., Any]
TRACES = Path(__file__).resolve().parents[2] / "traces"
LOG = TRACES / "nccl-8xh100.log"
SIMAI = str(TRACES / "gpt-tp8-dp2.simai.txt")


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every limit be reached as soon as the engine runs."""
    monkeypatch.setattr(Watch, "over", property(lambda watch: watch.limit_ps is not None))
    monkeypatch.setattr(Watch, "begins", lambda watch, what: None)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(
    "words",
    [("run", "dgx-h100", "--size", "8MiB"), ("traffic", "fat-tree:k=4", "--message", "64MiB")],
)
def test_the_command_prints_what_is_known_and_fails(
    clusim: Clusim, tmp_path: Path, words: tuple[str, ...]
) -> None:
    trace = tmp_path / "t.h5"
    done = clusim(*words, "--time-limit", "90s", "--trace-out", trace, "--json")
    assert done.code == 1
    said = json.loads(done.out)
    assert (said["complete"], said["ended_by"]) == (False, "time limit of 90 s")
    assert said["time_ps"] <= said["least_time_ps"]
    for cause in said.get("verdict", {"causes": []})["causes"]:
        assert cause["saving_ps"] is None, "of a whole that is not known"
    assert said["fingerprint"] is None
    kept = f"the partial trace is {trace}.partial"
    assert done.err.startswith("clusim: time limit of 90 s: ended at ")
    assert done.err.endswith(f"{kept}\n")
    text = clusim(*words, "--time-limit", "90s")
    assert "  ended by " in text.out
    assert "  at least " in text.out


@pytest.mark.parametrize("name", cluster_workloads() if THOROUGH else ["gpt3-1.3b-ddp"])
def test_a_step_of_a_large_cluster_says_what_would_be_quick(
    clusim: Clusim, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "ASK_S", 60)
    done = clusim("train", name, "--time-limit", "1ns")
    assert done.code == 1
    first, _, rest = done.err.partition("\n")
    assert first.startswith(
        f"clusim: warning: {name} is too large to be simulated in minutes; use --estimate"
    )
    assert rest.startswith("clusim: time limit of 1 ns: reached before ")


STEPS = ("train", "resnet50-dgx1v", "--steps", 3, "--granularity", "packet", "--fold", "none")


@pytest.mark.usefixtures("late")
def test_training_steps_print_those_that_are_done_and_fail(clusim: Clusim, tmp_path: Path) -> None:
    trace = tmp_path / "t.h5"
    done = clusim(*STEPS, "--time-limit", "90s", "--trace-out", trace, "--json")
    assert done.code == 1
    said = json.loads(done.out)
    assert (said["complete"], said["ended_by"]) == (False, "time limit of 90 s")
    assert (said["steps"], said["steps_s"], said["doubts"]) == (3, [], [])
    assert 0 < said["under_way_s"] <= round(said["least_time_ps"] / 1e12, 9)
    assert done.err.startswith("clusim: time limit of 90 s: ended at ")
    kept = f"0 of 3 steps done; the partial trace is {trace}.partial"
    assert done.err.endswith(f"{kept}\n")
    text = clusim(*STEPS, "--time-limit", "90s")
    assert "  steps done        0 of 3\n" in text.out
    assert text.err.endswith("0 of 3 steps done\n")


@pytest.mark.usefixtures("late")
def test_a_replay_prints_the_calls_that_are_done_and_fails(clusim: Clusim, tmp_path: Path) -> None:
    """The whole log as one run: it is ended in its first slice of work."""
    words = ("replay", LOG, "dgx-h100", "--calls", 6, "--whole", "--granularity", "packet")
    trace = tmp_path / "t.h5"
    done = clusim(*words, "--time-limit", "90s", "--trace-out", trace, "--json")
    assert done.code == 1
    said = json.loads(done.out)
    assert (said["complete"], said["ended_by"]) == (False, "time limit of 90 s")
    assert said["total_us"] <= said["least_time_ps"] / 1e6
    assert done.err.startswith("clusim: time limit of 90 s: ended at ")
    assert done.err.endswith(f"the partial trace is {trace}.partial\n")
    text = clusim(*words, "--time-limit", "90s")
    assert "  ended by time limit of 90 s: " in text.out


@pytest.mark.parametrize(
    ("words", "simulation"),
    [
        (("run", "dgx-a100", "--size", "64KiB"), "clusim.simulation.diagnose.simulate_inputs"),
        (("replay", LOG, "dgx-h100", "--calls", 2), "clusim.replays.logged_job.LoggedJob.again"),
    ],
)
def test_a_limit_that_ends_re_simulations_fails_after_the_result(
    clusim: Clusim, words: tuple[Any, ...], simulation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object, **__: object) -> None:
        raise TimeLimitReached("time limit of 90 s")

    monkeypatch.setattr(simulation, late)
    done = clusim(*words, "--time-limit", "90s")
    assert done.code == 1
    assert "of the time: " in done.out
    assert "not simulated: changes; time limit of 90 s\n" in done.out
    assert done.err.endswith("clusim: not simulated: changes; time limit of 90 s\n")
    said = json.loads(clusim(*words, "--time-limit", "90s", "--json").out)
    assert said["verdict"]["unfinished"] == "changes; time limit of 90 s"
    assert all(cause["saving_ps"] is None for cause in said["verdict"]["causes"])


@pytest.mark.parametrize("option", [("--estimate",), ("--layers",), ("--scaling", "weak")])
def test_a_limit_is_refused_for_what_is_not_one_simulation(
    clusim: Clusim, option: tuple[str, ...]
) -> None:
    done = clusim("train", "resnet50-dgx1v", *option, "--time-limit", "9s")
    assert done.code == 2
    assert done.err == f"clusim: --time-limit: not with {option[0]}\n"


def test_a_limit_that_is_no_time_is_one_line(clusim: Clusim) -> None:
    done = clusim("run", "dgx-h100", "--time-limit", "0")
    assert done.code == 2
    assert done.err == "clusim: time limit 0 ps: must be positive\n"


def spin(*_args: object, **_options: object) -> None:
    """Prepare something that takes far longer than any limit, without looking at it."""
    for _ in range(10**9):
        pass
    raise AssertionError("the limit was not looked at")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("clusim_formats.recordings.simai.read", ("replay", SIMAI, "dgx-a100")),
        ("clusim.simulation.preparation.lower_on", ("run", "dgx-a100", "--size", "1MiB")),
        ("clusim.simulation.traffic_image.to_image", ("traffic", "star:4", "--message", "4KiB")),
        ("clusim.training.run.make_plan", ("train", "bert-allreduce")),
    ],
)
def test_every_preparation_ends_at_the_limit(
    name: str, words: tuple[str, ...], clusim: Clusim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name, spin)
    done = clusim(*words, "--time-limit", "100ms")
    assert done.code == 1
    assert "time limit of 100 ms: reached before " in done.err
    assert "Traceback" not in done.err
