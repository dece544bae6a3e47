"""Law: every command plans on what is known of faults at the start, and says what broke and how the plan differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clusim
from clusim.base import resources
from clusim.lowering import Broken, plan_change
from clusim.nccl.choice import Way
from clusim.report.html import page
from clusim.report.page_data import Feed
from clusim.simulation.plan import plan
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.topology import Fabric, loads
from clusim.topology.arrays import arrays_of
from clusim.training import train, training_report
from clusim_cli.main import cli
from support.doctored import EVIL
from support.workloads import tiny

DEAD = "plane nvswitch2 down"
HALF = "lanes gpu3-nvswitch0 1/2"
LINES = [
    f"{DEAD}: 32 wires at 0.00 of 25.00 GB/s from the start",
    f"{HALF}: 4 wires at 12.50 of 25.00 GB/s from the start",
]
PLANNED = "planned without the links that are down at time 0: channels 20 instead of 24"


def shipped(name: str) -> str:
    path = resources.find_topology(name)
    assert path is not None
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A DGX A100 whose file has a dead plane and a half link."""
    path = tmp_path_factory.mktemp("broken") / "broken.yaml"
    path.write_text(f"{shipped('dgx-a100')}\nfaults: [{DEAD}, {HALF}]\n", encoding="utf-8")
    return str(path)


def text(*words: str) -> str:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def data(*words: str) -> Any:
    return json.loads(text(*words, "--json"))


EXPLAIN = ("explain", "--size", "64M", "--env", "NCCL_DEBUG=INFO")
TESTS = ("nccl-tests", "all_reduce_perf", "-b", "64K", "-e", "64K", "--jobs", "1")
CROSSOVER = ("crossover", "--size", "64K", "--jobs", "1", "--no-progress")


def test_explain_plans_without_what_is_down(broken: str) -> None:
    found, lines = data(*EXPLAIN, broken), text(*EXPLAIN, broken).splitlines()
    assert found["faults"] == LINES
    assert found["notes"] == ["no effect on the simulation: NCCL_DEBUG (logs and dumps)", PLANNED]
    assert found["channels"]["coll"] == found["choices"][0]["channels"] == 20
    assert lines[-4:] == [
        *(f"fault: {line}" for line in LINES),
        *(f"note: {note}" for note in found["notes"]),
    ]


def test_explain_of_a_sound_machine_says_nothing_of_faults() -> None:
    found = data("explain", "dgx-a100", "--size", "64M")
    assert found["faults"] == found["notes"] == []
    assert found["channels"]["coll"] == 24


def test_nccl_tests_has_faults_and_notes_before_its_table(broken: str) -> None:
    found = data(*TESTS, broken)
    assert found["faults"] == LINES
    (note,) = found["notes"]
    assert note.startswith("planned without the links that are down at time 0: ")
    head = text(*TESTS, broken).partition("# Using devices")[0].replace("#", " ").split()
    wanted = [*(f"fault: {line}" for line in LINES), f"note:  {note}"]
    assert " ".join(" ".join(wanted).split()) in " ".join(head)
    assert "faults" not in data(*TESTS, "dgx-a100")


def test_crossover_has_faults_and_notes_in_text_json_and_csv(broken: str) -> None:
    found = data(*CROSSOVER, broken)
    assert found["faults"] == LINES
    (note,) = found["notes"]
    wanted = [*(f"fault: {line}" for line in LINES), f"note:  {note}"]
    assert text(*CROSSOVER, broken).splitlines()[-3:] == wanted
    assert text(*CROSSOVER, broken, "--csv").splitlines()[:3] == [f"# {line}" for line in wanted]


def test_programs_are_those_of_a_run(broken: str) -> None:
    """The fabric that is simulated is the whole one; the one that is planned on is not."""
    setup = Setup(broken)
    (call,) = plan(Request(setup, "allreduce", 64 << 20)).schedule.calls
    words = ("--algorithm", "nccl", "--size", "64M", "--granularity", "64KiB", "--no-progress")
    run = data("run", broken, *words)
    assert (call.channels, run["channels"]) == (20, 20)
    assert run["notes"] == [PLANNED]
    assert len(setup.known.links) < len(setup.fabric.links)
    assert setup.fabric.links == clusim.load("dgx-a100").links


def test_faults_of_a_file_are_those_of_every_machine_that_is_simulated(tmp_path: Path) -> None:
    """Fewer machines do not stand for all when something broke on one of them."""
    path = tmp_path / "many.yaml"
    path.write_text(
        "name: many\ncluster: {node: dgx-a100, nodes: 8}\n"
        "faults: ['link n7/gpu0-n7/nvswitch0 down at 1s']\n",
        encoding="utf-8",
    )
    words = ("nccl-tests", "all_reduce_perf", str(path), "-b", "8", "-e", "8")
    (fault,) = data(*words, "--jobs", "1")["faults"]
    assert fault.startswith("link n7/gpu0-n7/nvswitch0 down at 1s: ")


