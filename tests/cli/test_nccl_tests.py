"""``clusim nccl-tests``, ``validate`` and ``crossover`` as a user meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.formats.logs import read_logs
from clusim.validation.collectives.causes import CauseSearch

Clusim = Callable[..., Any]
HEADER = "system,n_nodes,n_gpus,collective,algorithm,protocol,size_bytes,time_us"


def test_a_sweep_is_read_by_the_reader_of_tables(clusim: Clusim, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    done = clusim(
        *("nccl-tests", "all_reduce_perf", "-b", 8, "-e", "32K", "-f", 8, "-g", 4, "-J", report),
        *("dgx-h100", "--env", "NCCL_ALGO=Ring", "--jobs", 1),
    )
    assert done.code == 0, done.err
    path = tmp_path / "out.txt"
    path.write_text(done.out, encoding="utf-8")
    (run,) = read_logs([str(path)]).runs
    assert run.test == "all_reduce_perf"
    assert run.n_ranks == 4
    assert run.sizes == [8, 64, 512, 4096, 32768]
    assert run.ops == ["sum"] * 5
    assert set(run.column("error")) == {0.0}
    assert run.wrong == 0
    data = json.loads(report.read_text(encoding="utf-8"))
    assert [row["size"] for row in data["results"]] == run.sizes
    assert data["results"][0]["out_of_place"]["nwrong"] == 0.0
    assert data["env"] == ["NCCL_ALGO=Ring"]


def test_rooted_and_all_types(clusim: Clusim) -> None:
    done = clusim(
        *("nccl-tests", "reduce_perf", "-b", 1024, "-e", 1024, "-d", "all", "-o", "all", "-r", 1),
        *("-g", 2, "gh200x4-mesh", "--jobs", 1, "-c", 0),
    )
    assert done.code == 0, done.err
    rows = [line.split() for line in done.out.splitlines() if line and line[0] != "#"]
    assert len(rows) == 12 * 6
    assert {row[2] for row in rows} >= {"half", "bfloat16", "f8e4m3", "double"}
    assert {row[3] for row in rows} == {"sum", "prod", "max", "min", "avg", "mulsum"}
    assert {row[4] for row in rows} == {"1"}
    assert {row[8] for row in rows} == {"N/A"}


def test_json_alone_on_stdout(clusim: Clusim) -> None:
    done = clusim(
        *("nccl-tests", "sendrecv_perf", "-b", "1K", "-e", "1K", "gh200x4-mesh"),
        *("--json", "--jobs", 1, "-C", 1),
    )
    data = json.loads(done.out)
    assert len(data["config"]["devices"]) == 4
    assert data["results"][0]["out_of_place"]["cpu_time"] > 0
    assert data["results"][0]["in_place"]["nwrong"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_redcue_perf", "-g", 8), "did you mean 'all_reduce_perf'"),
        (("all_reduce_perf", "-g", 16), "16 GPUs per machine: dgx-h100 has 8"),
        (("all_reduce_perf", "-b", "x"), "-b 'x': not a size"),
        (("all_reduce_perf", "--procs-per-node", 1), "one GPU; a collective needs at least two"),
        (("broadcast_perf", "-g", 2, "-r", 2), "-r 2: not one of the ranks 0 to 1"),
        (("reduce_perf", "-g", 2, "-J", "/nowhere/x.json"), "no directory /nowhere"),
        (("all_reduce_perf", "-g", 2, "--nccl-version", "1.0"), "not known; give 2.4"),
        (("all_reduce_perf", "-q", 2), "-q"),
    ],
)
def test_bad_input_is_one_line(clusim: Clusim, arguments: tuple[Any, ...], message: str) -> None:
    done = clusim("nccl-tests", *arguments, "dgx-h100")
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_validate_a_table_of_ones_own(clusim: Clusim, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    rows = [
        "gh200x4-mesh,1,2,all_gather,auto,auto,8,5.6",
        "gh200x4-mesh,1,2,all_gather,auto,auto,65536,6.6",
        "gh200x4-mesh,1,2,all_gather,nvls,auto,8,5",
        "gh200x4-mesh,1,2,all_gather,auto,auto,0,0.1",
    ]
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    picture = tmp_path / "out.png"
    done = clusim("validate", path, "--jobs", 1, "--plot", picture)
    assert done.code == 0, done.err
    assert "gh200x4-mesh 1x2 all_gather" in done.out
    assert done.out.startswith("  gh200x4-mesh 1x2 all_gather")
    assert done.out.count("not predicted: ") == 1
    assert "1 rows cannot be used: size 0" in done.out
    assert "1 rows failed:" in done.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    data = json.loads(clusim("validate", path, "--jobs", 1, "--json").out)
    assert set(data["overall"]) == {"small", "mid", "large"}
    assert {"n", "median_abs_pct", "mean_abs_pct", "bias_pct"} < set(data["overall"]["small"])
    assert data["overall"]["small"]["n"] == 2


def test_validate_counts_what_nobody_knows(clusim: Clusim, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    known = "gh200x4-mesh,1,2,all_gather,auto,auto,8,5.6"
    path.write_text(f"{HEADER}\nnowhere,1,2,all_gather,auto,auto,8,5.6\n{known}\n", "utf-8")
    done = clusim("validate", path, "--jobs", 1)
    assert (done.code, done.err) == (0, "")
    assert "1 rows of an unknown word: system 'nowhere': not a preset" in done.out
    assert clusim("validate", path, "--jobs", 1, "--strict").code == 2


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("nowhere,1,2,all_gather,auto,auto,8,5.6", "1 rows of an unknown word: system 'nowhere'"),
        ("gh200x4-mesh,1,2,all_gather,nvls,auto,8,5", "1 rows failed: "),
        ("gh200x4-mesh,1,2,all_gather,auto,auto,0,0.1", "1 rows cannot be used: size 0"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_validate_of_nothing_that_could_be_scored_is_an_error(
    clusim: Clusim, tmp_path: Path, row: str, reason: str, form: list[str]
) -> None:
    path, page = tmp_path / "m.csv", tmp_path / "page.md"
    path.write_text(f"{HEADER}\n{row}\n", "utf-8")
    done = clusim("validate", path, "--jobs", 1, "--markdown", page, *form)
    assert (done.code, done.err.count("\n")) == (2, 1)
    # Text has the row that was simulated.
    assert done.out.count("not predicted") == bool(done.out) == (not form and "failed" in reason)
    assert f"no row could be scored: {reason}" in done.err
    assert not page.exists()


def test_validate_writes_page_figures_and_classes(clusim: Clusim, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(
        f"{HEADER}\ngh200x4-mesh,1,2,all_gather,auto,auto,8,5.6\n"
        "a100x4-mesh,1,2,all_gather,auto,auto,8,5.6\nnowhere,1,2,all_gather,auto,auto,8,5.6\n",
        encoding="utf-8",
    )
    page, figures, data = tmp_path / "page.md", tmp_path / "curves", tmp_path / "a.json"
    targets = ("--markdown", page, "--plot", figures, "--errors", data)
    done = clusim("validate", path, "--jobs", 1, *targets)
    assert done.code == 0, done.err
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Accuracy")
    assert "(curves/gh200x4-mesh.png)" in text
    assert "\nclusim validate m.csv --markdown " in text
    assert "system 'nowhere': not a preset or topology file" in text
    assert "(m.csv:4)" in text
    assert sorted(item.name for item in figures.iterdir()) == [
        "a100x4-mesh.png",
        "gh200x4-mesh.png",
    ]
    assert json.loads(data.read_text(encoding="utf-8"))["rows"] == 2
    again = clusim("validate", path, "--jobs", 1, *targets)
    assert (again.code, page.read_text(encoding="utf-8")) == (0, text)


def test_validate_explains_a_row(clusim: Clusim, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    rows = [f"gh200x4-mesh,1,4,{name},auto,auto,8,5.6" for name in ("all_gather", "broadcast")]
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    for row in (1, 2, f"{path}:3", ":2"):
        data = json.loads(clusim("validate", path, "--row", row, "--json").out)
        whole = sum(term["us"] for term in data["terms"] if term["counted"])
        assert whole == pytest.approx(data["predicted_us"], abs=1e-5)
        assert {"launch", "host", "cost"} <= {term["part"] for term in data["terms"]}
    text = clusim("validate", path, "--row", 1).out
    assert "latency: flight of packets, 3 steps" in text
    assert "held out of every calibration" in text
    done = clusim("validate", path, "--row", 3)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "row '3': choose 1 to 2, or FILE:LINE" in done.err


def test_commands_say_what_error_to_expect(clusim: Clusim, tmp_path: Path) -> None:
    small = ("dgx-h100", "--size", "64KiB")
    assert "\n              expected error: " in clusim("run", *small).out
    found = json.loads(clusim("run", *small, "--json").out)["expected_error"]
    assert found["median_abs_pct"] > 0
    assert found["n"] >= 8
    paper = clusim("run", *small, "--algorithm", "ring").out
    assert "expected error: not known (ring differs from NCCL" in paper
    sweep = ("nccl-tests", "all_reduce_perf", "dgx-h100", "-g", 8, "-b", "1K", "-e", "1K")
    assert "# clusim: expected error: " in clusim(*sweep, "--jobs", 1).out
    assert len(json.loads(clusim(*sweep, "--jobs", 1, "--json").out)["expected_errors"]) == 1


@pytest.mark.proof
def test_rows_are_explained_by_the_verdict_of_their_kernel(clusim: Clusim) -> None:
    sweep = ("nccl-tests", "all_reduce_perf", "dgx-h100", "-b", "8K", "-e", "8K", "--jobs", 1)
    shown = clusim(*sweep, "--explain").out
    (verdict,) = json.loads(clusim(*sweep, "--explain", "--json").out)["verdicts"]
    run = json.loads(clusim("run", "dgx-h100", "--size", "8KiB", "--json").out)["verdict"]
    said = [text for text in run["text"] if not text.startswith("time: ")]
    assert said == [text for text in verdict["text"] if not text.startswith("time: ")]
    assert all(line.startswith("#") for line in shown.splitlines() if "verdict" in line)
    joined = " ".join(shown.replace("#", " ").split())
    for text in verdict["text"]:
        assert " ".join(text.split()) in joined
    assert "verdicts" not in json.loads(clusim(*sweep, "--json").out)


def test_crossover_table_and_csv(clusim: Clusim) -> None:
    common = ("crossover", "gh200x4-mesh", "--size", "8K", "--size", "64K", "--jobs", 1)
    done = clusim(*common)
    assert done.code == 0, done.err
    assert "oneshot" in done.out
    assert done.out.count("*") == 3
    assert "omitted: multimem: gh200x4-mesh lacks reduction units" in " ".join(done.out.split())
    lines = clusim(*common, "--csv").out.splitlines()
    assert lines[0].startswith("# colltype,minbytes,maxbytes,algorithm,protocol")
    assert all(len(line.split(",")) == 10 for line in lines)


def test_a_measured_table_is_compared_row_by_row(tmp_path: Path, clusim: Clusim) -> None:
    measured = tmp_path / "mine.txt"
    measured.write_text(
        "# nThread 1 nGpus 4 minBytes 65536 maxBytes 1048576 step: 16(factor) warmup iters: 5 iters: 20\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
        "       65536         32768      half     sum      -1    52.43    1.25    1.88       0\n"
        "     1048576        524288      half     sum      -1    69.91   15.00   22.50       0\n",
        encoding="utf-8",
    )
    command = "nccl-tests", "all_reduce_perf", "dgx-h100", "--against", measured, "--jobs", 1
    plot = tmp_path / "mine.png"
    done = clusim(*command, "--plot", plot, "--json")
    assert done.code == 0, done.err
    compared = json.loads(done.out)["against"]
    assert [row["size_bytes"] for row in compared["rows"]] == [64 << 10, 1 << 20]
    misfits = [item["misfit_pct"] for item in compared["hypotheses"]]
    assert misfits == sorted(misfits)
    assert misfits
    assert plot.read_bytes().startswith(b"\x89PNG")
    bad_picture = clusim(*command, "--plot", tmp_path / "picture.txt")
    assert (bad_picture.code, bad_picture.out) == (2, "")
    assert "pictures are .png, .svg or .pdf" in bad_picture.err
    refused = clusim(*command, "-g", 8)
    assert refused.code == 2
    assert "4 GPUs; dgx-h100 runs 8" in refused.err


def test_rows_are_printed_before_causes_are_simulated(
    tmp_path: Path, clusim: Clusim, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = tmp_path / "mine.txt"
    measured.write_text(
        "# nThread 1 nGpus 8 minBytes 65536 maxBytes 65536 step: 16(factor) warmup iters: 5 iters: 20\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
        "       65536         16384     float     sum      -1    92.43    0.70    1.23       0\n",
        encoding="utf-8",
    )

    def stop(*_: object) -> None:
        raise InputError("stopped before the causes")

    monkeypatch.setattr(CauseSearch, "causes", stop)
    done = clusim("nccl-tests", "all_reduce_perf", "dgx-h100", "--against", measured, "--jobs", 1)
    assert "stopped before the causes" in done.err
    assert "64 KiB        92.43 us" in done.out


def test_a_time_limit_needs_a_measurement(clusim: Clusim) -> None:
    done = clusim("nccl-tests", "all_reduce_perf", "dgx-h100", "--time-limit", "5s")
    assert done.code == 2
    assert "--time-limit limits the causes of --against" in done.err
