"""The least remedy: one or two changes that reach a target, simulated, settings before hardware."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import clusim
from clusim.base.errors import InputError
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.studies.improve import improve
from clusim_cli.main import cli

BASE = Request(Setup("a100x4-mesh"), "allreduce", 1 << 18)


def test_the_least_remedy_is_one_change_and_pairs_are_for_targets_that_none_reaches() -> None:
    result = result_of(BASE, RunOptions(confirm=True))
    result.diagnose()
    few = improve(BASE, result, 0.05)
    assert few.chosen is not None
    assert len(few.chosen.changes) == 1
    assert few.chosen.time_ps <= 0.95 * result.time_ps
    best = min(row.time_ps for row in few.tried) / result.time_ps
    more = improve(BASE, result, 1.01 - best)
    assert more.chosen is None or len(more.chosen.changes) == 2
    assert any(len(row.changes) == 2 for row in more.tried)
    assert [row.size_bytes for row in few.elsewhere] == [1 << 21, 1 << 15]
    none = improve(BASE, result, 0.99)
    assert none.chosen is None
    assert none.lines()[0].startswith("improve by 99%: no one or two of ")


def test_a_setting_that_suffices_comes_before_faster_hardware() -> None:
    """A ring of Simple for 64 KiB: LL is far faster, without other hardware."""
    env = (("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple"), ("NCCL_MAX_NCHANNELS", "1"))
    base = replace(BASE, setup=Setup("a100x4-mesh", env=env[2:]), size_bytes=1 << 22)
    result = result_of(base)
    found = improve(base, result, 0.02)
    assert found.chosen is not None
    assert found.chosen.changes[0].startswith("--")


def test_the_command_prints_the_changes_in_the_words_of_what_if() -> None:
    words = ["run", "a100x4-mesh", "--size", "64KiB", "--improve", "10%", "--no-progress"]
    data = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert data["improvement"]["target"] == pytest.approx(0.1)
    change = data["improvement"]["chosen"]["changes"][0]
    base = " ".join(words[:4])
    asked = ["what-if", base, change, "--no-progress", "--json"]
    row = json.loads(CliRunner().invoke(cli, asked).stdout)["rows"][0]
    assert row["planned"]["time_ps"] == data["improvement"]["chosen"]["time_ps"]


@pytest.mark.parametrize("target", [0.0, 1.0, 2.0])
def test_a_target_out_of_range_is_refused(target: float) -> None:
    result = clusim.collective("a100x4-mesh", "allreduce", "8KiB")
    with pytest.raises(InputError, match="must be above 0% and below 100%"):
        improve(BASE, result, target)
    done = CliRunner().invoke(cli, ["run", "a100x4-mesh", "--improve", f"{target:.0%}"])
    assert done.exit_code == 2


def test_a_repaired_link_is_the_run_without_its_fault() -> None:
    fault = "rank 1 slow x3"
    base = f"run a100x4-mesh --size 32KiB --fault '{fault}'"
    asked = ["what-if", base, "rank 1 repaired", "--no-progress", "--json"]
    row = json.loads(CliRunner().invoke(cli, asked).stdout)["rows"][0]
    sound = clusim.collective("a100x4-mesh", "allreduce", "32KiB")
    assert row["planned"]["time_ps"] == sound.time_ps
    done = CliRunner().invoke(cli, ["what-if", base, "rank 2 repaired", "--no-progress"])
    assert isinstance(done.exception, InputError)
    assert "rank 2: without fault in the baseline; faults: 'rank 1 slow x3'" in str(done.exception)
