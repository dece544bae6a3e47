"""Commands with closed standard streams (``>&-``, ``2>&-``): as with the null device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusim_cli.main import COMMANDS

ALL = """
import json, os, sys
import h5py, numpy, clusim.simulation, clusim_cli.commands.run, clusim_cli.commands.topo
import clusim_cli.main as entry

report = os.dup(int(sys.argv[1]))
streams = [int(each) for each in sys.argv[2].split(",")]
codes = {}
for number, words in enumerate(json.loads(sys.argv[3])):
    child = os.fork()
    if not child:
        for each in streams:
            os.close(each)
            setattr(sys, ("stdin", "stdout", "stderr")[each], None)
        sys.argv = ["clusim", *words]
        entry.main()
    codes[number] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os.write(report, json.dumps(list(codes.values())).encode())
"""
"""Runs commands in forked processes, in which streams are closed, after slow imports."""


def exit_codes(calls: list[list[str]], streams: str) -> list[int]:
    """Return the exit codes of commands with closed streams."""
    reading, writing = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", ALL, str(writing), streams, json.dumps(calls)],
        pass_fds=[writing],
        capture_output=True,
    )
    os.close(writing)
    with os.fdopen(reading) as file:
        codes: list[int] = json.loads(file.read() or "[]")
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return codes


def test_every_command_runs_without_standard_output() -> None:
    calls = [[name, "--help"] for name in COMMANDS] + [["--version"], ["--help"]]
    assert exit_codes(calls, "1") == [0] * len(calls)


@pytest.mark.parametrize("streams", ["1", "0,1,2"])
def test_results_and_errors_have_their_exit_codes(streams: str, tmp_path: Path) -> None:
    calls = [
        ["topo", "show", "star:4", "--json"],
        ["run", "star:4", "--size", "8", "--trace-out", str(tmp_path / "run.h5")],
        ["info", str(tmp_path / "run.h5")],
        ["export", str(tmp_path / "run.h5"), "-o", "-"],
        ["run", "star:4", "--size", "8parsecs"],
        ["fly"],
        ["info", "-"],
    ]
    assert exit_codes(calls, streams) == [0, 0, 0, 0, 2, 2, 2]
