"""Every shipped workload and recording is exported in every format, whatever is folded or empty in its trace."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusim_cli.commands.export import SUFFIXES
from clusim_cli.main import cli
from support.covering import THOROUGH

TRACES = Path(__file__).resolve().parents[3] / "traces"
STEPS = sorted(path.stem for path in TRACES.glob("*.yaml"))
RECORDED = {
    "nccl-8xh100.log": "dgx-h100",
    "step.chakra.json": "dgx-a100",
    "ring-4.goal": "dgx-a100",
}
CHEAP = {"bert-parameter-server", "resnet50-dgx1v", *RECORDED}
OPTIONS = {"csv": [["--table", table] for table in ("tasks", "wires", "history")]}


def clusim(*words: object) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


TRIED = [name for name in (*STEPS, *RECORDED) if name in CHEAP or THOROUGH]
"""Workloads that are exported; large ones only in thorough runs."""


FORMATS = [form for form in SUFFIXES if form != "parquet" or find_spec("pyarrow")]


@pytest.mark.parametrize("name", TRIED)
def test_it_is_exported_in_every_format(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "run.h5"
    if name in STEPS:
        words = ["train", TRACES / f"{name}.yaml", "--steps", "1", "--granularity", "coarse"]
    else:
        words = ["replay", TRACES / name, RECORDED[name], "--granularity", "coarse"]
        words += ["--calls", "2"] if name.endswith(".log") else []
    clusim(*words, "--trace-out", trace)
    for form in FORMATS:
        for number, more in enumerate(OPTIONS.get(form, [[]])):
            target = tmp_path / f"{form}{number}"
            clusim("export", trace, "--format", form, *more, "-o", target)
            sizes = [path.stat().st_size for path in (target, *target.glob("*")) if path.is_file()]
            assert sizes, form
            assert min(sizes) > 0, form
