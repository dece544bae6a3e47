"""What if: every kind of change, with the plan held and made anew, each checked by the run it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clusim
from clusim.analysis.whatif import Change, changed_image
from clusim.base.errors import ClusimError
from clusim.base.resources import shipped_topologies
from clusim.engine.image import DTYPES
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.studies.whatif import ChangeOutcome, ChangeRow
from clusim.topology.pcie_paths import rooted_nics
from clusim.workload import load_workload
from clusim_cli.main import cli, run

SMALL = "run dgx-a100 --size 64KiB --granularity packet"
SMALL_STEP = """
model: {base: gpt3-1.3b, layers: 2, hidden: 256, heads: 8, head_size: 32, kv_heads: 8, intermediate: 1024, vocab: 1024}
sequence: 128
batch: {global: 16, micro: 1}
parallel: {data: 16}
collectives: nccl
"""
LOG = Path(__file__).parents[2] / "traces" / "nccl-8xh100.log"


def asked(*words: str, code: int = 0) -> dict[str, Any]:
    given = ["what-if", *words, "--no-progress", "--json"]
    done = CliRunner().invoke(cli, given, standalone_mode=False)
    if isinstance(done.exception, ClusimError):
        raise done.exception
    assert done.return_value == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def time_ps(machine: str = "dgx-a100", **options: Any) -> int:
    return clusim.collective(machine, "allreduce", "64KiB", granularity="packet", **options).time_ps


PLANNED: dict[str, Callable[[], int]] = {
    "--fault 'rank 3 slow x2'": lambda: time_ps(faults=["rank 3 slow x2"]),
    "--fault 'plane nvswitch2 down'": lambda: time_ps(faults=["plane nvswitch2 down"]),
    "--algorithm tree": lambda: time_ps(algorithm="tree"),
    "--nccl-version 2.12": lambda: time_ps(version="2.12"),
    "--env NCCL_ALGO=Tree": lambda: time_ps(env={"NCCL_ALGO": "Tree"}),
    "--ranks 0-3": lambda: time_ps(ranks=range(4)),
    "dgx-h100": lambda: time_ps("dgx-h100"),
}


@pytest.mark.parametrize("operation", ["allreduce", "sendrecv"])
def test_what_the_verdict_says_of_faster_links_is_what_if(operation: str) -> None:
    """Line rates of DCQCN, costs of CTAs beside a NIC and flags to the host depend on the rate of RoCE links."""
    size = {"allreduce": 4, "sendrecv": 2}[operation]
    request = Request(Setup("hgx-h20", 2), operation, size << 20)
    result = result_of(request, RunOptions(confirm=True))
    (cause,) = [one for one in result.diagnose().causes if one.remedy == "roce x2"]
    (row,) = asked(f"run hgx-h20 --nodes 2 -c {operation} --size {size}MiB", "roce x2")["rows"]
    assert cause.saving_ps == result.time_ps - row["held"]["time_ps"]


def test_faster_links_of_a_trace_raise_the_line_rate_of_senders() -> None:
    image = job_of(Request(Setup("hgx-h20", 2), "sendrecv", 4 << 20)).image
    arrays = {name: getattr(image, name) for name in DTYPES}
    rate = image.controls["line_rate"][0]
    alike = image.wires["rate_num"] * 2.0**30 / image.wires["rate_den"] - rate
    wires = frozenset((abs(alike) < 1).nonzero()[0].tolist())
    for part, line_rate in ((wires, 2 * rate), (frozenset(sorted(wires)[1:]), rate)):
        changed = changed_image(arrays, Change("wires", Fraction(2), part))
        assert changed["controls"]["line_rate"].tolist() == [line_rate]


@pytest.mark.parametrize("change", PLANNED)
def test_planned_anew_is_the_run_that_is_asked_for(change: str) -> None:
    found = asked(SMALL, change)
    (row,) = found["rows"]
    assert found["baseline"][0]["time_ps"] == time_ps()
    assert row["planned"]["time_ps"] == PLANNED[change]()
    assert row["planned"]["verdict"]["causes"]


@pytest.mark.parametrize(
    "change", ["--algorithm tree", "--nccl-version 2.12", "--env NCCL_ALGO=Tree", "--ranks 0-3"]
)
def test_a_change_of_the_plan_itself_holds_none(change: str) -> None:
    (row,) = asked(SMALL, change)["rows"]
    assert row["held"] is None


def test_a_fault_of_which_no_plan_knows_is_as_held() -> None:
    (row,) = asked(SMALL, "--fault 'rank 3 slow x2'")["rows"]
    assert row["held"]["time_ps"] == row["planned"]["time_ps"]
    assert row["planned"]["verdict"]["causes"][0]["kind"] == "straggler"


def test_slower_links_slow_down_and_what_no_plan_looks_at_says_so() -> None:
    baseline = "run dgx-a100 --size 16MiB --granularity 64KiB"
    found = asked(baseline, "nvlink x0.5", "nvlink x1", "latency x2", "step x2")
    base = found["baseline"][0]["time_ps"]
    slow, same, latency, step = (row["held"]["time_ps"] for row in found["rows"])
    assert slow > 1.2 * base
    assert same == base
    assert latency <= base
    assert step < base
    assert "NCCL's plan does not depend on it" in found["rows"][3]["notes"][0]


def test_a_dead_nic_that_makes_a_run_faster_explains_itself() -> None:
    """NCCL searches anew and finds 22 channels for 16; the plan of all hardware suffers from the NIC."""
    found = asked("run dgx-h100 --nodes 2 --size 1MiB", "--fault 'nic n0/nic0 down'")
    base, (row,) = found["baseline"][0], found["rows"]
    assert row["planned"]["time_ps"] < base["time_ps"] < row["held"]["time_ps"]
    assert any("channels 22 instead of 16" in note for note in row["notes"])
    (why,) = [note for note in row["notes"] if note.startswith("faster only by its plan")]
    assert "with the plan held it is +" in why


def test_one_that_is_slower_either_way_does_not() -> None:
    base, slow = ChangeOutcome(100, "a"), ChangeOutcome(110, "b")
    assert ChangeRow("x", base, slow, slow).note_lines() == []
    fast = ChangeOutcome(90, "b")
    assert any("faster only" in line for line in ChangeRow("x", base, slow, fast).note_lines())


def test_a_change_that_cannot_run_says_why_in_its_row() -> None:
    found = asked(SMALL, "--ranks 0-9", "--algorithm nvls", code=2)
    for row in found["rows"]:
        assert row["planned"]["time_ps"] is None
        assert row["planned"]["error"]


@pytest.mark.parametrize("program", ["all_reduce_perf", "broadcast_perf"])
def test_rows_of_nccl_tests_have_the_times_that_the_program_prints(program: str) -> None:
    words = f"{program} dgx-h100 -b 1K -e 8K -f 8 --nccl-version 2.27"
    found = asked(f"nccl-tests {words}", "nvlink x0.5", "--fault 'rank 1 slow x2'")
    assert [base["of"] for base in found["baseline"]] == ["1 KiB", "8 KiB"]
    flags = "-b 1K -e 8K -f 8 -c 0"
    table = clusim.nccl_tests(program, "dgx-h100", flags, version="2.27", jobs=1)
    for base, line in zip(found["baseline"], table.lines, strict=True):
        assert base["time_ps"] / 1e6 == pytest.approx(line.halves[0].time_us, abs=0.01)
    for row in found["rows"]:
        assert row["held"]["time_ps"] >= row["baseline"]["time_ps"]


def test_a_replay_is_held_to_its_log_and_planned_anew() -> None:
    found = asked(f"replay {LOG} dgx-h100 --granularity 64KiB", "dgx-a100")
    (row,) = found["rows"]
    replayed = partial(clusim.replay, LOG, granularity=1 << 16)
    assert found["baseline"][0]["time_ps"] == replayed("dgx-h100").total_ps
    assert row["held"]["time_ps"] == replayed("dgx-a100").total_ps
    assert row["planned"]["time_ps"] == replayed("dgx-a100", replan=True).total_ps


def test_a_step_is_changed_by_keys_of_its_workload() -> None:
    words = "train bert-parameter-server --steps 1 --granularity 1MiB"
    found = asked(words, "batch.global=56", "--fault 'rank 1 slow x2'")
    base = clusim.train("bert-parameter-server", steps=1, granularity=1 << 20)
    assert found["baseline"][0]["time_ps"] == base.step_ps[-1]
    assert found["rows"][0]["held"] is None
    assert found["rows"][1]["held"]["time_ps"] == found["rows"][1]["planned"]["time_ps"]
    spec = load_workload("bert-parameter-server", {"batch.global": 56})
    twice = clusim.train(spec, steps=1, granularity=1 << 20)
    assert found["rows"][0]["planned"]["time_ps"] == twice.step_ps[-1] > base.step_ps[-1]
    assert found["rows"][1]["planned"]["time_ps"] > base.step_ps[-1]


def test_a_step_is_held_to_the_plans_of_its_collectives(tmp_path: Path) -> None:
    """Half as fast, links of a network are planned for as they were; without a NIC, the plan of the whole suffers."""
    work = tmp_path / "small.yaml"
    work.write_text(SMALL_STEP, encoding="utf-8")
    words = f"train {work} dgx-h100 --nodes 2 --steps 1 --granularity 64KiB"
    found = asked(words, "--fault 'nic n0/nic0 down'", "infiniband x0.5")
    dead, slow = found["rows"]
    assert dead["held"]["time_ps"] > dead["planned"]["time_ps"]
    assert any("channels 22 instead of 13" in note for note in dead["notes"])
    assert slow["held"]["time_ps"] == slow["planned"]["time_ps"] > slow["baseline"]["time_ps"]
    assert slow["planned"]["verdict"]["phases"]


@pytest.mark.parametrize("kind", ["run", "train"])
def test_a_changed_chip_is_a_file(kind: str, tmp_path: Path) -> None:
    """Chips of half the pace: the schedule held is the baseline's, kernels take what they take there."""
    text = shipped_topologies()["dgx-a100"].read_text(encoding="utf-8")
    mine = tmp_path / "mine.yaml"
    slower = text.replace("chip: a100-sxm4-80gb", "chip: mine")
    mine.write_text(
        f"{slower}chips: {{mine: {{base: a100-sxm4-80gb, slowdown: 2}}}}\n", encoding="utf-8"
    )
    if kind == "run":
        found, alone = asked(SMALL, str(mine)), time_ps(str(mine))
    else:
        words = "train bert-parameter-server --steps 1 --granularity 1MiB"
        found = asked(words, str(mine))
        there = clusim.train("bert-parameter-server", mine, steps=1, granularity=1 << 20)
        alone = there.step_ps[-1]
    (row,) = found["rows"]
    assert row["planned"]["time_ps"] == row["held"]["time_ps"] == alone
    assert alone > row["baseline"]["time_ps"]


