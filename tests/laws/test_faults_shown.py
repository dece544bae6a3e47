"""Law: what broke stands beside every result: what is left of rates, and how the plan differs from the whole one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from clusim import topology
from clusim.engine.image import empty
from clusim.lowering import describe_faults, parse_faults
from clusim.report.html import page
from clusim.report.page_data import Feed
from clusim.results.result import mean_rates_Bps
from clusim.topology.arrays import arrays_of
from clusim_cli.main import cli

RUN = ("run", "dgx-a100", "--algorithm", "ring", "--size", "1MiB", "--no-progress")
HALF = "lanes gpu3-nvswitch0 1/2"


def text(*words: str) -> str:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def data(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text(*words, "--json"))
    return found


def test_a_narrow_wire_is_listed_with_the_rate_that_is_left() -> None:
    lines = text(*RUN, "--fault", HALF).splitlines()
    effect = "4 wires at 12.50 of 25.00 GB/s from the start"
    assert f"  fault: {HALF}: {effect}" in lines
    (row,) = [line for line in lines if line.startswith("  gpu3->nvswitch0.0")]
    assert row.split()[1:3] == ["25.00", "12.50"]
    (row,) = [line for line in lines if line.startswith("  nvlink gpu->switch")]
    assert row.split()[-2:] == ["2400.00", "2375.00"], "two of 96 wires have half their rate"


def test_the_same_is_in_the_json_and_in_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "t.h5"
    words = (*RUN, "--fault", HALF, "--trace-out", str(trace))
    found, shown = data(*words), text("info", str(trace))
    assert found["faults"] == [f"{HALF}: 4 wires at 12.50 of 25.00 GB/s from the start"]
    assert {wire["effective_GBps"] for wire in found["broken_wires"]} == {12.5}
    assert found["limit"]["rate_GBps"] == 2 * found["limit"]["effective_GBps"] == 25
    assert [row["effective_GBps"] for row in found["classes"]] == [2375, 2375]
    assert f"  fault: {found['faults'][0]}" in shown.splitlines()
    (verdict,) = [line for line in shown.splitlines() if line.startswith("  bottleneck: ")]
    assert verdict.endswith(found["verdict"]["text"][0])
    assert data("info", str(trace))["faults"] == found["faults"]


def test_a_sound_machine_has_no_line_and_no_column_more() -> None:
    shown, found = text(*RUN), data(*RUN)
    assert "fault:" not in shown
    assert "effective" not in shown
    assert found["faults"] == found["broken_wires"] == []


@pytest.mark.parametrize("algorithm", ["nccl", "ring"])
def test_a_plan_that_a_dead_plane_changes_says_how(algorithm: str) -> None:
    words = (*RUN, "--algorithm", algorithm)
    before, after = data(*words), data(*words, "--fault", "plane nvswitch2 down")
    (note,) = after["notes"]
    head = "planned without the links that are down at time 0: "
    changed = [key for key in ("algorithm", "protocol", "channels") if before[key] != after[key]]
    if changed:
        said = ", ".join(f"{key} {after[key]} instead of {before[key]}" for key in changed)
        assert note == head + said
    else:
        assert note.endswith("as without faults")
    assert bool(changed) == (algorithm == "nccl"), "NCCL takes 20 channels instead of 24"


def test_a_later_fault_changes_no_plan_and_counts_from_its_time() -> None:
    whole = data(*RUN, "--algorithm", "nccl")
    found = data(*RUN, "--algorithm", "nccl", "--fault", "lanes gpu3-nvswitch0 1/2 at 10us")
    assert found["notes"] == []
    assert [found[key] for key in ("algorithm", "protocol", "channels")] == [
        whole[key] for key in ("algorithm", "protocol", "channels")
    ]
    assert found["faults"][0].endswith("4 wires at 12.50 of 25.00 GB/s from 10 us on")
    time_us = found["time_ps"] / 1e6
    mean = (10 * 25 + (time_us - 10) * 12.5) / time_us
    assert found["broken_wires"][0]["effective_GBps"] == pytest.approx(mean)


def test_faults_of_the_topology_file_are_said_too(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(
        "nodes: {gpu0..1: {kind: gpu, chip: h100-sxm5}}\n"
        "links: [{from: gpu0, to: gpu1, type: nvlink4, count: 2}]\n"
        "faults: ['rank 1 slow x2', 'errors gpu0-gpu1.0 1e-9']\n",
        encoding="utf-8",
    )
    lines = text("run", str(path), "--size", "64KiB", "--no-progress").splitlines()
    assert "  fault: rank 1 slow x2: CTAs and kernels of rank 1 take x2 from the start" in lines
    assert "  fault: errors gpu0-gpu1.0 1e-9: 2 wires with a bit error rate of 1e-09" in lines


def test_a_fault_that_a_worse_one_hides_is_still_named() -> None:
    net = topology.load("dgx-a100")
    texts = ["lanes gpu3->nvswitch0.0 1/2", "link gpu3->nvswitch0.0 down"]
    lines = describe_faults(arrays_of(net), parse_faults(net, texts), texts)
    assert lines[0].endswith("a worse fault of the same links or rank counts instead")
    assert lines[1].endswith("1 wire at 0.00 of 25.00 GB/s from the start")


def test_mean_rates_weigh_every_span_by_its_length() -> None:
    faults = empty("faults", 3)
    faults["time_ps"], faults["index"] = (100, 300, 900), 1
    faults["num"], faults["den"] = (
        (0, 1, 0),
        (1, 20, 1),
    )  # down, half of 0.1 B/ps, down after the end
    rates = mean_rates_Bps(np.array([1e11, 1e11]), faults, 500)
    assert rates.tolist() == [1e11, pytest.approx((100 * 1e11 + 200 * 0 + 200 * 5e10) / 500)]


def test_a_page_shows_what_a_fault_left_of_a_wire(tmp_path: Path) -> None:
    trace = tmp_path / "run.h5"
    text(*RUN, "--fault", HALF, "--trace-out", str(trace))
    feed = Feed.open(trace)
    assert page(feed).count('<td class="n">12.5 GB/s of 25 GB/s') == 4
