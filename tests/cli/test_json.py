"""What commands print with `--json` is what their schemas say, and the published schemas are these."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from clusim.calibrating import measure
from clusim_cli.main import run
from clusim_cli.schemas import file_name, known, schema, texts
from support import traces
from support.fake_gpu import FakeGpu
from support.measured_steps import table

Clusim = Callable[..., Any]

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "traces"
ROWS = ROOT / "tests" / "accuracy" / "rows.csv"

SMALL = ("dgx-1v", "--size", "64KiB")
FAULT = ("--fault", "rank 1 slow x1.5")

# Command -> the words of calls that between them print every form it has.
CALLS: dict[str, list[tuple[str | Path, ...]]] = {
    "run": [
        SMALL,
        (*SMALL, "--algorithm", "ring", "--verify", *FAULT),
        ("dgx-h100", "--nodes", "2", "--size", "1MiB", "--symmetric"),
        ("fat-tree:k=4", "--size", "16KiB"),
    ],
    "traffic": [("ring:4", "--message", "64KiB")],
    "train": [
        ("resnet50-dgx1v",),
        ("resnet50-dgx1v", "--layers"),
        ("resnet50-dgx1v", "--scaling", "weak", "--replicas", "1,2"),
        ("resnet50-dgx1v", "--estimate"),
        ("SPENT",),
    ],
    "info": [("TRACE",), ("RUN",)],
    "log summary": [(TRACES / "nccl-8xh100.log",), ("TABLE",)],
    "explain": [
        ("dgx-h100", "--size", "1MiB"),
        ("dgx-a100", "--nodes", "2", "--size", "8", "--symmetric"),
        ("dgx-h100", "--size", "1KiB", "--symmetric"),
    ],
    "crossover": [("dgx-1v", "--size", "1KiB", "--jobs", "1")],
    "nccl-tests": [
        ("all_reduce_perf", "dgx-1v", "-b", "8", "-e", "16", "-c", "1", "--jobs", "1"),
        ("sendrecv_perf", "dgx-1v", "-b", "8", "-e", "8", "-i", "8", "-f", "1", "-C", "1", "--explain", "--jobs", "1"),
    ],
    "sweep": [("GRID", "--jobs", "1")],
    "validate": [
        (ROWS, "--system", "dgx-a100", "--sizes", "1", "--jobs", "1"),
        (ROWS, "--row", "1"),
        ("STEPS", "--jobs", "1"),
    ],
    "replay": [
        (TRACES / "nccl-8xh100.log", "--calls", "2"),
        (TRACES / "nccl-8xh100.log", "--calls", "2", "--as", "dgx-a100", *FAULT),
        (TRACES / "ring-4.goal", "dgx-1v"),
    ],
    "analyze congestion": [("TRACE",), ("TRACE", "--over-time", "--top", "40")],
    "analyze overlap": [("TRACE",)],
    "analyze blame": [("TRACE",), ("RUN", "--confirm")],
    "analyze critical-path": [("TRACE",), ("RUN", "--what-if", "hbm", "x2", "--confirm")],
    "analyze pipeline": [("TRACE",)],
    "analyze collectives": [("TRACE",)],
    "analyze memory": [("TRACE",)],
    "diff": [("RUN", "RUN")],
    "what-if": [(f"run {' '.join(SMALL)}", "nvlink x2", "--ranks 0-99")],
    "cache": [()],
    "calibrate gpu": [("--from", "RECORD", "-o", "KERNELS")],
    "topo list": [()],
    "topo show": [("dgx-h100",)],
    "topo check": [("dgx-1v", "dgx-h100")],
    "topo diff": [("dgx-1v", "dgx-1p")],
    "topo import": [(TRACES / "nvlink-4xh100nvl.txt",)],
}  # fmt: skip


GRID = """
run: {topology: dgx-1v, size: [64KiB, 3], root: [0, 9]}
train: {workload: resnet50-dgx1v, steps: 1}
"""

SPENT = """
reliability: {gpu_mtbf_h: 10000, restart_s: 300, checkpoint: {write: 10 GB/s, every: 100}}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the files that stand in the calls by a word."""
    folder = tmp_path_factory.mktemp("json")
    found = {
        "TRACE": traces.write_training(folder / "step.h5"),
        "RUN": traces.write_collective(folder / "run.h5"),
        "STEPS": table(folder / "steps.csv", {}, {"tensor": 3}),
        "KERNELS": folder / "kernels.json",
    }
    step = (TRACES / "resnet50-dgx1v.yaml").read_text(encoding="utf-8")
    record = json.dumps(measure(FakeGpu(), lambda text: None))
    for name, text in (("GRID", GRID), ("SPENT", step + SPENT), ("RECORD", record)):
        found[name] = folder / f"{name.lower()}.yaml"
        found[name].write_text(text, encoding="utf-8")
    found["TABLE"] = folder / "table.log"
    words = ["nccl-tests", "all_reduce_perf", "dgx-1v", "-b", "8", "-e", "8", "--jobs", "1"]
    with found["TABLE"].open("w", encoding="utf-8") as file, redirect_stdout(file):
        assert run(words) == 0
    return found


def _never(constant: str) -> NoReturn:
    pytest.fail(f"{constant} is no JSON")


def test_every_command_with_json_is_called() -> None:
    assert set(known()) == set(CALLS)


@pytest.mark.parametrize("path", CALLS)
def test_what_is_printed_is_what_the_schema_says(
    path: str,
    clusim: Clusim,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if path == "sweep":
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSIM_CACHE", str(tmp_path / "cache"))
    validator = Draft202012Validator(schema(path))
    for words in CALLS[path]:
        done = clusim(*path.split(), *(files.get(str(word), word) for word in words), "--json")
        assert done.out, done.err
        validator.validate(json.loads(done.out, parse_constant=_never))


def objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of all objects with known keys."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for part in schema.values():
            yield from objects(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from objects(part)


@pytest.mark.parametrize("path", CALLS)
def test_every_object_is_closed_and_every_fraction_has_a_unit_or_is_described(path: str) -> None:
    unit = re.compile(r"_(ps|us|s|bytes|Bps|GBps|GiB|pct|flops)$|_per_s$|_per_gpu$")
    for item in objects(schema(path)):
        assert item["additionalProperties"] is False
        assert item["description"]
        for name, about in item["properties"].items():
            if '"number"' in json.dumps(about):
                told = about.get("description") or "[" in item["description"]
                assert unit.search(name) or told or "share" in item["description"], (item, name)


def test_a_key_that_the_schema_does_not_have_is_refused(clusim: Clusim) -> None:
    validator = Draft202012Validator(schema("cache"))
    found = json.loads(clusim("cache", "--json").out)
    validator.validate(found)
    with pytest.raises(ValidationError, match="'more' was unexpected"):
        validator.validate(found | {"more": 1})
    with pytest.raises(ValidationError, match="'parts' is a required property"):
        validator.validate({name: value for name, value in found.items() if name != "parts"})


def test_the_published_schemas_are_those_of_the_commands() -> None:
    there = {path.name: path.read_text("utf-8") for path in (ROOT / "docs" / "schemas").iterdir()}
    assert there == texts()
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    for path in known():
        assert f"[{path}](schemas/{file_name(path)})" in page


def test_schema_lists_commands_and_prints_one(clusim: Clusim) -> None:
    assert clusim("schema").out.split("\n")[:-1] == list(known())
    said = json.loads(clusim("schema", "analyze", "blame").out)
    assert said["title"] == "clusim analyze blame --json"
    assert said["properties"]["cost_ps"] == {"type": "integer"}
    done = clusim("schema", "analyse", "blame")
    assert done.code == 2
    assert "no command 'analyse blame' has --json; did you mean 'analyze blame'?" in done.err
    assert "no command 'plot' has --json" in clusim("schema", "plot").err
