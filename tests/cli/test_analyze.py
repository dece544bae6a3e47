"""`clusim analyze` and `clusim diff`: every form of every question, broken and unfinished traces."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

QUESTIONS = ["congestion", "overlap", "blame", "critical-path", "pipeline", "collectives", "memory"]

Clusim = Callable[..., Any]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import clusim

    path = tmp_path_factory.mktemp("cli") / "run.h5"
    fabric = clusim.load("dgx-a100")
    schedule = clusim.collectives.build(fabric, "allreduce", "ring", 1 << 18, channels=2)
    clusim.simulate(fabric, schedule, trace_out=path)
    return path


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_has_three_forms(clusim: Clusim, trace: Path, question: str) -> None:
    text = clusim("analyze", question, trace)
    assert (text.code, text.err) == (0, "")
    assert len(text.out.splitlines()) > 3
    found = json.loads(clusim("analyze", question, trace, "--json", "--top", "0").out)
    lines = list(csv.reader(io.StringIO(clusim("analyze", question, trace, "--csv").out)))
    assert len(found["rows"]) == len(lines) - 1
    assert list(found["rows"][0]) == lines[0]
    assert (
        len(json.loads(clusim("analyze", question, trace, "--json", "--top", "1").out)["rows"]) == 1
    )


def test_an_estimate_can_be_confirmed(clusim: Clusim, trace: Path) -> None:
    done = clusim(
        "analyze", "critical-path", trace, "--what-if", "nvlink", "x2", "--confirm", "--json"
    )
    facts = json.loads(done.out)
    assert facts["simulated_ps"] < facts["time_ps"]
    assert abs(facts["estimate_ps"] / facts["simulated_ps"] - 1) < 0.2


def test_histories_of_wires_can_be_listed(clusim: Clusim, trace: Path) -> None:
    out = clusim("analyze", "congestion", trace, "--over-time", "--csv").out
    assert out.splitlines()[0].startswith("level,name,start_ps,end_ps,busy")


def test_runs_are_compared_as_traces_or_as_words(clusim: Clusim, trace: Path) -> None:
    done = clusim("diff", trace, "dgx-h100 --algorithm ring --size 256KiB --channels 2", "--json")
    assert done.code == 0, done.err
    assert any("dgx-a100" in note for note in json.loads(done.out)["notes"])
    assert "the same run" in clusim("diff", trace, trace).out


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", "blame", "missing.h5"],
        ["analyze", "blame", "text.h5"],
        ["analyze", "congestion", "RUN", "--json", "--csv"],
        ["analyze", "critical-path", "RUN", "--confirm"],
        ["analyze", "critical-path", "RUN", "--what-if", "warp", "x2"],
        ["analyze", "critical-path", "RUN", "--what-if", "nvlink", "fast"],
        ["analyze", "everything", "RUN"],
        ["diff", "RUN", "missing.h5"],
        ["diff", "RUN", "no-such-preset"],
        ["diff", "RUN", "dgx-a100 --size lots"],
    ],
)
def test_what_makes_no_sense_is_one_line(
    clusim: Clusim,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.h5").write_text("no trace")
    done = clusim(*(trace if word == "RUN" else word for word in arguments))
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1, done.err


def test_a_trace_of_the_first_format_is_told_from_a_broken_one(
    clusim: Clusim, trace: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old.h5"
    old.write_bytes(trace.read_bytes())
    with h5py.File(old, "r+") as file:
        del file["/image"]
        file.attrs["clusim_format"] = 1
    done = clusim("analyze", "blame", old)
    assert (done.code, done.out) == (2, "")
    assert "older clusim" in done.err
    assert clusim("info", old).code == 0


OFTEN = """
import clusim.simulation.session as session, clusim.results.trace.writer as writer
session.SLICE_S, writer.FLUSH_S, writer.FLUSH_SHARE = 0.01, 0.05, 0
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start the command line with frequent flushes, after running `code`."""
    program = f"{OFTEN}{code}\nfrom clusim_cli.main import main\nmain()"
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], **pipes)


def check_partial(clusim: Clusim, partial: Path) -> None:
    """All questions can be asked of what an unfinished run left."""
    assert clusim("info", partial).code == 0
    for question in QUESTIONS:
        done = clusim("analyze", question, partial)
        assert done.code == 0, (question, done.err)
        assert "unfinished" in done.out
    rows = json.loads(clusim("analyze", "blame", partial, "--json").out)
    assert 0 < sum(row["time_ps"] for row in rows["rows"]) == rows["time_ps"]
    calls = json.loads(clusim("analyze", "collectives", partial, "--json").out)["rows"]
    assert [row["busbw_GBps"] for row in calls] == [0.0]


RUN = (
    "run",
    "dgx-a100",
    "--size",
    "64MiB",
    "--granularity",
    "packet",
    "--trace-primitives",
    "--no-progress",
)


def test_a_killed_run_can_be_analysed(clusim: Clusim, tmp_path: Path) -> None:
    partial = tmp_path / "run.h5.partial"
    process = start("", *RUN, "--trace-out", str(tmp_path / "run.h5"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.2)
        if partial.exists() and _records(clusim, partial) > 100:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    check_partial(clusim, partial)


def _records(clusim: Clusim, partial: Path) -> int:
    done = clusim("info", partial, "--json")
    columns = json.loads(done.out)["columns"] if done.code == 0 else {}
    return int(columns.get("/primitives/time", {"shape": [0]})["shape"][0])


def test_a_full_disk_leaves_what_was_recorded(clusim: Clusim, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    words = ["16MiB" if word == "64MiB" else word for word in RUN]
    process = start(limit, *words, "--trace-out", str(tmp_path / "run.h5"))
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, ""), err
    assert len(err.splitlines()) == 1, err
    assert "cannot write the trace" in err
    assert "run.h5.partial" in err
    check_partial(clusim, tmp_path / "run.h5.partial")
