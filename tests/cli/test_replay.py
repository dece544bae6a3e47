"""``clusim replay`` as people use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Clusim

SAMPLE = Path(__file__).resolve().parents[2] / "traces" / "nccl-8xh100.log"
BURSTS = ("--granularity", "256KiB")
"""Fast where no time is asserted; the pages run the same log as it is."""


def test_the_shipped_log_is_replayed_and_compared(clusim: Clusim) -> None:
    done = clusim("replay", SAMPLE, "--as", "dgx-a100", "--calls", 4, *BURSTS)
    assert (done.code, done.err) == (0, "")
    for text in (
        "dgx-h100: concluded from",
        "24 rings and 24 trees of the log",
        "all_gather",
        "dgx-a100",
        "busiest wires",
    ):
        assert text in done.out
    assert max(map(len, done.out.splitlines())) < 200


def test_expected_and_found_errors_of_measured_calls(clusim: Clusim) -> None:
    sample = SAMPLE.parent / "nccl-tests-8xh100.txt"
    words = ("replay", sample, "dgx-h100", "--calls", 3)
    lines = clusim(*words).out.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.endswith(": 2 calls"))
    assert any(line.startswith("  expected error: ") for line in lines[at - 2 : at + 1])
    assert lines[at + 1].startswith("    this file: median ")
    known = json.loads(clusim(*words, "--json").out)
    errors = [100 * abs(call["error"]) for call in known["calls"]]
    first = known["expected_errors"][0]
    assert (first["calls"], first["found"]["n"]) == (2, 2)
    assert first["found"]["most_abs_pct"] == pytest.approx(max(errors[:2]), abs=1e-3)
    assert [item["calls"] for item in known["expected_errors"]] == [2, 1]


def test_json_has_every_number(clusim: Clusim) -> None:
    done = clusim("replay", SAMPLE, "--topology", "dgx-a100", "--json", "--calls", 3, *BURSTS)
    found = json.loads(done.out)
    assert found["fabric"] == "dgx-a100"
    assert [c["operation"] for c in found["calls"]] == ["all_gather", "reduce_scatter", "allreduce"]
    assert found["total_us"] == pytest.approx(
        sum(c["time_us"] * c["count"] for c in found["calls"])
    )


def test_the_machine_is_an_argument_or_an_option(clusim: Clusim, tmp_path: Path) -> None:
    machine = tmp_path / "mine.yaml"
    machine.write_text((SAMPLE.parents[1] / "topologies" / "dgx-a100.yaml").read_text())
    words = ("--calls", 1, "--json", *BURSTS)
    for name in ("dgx-a100", machine):
        by_option = clusim("replay", SAMPLE, "--topology", name, *words)
        by_argument = clusim("replay", SAMPLE, name, *words)
        assert (by_argument.code, by_argument.out) == (0, by_option.out)
    both = clusim("replay", SAMPLE, "dgx-a100", "--topology", "dgx-a100")
    assert (both.code, both.err.count("\n")) == (2, 1)
    assert "--topology and TOPOLOGY are alternatives" in both.err
    misspelt = clusim("replay", SAMPLE, "dgx-a10")
    assert misspelt.code == 2
    assert "did you mean 'dgx-a100'" in misspelt.err
    missing = clusim("replay", SAMPLE, "second.log")
    assert missing.code == 2
    assert "second.log: no such file" in missing.err


def test_what_breaks_is_said(clusim: Clusim) -> None:
    fault = ("--fault", "link gpu3:nvl5 down", *BURSTS)
    text = clusim("replay", SAMPLE, "--calls", 1, *fault)
    assert "  fault: link gpu3:nvl5 down: " in text.out
    (line,) = json.loads(clusim("replay", SAMPLE, "--calls", 1, *fault, "--json").out)["faults"]
    assert line in text.out


def test_a_trace_is_written(clusim: Clusim, tmp_path: Path) -> None:
    path = tmp_path / "replay.h5"
    done = clusim("replay", SAMPLE, "--topology", "dgx-h100", "--calls", 2, "--trace-out", path)
    assert done.code == 0
    assert clusim("info", path).code == 0


def test_the_machine_as_nccl_wrote_it(clusim: Clusim) -> None:
    xml = SAMPLE.parents[1] / "tests" / "formats" / "topologies" / "samples" / "dump.xml"
    done = clusim("replay", SAMPLE, "--xml", xml, "--calls", 1, "--json")
    found = json.loads(done.out)
    assert found["fabric"] == f"{xml}:nodes=4"
    assert any("fill 4 nodes" in note for note in found["notes"])
    both = clusim("replay", SAMPLE, "--xml", xml, "--topology", "dgx-a100")
    assert (both.code, both.err.count("\n")) == (2, 1)


def test_a_log_without_calls_runs_what_is_asked_for(clusim: Clusim, tmp_path: Path) -> None:
    path = tmp_path / "init.log"
    lines = SAMPLE.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "opCount" not in line and "Algo" not in line))
    refused = clusim("replay", path)
    assert refused.code == 2
    assert "--call allreduce:64MiB" in refused.err
    done = clusim("replay", path, "--call", "allreduce:256KiB", "--json")
    assert [c["bytes"] for c in json.loads(done.out)["calls"]] == [256 << 10]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["/nowhere.log"], "/nowhere.log"),
        ([SAMPLE, "--topology", "dgx-h1000"], "did you mean"),
        ([SAMPLE, "--kind", "tarot"], "cannot be replayed; it is one of"),
        ([SAMPLE, "--gap", "soon"], "soon"),
        ([SAMPLE, "--env", "NCCL_ALGO=Rings"], "'Rings' is no algorithm"),
        ([SAMPLE, "--call", "allreduce"], "OPERATION:SIZE"),
        ([SAMPLE, "--nccl-version", "3.0"], "not known"),
    ],
)
def test_bad_input_is_one_line(clusim: Clusim, arguments: list[object], text: str) -> None:
    done = clusim("replay", *arguments)
    assert done.code == 2
    assert text in done.err
    assert len(done.err.splitlines()) == 1
    assert not done.out


@pytest.mark.parametrize("data", [b"", b"\x00\xff" * 500, b"hello\n" * 50, b"\x1f\x8b\x08\x00cut"])
def test_what_is_no_log_is_one_line(clusim: Clusim, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "no.log"
    path.write_bytes(data)
    done = clusim("replay", path)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert "no.log" in done.err
