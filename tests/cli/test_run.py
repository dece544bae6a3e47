from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusim.results.trace.reader import open_records, read_result

Clusim = Callable[..., Any]
RING = ("run", "dgx-a100", "--algorithm", "ring")
SMALL = (*RING, "--size", "64KiB", "--channels", 2)
GOLDEN = Path(__file__).parent / "run_dgx_a100_64KiB.txt"


def test_json_has_the_promised_keys_and_types(clusim: Clusim) -> None:
    done = clusim(*SMALL, "--json")
    assert done.code == 0
    assert done.err == ""
    data = json.loads(done.out)
    kinds = {
        "time_ps": int,
        "algbw_GBps": float,
        "busbw_GBps": float,
        "packets": int,
        "packet_hops": int,
        "wall_s": float,
        "fingerprint": str,
    }
    assert {name: type(data[name]) for name in kinds} == kinds
    assert data["verified"] is None
    assert data["packet_hops"] == 2 * data["packets"] > 0
    assert data["busbw_GBps"] == pytest.approx(data["algbw_GBps"] * 2 * 7 / 8, abs=1e-5)
    assert data["algbw_GBps"] == pytest.approx(65536 / data["time_ps"] * 1e3, abs=1e-5)
    assert len(data["fingerprint"]) == 16


def test_the_same_command_twice_gives_the_same_fingerprint(clusim: Clusim) -> None:
    first, second = (json.loads(clusim(*SMALL, "--json").out) for _ in range(2))
    assert first["fingerprint"] == second["fingerprint"]
    assert first["time_ps"] == second["time_ps"]


def test_both_engines_give_the_same_fingerprint(clusim: Clusim) -> None:
    tiny = (*RING, "--size", "8KiB", "--channels", 1, "--json")
    compiled, slow = (json.loads(clusim(*tiny, "--engine", e).out) for e in ("c", "reference"))
    assert compiled["fingerprint"] == slow["fingerprint"]


@pytest.mark.proof
def test_text_output_is_what_it_was(clusim: Clusim) -> None:
    """The numbers that depend on the machine are masked; everything else is reviewed as text."""
    done = clusim(*SMALL, "--granularity", "packet", "--verify")
    assert done.code == 0
    masked = re.sub(r"(wall time +).*", r"\1<depends on the machine>", done.out)
    if os.environ.get("CLUSIM_UPDATE_GOLDEN"):
        GOLDEN.write_text(masked, encoding="utf-8")
    assert masked == GOLDEN.read_text(encoding="utf-8")


def test_verify_says_that_the_data_are_correct(clusim: Clusim) -> None:
    assert json.loads(clusim(*SMALL, "--verify", "--json").out)["verified"] is True


def test_wrong_data_are_exit_code_1(clusim: Clusim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "clusim.simulation.payload_check.Checker.outcome",
        lambda _: (False, "allreduce: 3 elements wrong"),
    )
    done = clusim(*SMALL, "--verify", "--json")
    assert done.code == 1
    assert json.loads(done.out)["verified"] is False
    assert done.err == "clusim: data: wrong: allreduce: 3 elements wrong\n"


def test_ranks_root_and_dtype_are_used(clusim: Clusim) -> None:
    done = clusim("run", "dgx-h100", "--collective", "broadcast", "--size", "32K", "--ranks", "1,3-5",
                  "--root", 3, "--dtype", "bfloat16", "--verify", "--json")  # fmt: skip
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert (data["ranks"], data["dtype"], data["size_bytes"]) == (4, "bfloat16", 32768)
    assert data["verified"] is True


def test_a_barrier_has_a_time_and_no_bandwidth(clusim: Clusim) -> None:
    data = json.loads(clusim("run", "dgx-a100", "--collective", "barrier", "--json").out)
    assert data["time_ps"] > 0
    assert data["busbw_GBps"] == 0
    assert "busbw" not in clusim("run", "dgx-a100", "--collective", "barrier").out


def test_a_trace_holds_the_command_and_the_primitives(clusim: Clusim, tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    done = clusim(*SMALL, "--trace-out", path, "--trace-primitives", "--json")
    assert done.code == 0
    result = read_result(path)
    assert f"{result.fingerprint:016x}" == json.loads(done.out)["fingerprint"]
    assert result.provenance.fabric_text.startswith("# DGX A100")
    assert "allreduce" in result.provenance.schedule_text
    assert (result.tasks.end_ps > 0).all()
    with open_records(path) as records:
        time_ps = records.block(0)["time"]
    assert len(time_ps) == records.count > 0
    assert (time_ps[1:] >= time_ps[:-1]).all()
    assert time_ps[-1] <= result.time_ps


def test_info_prints_a_trace(clusim: Clusim, tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    ran = clusim(*SMALL, "--trace-out", path)
    shown = clusim("info", path)
    assert shown.code == 0
    assert shown.out.startswith(ran.out.split("wall time")[0])
    for column in ("/wires/busy", "/tasks/end", "/hbm/bytes", "/meta/fabric_text"):
        assert column in shown.out
    data = json.loads(clusim("info", path, "--json").out)
    assert data["complete"] is True
    assert data["columns"]["/wires/busy"]["units"] == "ps"


def test_granularity_is_said(clusim: Clusim) -> None:
    assert "exact packets" in clusim(*SMALL, "--granularity", "packet").out
    coarse = json.loads(clusim(*SMALL, "--granularity", "4KiB", "--json").out)
    exact = json.loads(clusim(*SMALL, "--granularity", "packet", "--json").out)
    assert coarse["packets"] == exact["packets"]
    assert coarse["grants"] < exact["grants"]


def test_no_progress_bar_without_a_terminal(
    clusim: Clusim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusim_cli.progress.QUIET_S", 0.0)
    assert clusim(*SMALL).err == ""


@pytest.mark.proof
def test_a_progress_bar_on_a_terminal(clusim: Clusim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusim_cli.progress.QUIET_S", 0.0)
    monkeypatch.setattr("clusim.simulation.session.SLICE_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "simulated" in clusim(*SMALL).err
    assert clusim(*SMALL, "--no-progress").err == ""


def test_ctrl_c_is_exit_code_130_and_keeps_the_trace(
    clusim: Clusim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clusim.simulation.session.SLICE_S", 0.0)
    monkeypatch.setattr("clusim_cli.progress.Shown.progress", stop)
    done = clusim(*SMALL, "--trace-out", tmp_path / "run.h5")
    assert done.code == 130
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert "run.h5.partial" in done.err
    shown = clusim("info", tmp_path / "run.h5.partial")
    assert shown.code == 0
    assert "unfinished" in shown.out
    for word in ("busbw", "fingerprint", "wall time"):
        assert word not in shown.out
    data = json.loads(clusim("info", tmp_path / "run.h5.partial", "--json").out)
    assert data["complete"] is False
    assert [data[key] for key in ("algbw_GBps", "busbw_GBps", "wall_s", "fingerprint")] == [
        None
    ] * 4


def test_a_bug_of_ours_is_exit_code_70_with_a_traceback(
    clusim: Clusim, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("clusim.simulation.api.run_job", broken)
    done = clusim(*SMALL)
    assert done.code == 70
    assert "ZeroDivisionError: oops" in done.err
    assert done.err.splitlines()[-1].startswith("clusim: this is a bug in clusim")
