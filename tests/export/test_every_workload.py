"""Every shipped workload and recording is exported in every format, whatever is folded or empty in its trace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusim_cli.commands.export import SUFFIXES
from clusim_cli.main import cli

TRACES = Path(__file__).resolve().parents[2] / "traces"
STEPS = sorted(path.stem for path in TRACES.glob("*.yaml"))
RECORDED = {
    "nccl-8xh100.log": "dgx-h100",
    "step.chakra.json": "dgx-a100",
    "ring-4.goal": "dgx-a100",
}
CHEAP = {"bert-allreduce", "bert-parameter-server", "resnet50-dgx1v", *RECORDED}
OPTIONS = {"csv": [["--table", table] for table in ("tasks", "wires", "history")]}


def clusim(*words: object) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


@pytest.mark.parametrize("name", [*STEPS, *RECORDED])
def test_it_is_exported_in_every_format(name: str, tmp_path: Path) -> None:
    if name not in CHEAP and os.environ.get("CLUSIM_THOROUGH") != "1":
        pytest.skip("large; CLUSIM_THOROUGH=1 exports it")
    trace = tmp_path / "run.h5"
    if name in STEPS:
        words = ["train", TRACES / f"{name}.yaml", "--steps", "1", "--granularity", "coarse"]
    else:
        words = ["replay", TRACES / name, RECORDED[name], "--granularity", "coarse"]
    clusim(*words, "--trace-out", trace)
    for form in SUFFIXES:
        for number, more in enumerate(OPTIONS.get(form, [[]])):
            target = tmp_path / f"{form}{number}"
            clusim("export", trace, "--format", form, *more, "-o", target)
            sizes = [path.stat().st_size for path in (target, *target.glob("*")) if path.is_file()]
            assert sizes, form
            assert min(sizes) > 0, form