class TestTraining:
    def test_lists_every_fault_once_and_plans_around_it(self, broken: str, tmp_path: Path) -> None:
        work = tmp_path / "work.yaml"
        work.write_text(
            "model: {base: gpt3-1.3b, layers: 1, hidden: 512, heads: 8, head_size: 64, kv_heads: 8,"
            " intermediate: 2048, vocab: 8192}\n"
            "sequence: 256\nbatch: {global: 8, micro: 1}\nparallel: {data: 8}\n",
            encoding="utf-8",
        )
        words = ("train", str(work), broken, "--steps", "1", "--no-progress")
        words += ("--granularity", "64KiB", "--fault", "rank 1 slow x2 at 1us")
        slow = "rank 1 slow x2 at 1us: CTAs and kernels of rank 1 take x2 from 1 us on"
        found = data(*words)
        assert found["faults"] == [*LINES, slow]
        assert len(found["broken_wires"]) == 36
        (note,) = found["notes"]
        assert note.startswith("planned without the links that are down at time 0: ")
        assert "channels 20 instead of " in note
        printed = text(*words)
        for line in found["faults"]:
            assert printed.splitlines().count(f"  fault: {line}") == 1
        assert f" warning: {note}" in " ".join(printed.split())

        scaled = (*words, "--scaling", "weak", "--replicas", "2")
        (row,) = data(*scaled)
        assert row["faults"] == found["faults"]
        assert f"  fault: {slow}" in text(*scaled).splitlines()

    def test_a_file_with_faults_is_not_folded(self) -> None:
        whole = clusim.load("dgx-a100")
        worn = clusim.topology.loads(f"{shipped('dgx-a100')}\nfaults: [rank 1 slow x2]\n")
        work = tiny()
        options: dict[str, Any] = {"steps": 1, "granularity": 65536, "fold": "all"}
        by_file = train(work, worn, **options)
        by_hand = train(work, whole, faults=["rank 1 slow x2"], **options)
        assert by_file.fold.folded == by_hand.fold.folded == 0
        assert by_file.result.fingerprint == by_hand.result.fingerprint
        assert train(work, whole, **options).result.fingerprint != by_file.result.fingerprint

    def test_a_later_fault_changes_no_plan(self) -> None:
        found = train(
            tiny(), clusim.load("dgx-a100"), steps=1, granularity=65536, faults=[f"{DEAD} at 5s"]
        )
        assert found.notes == []
        assert found.result.provenance.faults[0].endswith("from 5 s on")
        assert f"  fault: {found.result.provenance.faults[0]}" in training_report(found)

    def test_a_stand_in_for_rccl_is_said(self) -> None:
        path = resources.find_topology("mi300x")
        assert path is not None
        text = path.read_text(encoding="utf-8")
        text = text.replace("chip: mi300x", "chip: mi100").replace("xgmi-mi300x", "xgmi-mi100")
        found = train(tiny(collectives="nccl"), loads(text), steps=1, granularity=65536)
        assert any("runs RCCL" in note for note in found.notes)


class TestOneRule:
    def test_nothing_down_leaves_the_fabric_itself(self) -> None:
        machine = clusim.load("dgx-a100")
        assert Broken(arrays_of(machine), [HALF, f"{DEAD} at 1us"]).planning_fabric is machine
        known: Fabric = Broken(arrays_of(machine), [DEAD]).planning_fabric
        assert len(known.links) == len(machine.links) - 8

    def test_a_change_of_several_collectives_is_counted(self) -> None:
        one, two = Way("Ring", "LL", 24), Way("Tree", "LL", 20)
        head = "planned without the links that are down at time 0: "
        assert plan_change([one, one], [one, one]).endswith("2 collectives, as without faults")
        said = plan_change([one, one, one], [one, two, two])
        first = "algorithm Tree instead of Ring, channels 20 instead of 24"
        assert said == f"{head}2 of 3 collectives otherwise, the first with {first}"


def test_the_page_has_faults_and_notes_near_its_head(tmp_path: Path) -> None:
    machine = clusim.load("dgx-a100")
    trace = tmp_path / "t.h5"
    clusim.simulate(
        machine,
        clusim.collectives.build(machine, "allreduce", "ring", 1 << 16),
        faults=[HALF],
        notes=[EVIL],
        trace_out=trace,
    )
    shown = page(Feed.open(trace, findings=False))
    summary = shown[shown.index('class="summary"') :]
    summary = summary[: summary.index("</section>")]
    assert f"<p>fault: {LINES[1]}</p>" in summary
    assert "<p>note:  " in summary
    assert EVIL not in shown


def test_a_list_of_layers_refuses_faults_that_it_would_ignore() -> None:
    arguments = ["train", "resnet50-dgx1v", "--layers", "--fault", HALF]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert "not with --fault" in done.output


def test_reductions_in_switches_go_round_a_dead_plane() -> None:
    words = ("run", "dgx-h100", "--algorithm", "nvls", "--size", "1M", "--verify")
    whole, rest = data(*words), data(*words, "--fault", "plane nvswitch0 down")
    assert rest["verified"]
    # The plane has 5 of the 18 links of every GPU.
    assert 1 < rest["time_ps"] / whole["time_ps"] < 18 / 13
