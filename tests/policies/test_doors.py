"""A sender policy at every command that builds a system with NICs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import TopologyError
from clusim.replays.placing import ReplayRequest
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.simulation.speed import speed_of
from clusim.studies.sweep.grid import run_point, train_point
from clusim.studies.whatif.api import what_if
from clusim.training.api import train_request
from clusim_cli.main import run

FILES = {"home": Path()}


def _senders(setup: Any) -> set[str | None]:
    """Return the policies of the NICs of a setup's system."""
    controls = [node.nic.rate_control for node in setup.fabric.nodes if node.nic is not None]
    return {None if one is None else one.sender and one.sender.name for one in controls}


def test_steps_replays_and_grids_take_a_policy() -> None:
    policy = "sender=swift"
    steps = train_request("gpt3-1.3b-ddp", "hgx-h20", nodes=2, policy=policy)
    replay = ReplayRequest(("a.log",), "hgx-h20", 2, policy=policy).setup("hgx-h20", "", ())
    values = {"topology": ("hgx-h20", "hgx-h20"), "nodes": ("2", 2), "policy": (policy, policy)}
    cell = run_point(values | {"size": ("1MiB", 1 << 20)} | FILES)
    row = train_point(values | {"workload": ("gpt3-1.3b-ddp", "gpt3-1.3b-ddp")} | FILES)
    for setup in (steps.setup, replay, cell.request.setup, row.request.setup):
        assert _senders(setup) == {"swift"}


def test_savings_of_a_policy_in_python_are_those_of_the_engine() -> None:
    """DCQCN in Python has equal runs, so its runs with faster parts are equal, in the verdict and in what-if."""
    changes = ("roce x2", "cta x2")
    savings, runs = [], []
    for policy in ("", "sender=dcqcn-policy"):
        request = Request(Setup("hgx-h20", 2, policy=policy), "sendrecv", 2 << 20)
        result = result_of(request, RunOptions(confirm=True))
        saved_ps = {one.remedy: one.saving_ps for one in result.diagnose().causes}
        savings.append([saved_ps[change] for change in changes])
        rows = what_if(request, [(change, speed_of(change)) for change in changes]).rows
        runs.append([result.time_ps - row.held.time_ps for row in rows])
    assert savings[0] == savings[1] == runs[0] == runs[1]
    assert all(savings[0])


def test_the_identity_of_a_setup_covers_its_policy() -> None:
    def identity(policy: str) -> Any:
        return train_request("gpt3-1.3b-ddp", "hgx-h20", nodes=2, policy=policy).setup.identity

    assert len({identity(""), identity("sender=swift"), identity("sender=dctcp")}) == 3


def test_run_prints_another_time_without_rate_control(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "hgx-h20", "--nodes", "4", "-c", "alltoall", "--size", "16MiB", "--json"]
    words += ["--no-progress", "--granularity", "32KiB"]
    prints = {}
    for policy in ("", "sender=dcqcn-policy", "sender=none", "sender=swift"):
        capsys.readouterr()
        assert run([*words, "--policy", policy]) == 0
        printed = json.loads(capsys.readouterr().out)
        prints[policy] = printed["fingerprint"]
        named = f"sender policy: {policy.removeprefix('sender=')}"
        assert (named in printed["notes"]) == bool(policy)
    assert prints[""] == prints["sender=dcqcn-policy"]
    assert len(set(prints.values())) == 3


def test_a_policy_without_flows_over_nics_is_named() -> None:
    """One node has no traffic over its NICs, so a policy cannot change its time."""
    request = Request(Setup("hgx-h20", policy="sender=swift"), "allreduce", 1 << 16)
    result = result_of(request)
    assert "obeyed, without effect on this run: --policy sender=swift" in result.provenance.notes
    sound = result_of(replace(request, setup=Setup("hgx-h20")))
    assert (result.time_ps, result.fingerprint) == (sound.time_ps, sound.fingerprint)


def test_files_of_policies_in_a_topology_count_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half.py").write_text(
        "import clusim\n\n@clusim.policy\nclass Half:\n    def start(self, now_ps):\n"
        "        self.rate = self.line_rate // 2\n"
    )
    text = (
        "name: two\nnics:\n  n: {base: cx7-roce400, rate_control: CONTROL}\nnodes:\n"
        "  gpu0: {kind: gpu, chip: h20-sxm5}\n  nic0: {kind: nic, nic: n}\n"
        "  cpu0: {kind: switch, switch: xeon-spr}\nlinks:\n"
        "  - {from: gpu0, to: cpu0, type: pcie-gen5-x16}\n"
        "  - {from: nic0, to: cpu0, type: pcie-gen5-x16}\n"
    )
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for control in ("half.py:Half", "{policy: half.py:Half}"):
        path = tmp_path / "two.yaml"
        path.write_text(text.replace("CONTROL", control))
        assert _senders(Setup(path)) == {f"{tmp_path}/half.py:Half"}
        path.write_text(text.replace("CONTROL", control.replace("half.py", "other.py")))
        with pytest.raises(TopologyError, match=r"no file 'other\.py'"):
            clusim.load(path)


def test_predicted_tables_and_changes_take_a_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "slow.py"
    path.write_text(
        "import clusim\n\n@clusim.policy\nclass Slow:\n    def start(self, now_ps):\n"
        "        self.rate = self.line_rate // 50\n"
    )
    policy = ["--policy", f"sender={path}:Slow"]
    words = ["sendrecv_perf", "hgx-h20", "--nodes", "2", "-b", "1M", "-e", "1M", "-c", "0"]
    times_us = []
    for options in ([], policy):
        assert run(["nccl-tests", *words, *options, "--json", "--jobs", "1"]) == 0
        printed = json.loads(capsys.readouterr().out)
        times_us.append(printed["results"][0]["out_of_place"]["time"])
    assert times_us[1] > 2 * times_us[0]
    base = "run hgx-h20 --nodes 2 -c sendrecv --size 1MiB"
    assert run(["what-if", base, " ".join(policy), "--json", "--no-progress"]) == 0
    assert f"sender policy: {path}:Slow" in capsys.readouterr().out
