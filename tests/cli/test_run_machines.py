"""``clusim run`` on several machines and with faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusim.results.trace.reader import open_records, read_result

Clusim = Callable[..., Any]
P5 = ("run", "aws-p5", "--nodes", 2, "--algorithm", "ring", "--size", "4MiB",
      "--granularity", "4KiB")  # fmt: skip


def test_json_has_a_table_per_tier_and_class(clusim: Clusim) -> None:
    done = clusim(*P5, "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert (data["ranks"], data["machines"]) == (16, 2)
    assert data["busbw_GBps"] > 0
    tiers = {row["tier"]: row for row in data["tiers"]}
    assert set(tiers) == {"gpu-switch", "gpu-pcie", "pcie-nic", "nic-leaf"}
    for row in tiers.values():
        assert 0 < row["mean_busy"] <= row["max_busy"] <= 1
        assert row["wire_bytes"] > row["payload_bytes"] > 0
        assert row["packets"] > 0
        assert set(row) >= {"no_credit", "pauses", "marks", "replays", "rate_GBps", "wires"}
    assert tiers["nic-leaf"]["wires"] == 2 * 64
    assert tiers["nic-leaf"]["rate_GBps"] == pytest.approx(128 * 12.5)
    # what crosses the network crosses the PCIe tree below it, cut into smaller packets
    assert tiers["pcie-nic"]["payload_bytes"] == tiers["nic-leaf"]["payload_bytes"]
    assert tiers["pcie-nic"]["packets"] >= 31 * tiers["nic-leaf"]["packets"]
    classes = {row["wire_class"]: row for row in data["classes"]}
    assert classes["efa nic->leaf"]["payload_bytes"] == classes["efa leaf->nic"]["payload_bytes"]
    whole = sum(row["wire_bytes"] for row in classes.values())
    assert whole == sum(row["wire_bytes"] for row in tiers.values())
    assert data["limit"]["wire_class"] in classes
    assert data["limit"]["tier_wires"] * 2 == classes[data["limit"]["wire_class"]]["wires"]


def test_text_names_the_tiers(clusim: Clusim) -> None:
    done = clusim(*P5)
    assert done.code == 0
    assert "allreduce 4 MiB float32 over 16 ranks of aws-p5:nodes=2 (ring, simple" in done.out
    for word in ("  tier ", "nic-leaf", "pcie-nic", "efa nic->leaf"):
        assert word in done.out
    assert max(map(len, done.out.splitlines())) < 125
    single = clusim("run", "dgx-a100", "--size", "64KiB")
    assert "  tier " not in single.out


def test_real_data_are_right_through_nics_and_leaves(clusim: Clusim) -> None:
    for algorithm in ("ring", "tree", "hierarchical"):
        done = clusim("run", "aws-p5", "--nodes", 2, "--algorithm", algorithm, "--size", "300KB",
                      "--channels", 4, "--verify", "--json")  # fmt: skip
        assert done.code == 0, done.err
        assert json.loads(done.out)["verified"] is True


def test_sharp_moves_half_of_what_a_ring_moves_over_the_nics(clusim: Clusim) -> None:
    base = ("run", "superpod-h100:nodes=4", "--size", "8MiB", "--granularity", "4KiB", "--json")
    found = {}
    for algorithm in ("ring", "sharp"):
        data = json.loads(clusim(*base, "--algorithm", algorithm).out)
        (nics,) = (row for row in data["classes"] if row["wire_class"] == "infiniband nic->leaf")
        found[algorithm] = data["algbw_GBps"], nics["payload_bytes"]
    assert found["ring"][1] / found["sharp"][1] == pytest.approx(2 * 31 / 32, rel=0.02)
    assert found["sharp"][0] > found["ring"][0]


def test_a_trace_of_several_machines_has_tasks_of_the_schedule_and_slices_of_proxies(
    clusim: Clusim, tmp_path: Path
) -> None:
    path = tmp_path / "run.h5"
    done = clusim("run", "dgx-h100", "--nodes", 2, "--algorithm", "ring", "--size", "256KiB",
                  "--channels", 8, "--trace-out", path, "--trace-primitives", "--json")  # fmt: skip
    assert done.code == 0, done.err
    result = read_result(path)
    assert f"{result.fingerprint:016x}" == json.loads(done.out)["fingerprint"]
    assert len(result.tasks.names) == 16
    assert (result.tasks.end_ps > 0).all()
    with open_records(path) as records:
        programs = np.concatenate([block["instance"] for block in records.blocks()])
    assert set(programs[programs < 16 * 8].tolist()) == set(range(16 * 8))
    assert set(programs[programs >= 16 * 8].tolist()) == set(range(16 * 8, 16 * 8 + 2 * 8))


def test_faults_slow_a_run_and_change_its_plan(clusim: Clusim) -> None:
    base = ("run", "dgx-a100", "--algorithm", "ring", "--size", "1MiB", "--channels", 4, "--json")
    fine = json.loads(clusim(*base).out)
    slow = json.loads(clusim(*base, "--fault", "rank 3 slow x2").out)
    less = json.loads(clusim(*base, "--fault", "plane nvswitch2 down").out)
    both = json.loads(
        clusim(*base, "--fault", "rank 3 slow x2", "--fault", "plane nvswitch2 down").out
    )
    assert fine["time_ps"] < less["time_ps"] < slow["time_ps"] <= both["time_ps"]


def test_a_stalled_run_is_one_line_and_exit_code_1(clusim: Clusim) -> None:
    done = clusim(
        "run",
        "dgx-a100",
        "--algorithm",
        "ring",
        "--size",
        "4MiB",
        "--fault",
        "link gpu3:nvl5 down at 20us",
    )
    assert (done.code, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1
    assert "is down since 20 us" in done.err
    assert "gpu3" in done.err


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("link gpu33:nvl5 down", "no node 'gpu33'; did you mean 'gpu3'?"),
        ("gremlins", "unknown kind 'gremlins'"),
        ("node gpu3 down", "rank 3 (gpu3) is down from the start"),
    ],
)
def test_bad_faults_are_one_line_and_exit_code_2(clusim: Clusim, fault: str, message: str) -> None:
    done = clusim("run", "dgx-a100", "--size", "64KiB", "--fault", fault)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert message in done.err


def test_sharp_on_one_machine_or_ethernet_says_what_to_use(clusim: Clusim) -> None:
    done = clusim("run", "dgx-h100", "--algorithm", "sharp")
    assert done.code == 2
    assert "use ring or nvls" in done.err
    done = clusim("run", "aws-p5", "--nodes", 2, "--algorithm", "sharp")
    assert done.code == 2
    assert "InfiniBand" in done.err


def test_domains_are_nodes_with_some_of_their_gpus(clusim: Clusim) -> None:
    """In `run` as ranks of nodes, in `nccl-tests` as processes of nodes; between the racks is only the network."""
    run = ("run", "hgx-h100-ndr", "--size", "1MiB", "--json")
    told = json.loads(clusim(*run, "--domains", "2x2").out)
    listed = json.loads(clusim(*run, "--nodes", 2, "--ranks", "0-1,8-9").out)
    assert told["fingerprint"] == listed["fingerprint"]
    one = json.loads(clusim(*run, "--domains", "1x4").out)
    assert told["time_ps"] > one["time_ps"]
    perf = ("nccl-tests", "all_reduce_perf", "hgx-h100-ndr", "-b", "1M", "-e", "1M")
    tables = [
        clusim(*perf, *words).out.splitlines()
        for words in (("--domains", "2x2"), ("--nodes", 2, "--procs-per-node", 2))
    ]
    assert len(tables[0]) > 10
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "dgx-h100", "--domains", "2"), "not DOMAINSxGPUS; write for example 2x4"),
        (("run", "dgx-h100", "--domains", "0x4"), "numbers of domains and GPUs are 1 to 65,536"),
        (("run", "dgx-h100", "--domains", "2x4", "--nodes", 2), "leave out --nodes"),
        (("run", "dgx-h100", "--domains", "2x4", "--ranks", "0-3"), "use one"),
        (("run", "dgx-h100", "--domains", "2x9"), "9 GPUs per node: a node of"),
        (("nccl-tests", "all_reduce_perf", "dgx-h100", "--domains", "2x3", "-g", 2), "a multiple"),
        (
            ("nccl-tests", "all_reduce_perf", "dgx-h100", "--domains", "2x4", "--nodes", 2),
            "leave out --nodes and --procs-per-node",
        ),
    ],
)
def test_wrong_domains_are_one_line(clusim: Clusim, words: tuple[Any, ...], message: str) -> None:
    done = clusim(*words)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1
