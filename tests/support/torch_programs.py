"""Runs of `clusim torchrun` with small programs."""

from __future__ import annotations

import json
import subprocess
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from clusim_cli.schemas import schema
from support.warm_torch import clusim

START = """
import os, time, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
"""


def needs_torch() -> None:
    """Skip a file of tests without PyTorch, which is not imported: each process that collects tests would wait."""
    if find_spec("torch") is None:
        pytest.skip("could not import 'torch'", allow_module_level=True)


class Later:
    """Module, or an attribute of one, that is imported at its first use: PyTorch takes seconds."""

    def __init__(self, module: str, attribute: str = "") -> None:
        self._path = module, attribute

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_mock")):  # pytest looks for fixtures in all that a module has
            raise AttributeError(name)
        module, attribute = self._path
        return attrgetter(f"{attribute}.{name}".lstrip("."))(import_module(module))


def torchrun(tmp_path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program with START before it; ranks are compared only if the options request it."""
    script = tmp_path / "script.py"
    script.write_text(START + text, encoding="utf-8")
    if "--compare" not in options:
        options = (*options, "--compare", "off")
    return clusim("torchrun", *options, script, "--flag", "x", cwd=tmp_path)


def result(tmp_path: Path, text: str, *options: str) -> tuple[dict[str, Any], list[str]]:
    """Return the JSON output of a program, and the lines it printed."""
    run = torchrun(tmp_path, text, "--json", *options)
    assert run.returncode == 0, run.stdout + run.stderr
    *lines, last = run.stdout.splitlines()
    done = json.loads(last)
    Draft202012Validator(schema("torchrun")).validate(done)
    print(f"step {done['step_us'] or done['time_us']:,.1f} us", *sorted(calls(done)))
    return done, lines


def calls(done: dict[str, Any]) -> dict[tuple[str, int], tuple[int, int]]:
    return {(c["operation"], c["ranks"]): (c["count"], c["bytes"]) for c in done["calls"]}