def test_the_table_has_a_line_for_each_and_its_cause() -> None:
    done = CliRunner().invoke(cli, ["what-if", SMALL, "--algorithm tree", "--no-progress"])
    lines = done.stdout.splitlines()
    assert lines[0] == f"clusim {SMALL}"
    (at,) = [i for i, line in enumerate(lines) if line.startswith("  --algorithm tree")]
    assert "tree, simple" in lines[at]
    cause = lines[at + 1]
    assert cause.startswith("      critical path: ")
    assert "% of" not in cause
    assert "per-slice CTA overhead" in cause or "latency" in cause


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run dgx-a100", "wire x2"], "no matching links"),
        (["run dgx-a100", "nvlink x0"], "between 0.001 and 1000"),
        (["traffic mesh:4x4", "--seed 1"], "begin with one of run, nccl-tests, replay, train"),
        (["run 'dgx", "--seed 1"], "No closing quotation"),
        (
            ["run dgx-a100", "parallel.tensor=4"],
            "keys of a file are for train, serve and jobs only",
        ),
        (["run dgx-a100", "--sise 4"], "no option '--sise'; did you mean '--size'?"),
        (["run dgx-a100", "nvlink x2", "--fault 'rank 11 slow x2'"], "what-if --fault 'rank 11"),
        (["run dgx-a100", "dgx-a1000"], "did you mean 'dgx-a100'?"),
        (["train bert-allreduce", "--fault 'gizmo 1 down'"], "unknown kind 'gizmo'"),
        (
            ["train bert-allreduce", "hbm x2"],
            "links, compute and host can be faster, and keys of the file",
        ),
        ([f"replay {LOG} dgx-h100", "stepp x2"], "stepp x2: no matching links in dgx-h100"),
        ([f"replay {LOG}", "rank 1 repaired"], "set the system of the replay with --topology"),
        (
            ["nccl-tests all_reduce_perf dgx-h100", "rank 1 repaired"],
            "only of run, train and replay",
        ),
        ([f"replay {LOG} dgx-h100", "--fault 'rank 8 slow x2'"], "no rank 8"),
    ],
)
def test_words_that_mean_nothing_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["what-if", *words, "--no-progress"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert said in shown.err


SWITCHED = {
    "p2p off": (SMALL, {"env": {"NCCL_P2P_DISABLE": "1"}}),
    "gpudirect off": (f"{SMALL} --nodes 2 --ranks 0,8", {"env": {"NCCL_NET_GDR_LEVEL": "LOC"}}),
    "pxn off": (f"{SMALL} --nodes 2 --ranks 0,8 -c alltoall", {"env": {"NCCL_PXN_DISABLE": "1"}}),
}


@pytest.mark.parametrize("change", SWITCHED)
def test_a_transport_that_is_off_is_the_run_with_its_variable(change: str) -> None:
    baseline, options = SWITCHED[change]
    operation = "alltoall" if "alltoall" in baseline else "allreduce"
    if "--nodes" in baseline:
        options = {**options, "nodes": 2, "ranks": (0, 8)}
    (row,) = asked(baseline, change)["rows"]
    own = clusim.collective("dgx-a100", operation, "64KiB", granularity="packet", **options)
    assert row["planned"]["time_ps"] == own.time_ps
    assert row["held"]["time_ps"] > 0


def test_acs_and_places_of_nics_change_the_paths_of_packets() -> None:
    baseline = "run hgx-h100-ndr --nodes 2 --ranks 0,8 --size 8MiB --algorithm ring --channels 4"
    rows = {row["change"]: row for row in asked(baseline, "acs on", "nics remote")["rows"]}
    times = {name: row["planned"]["time_ps"] for name, row in rows.items()}
    fabric = clusim.load("hgx-h100-ndr", nodes=2)
    options = {"ranks": (0, 8), "channels": 4}
    changed = {
        "acs on": replace(fabric, acs=True),
        "nics remote": rooted_nics(fabric, remote=True),
    }
    for name, there in changed.items():
        own = clusim.collective(there, "allreduce", "8MiB", "ring", **options)
        assert times[name] == own.time_ps, name
    sound = clusim.collective(fabric, "allreduce", "8MiB", "ring", **options)
    assert sound.time_ps < min(times.values())


@pytest.mark.parametrize(
    ("baseline", "change", "message"),
    [
        ("run rtx4090x8-pcie --size 64KiB", "acs on", "acs on: rtx4090x8-pcie lacks PCIe switches"),
        (SMALL, "nvls off", "nvls off: cannot be switched off; use 'p2p off'"),
        (f"{SMALL} --env NCCL_P2P_LEVEL=NVL", "p2p off", "contradicts it"),
        (f"{SMALL} --env NCCL_P2P_DISABLE=1", "p2p off", "p2p off: it is off already"),
        ("run fully-connected:4 --size 64KiB --algorithm ring", "p2p off", "has no host memory"),
    ],
)
def test_what_cannot_be_switched_off_says_why(baseline: str, change: str, message: str) -> None:
    with pytest.raises(ClusimError, match=message):
        asked(baseline, change)
