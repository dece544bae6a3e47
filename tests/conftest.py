"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.covering import THOROUGH, examples, split_items
from support.skips import unexpected

# Background jobs of a shell ignore Ctrl-C, those of nohup SIGHUP, and so would the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What is compiled is kept, also where the environment says otherwise: tests start many processes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Hypothesis fails an example that takes 200 ms, or inputs that are slow to make, by the clock: a busy machine is no
# defect. A change is judged by the same examples as the one before; new ones are looked for when all is tried.
settings.register_profile(
    "clusim",
    deadline=None,
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not THOROUGH,
)
settings.load_profile("clusim")


def _judged(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip that nobody expects into a failure."""
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = unexpected(report.longrepr)
        if reason is not None:
            report.outcome = "failed"
            report.longrepr = (
                f"unexpected skip: {reason}; tests/support/skips.py lists the expected ones"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge the skips of tests, in the process that runs them."""
    report = yield
    _judged(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge the skips of whole files."""
    report = yield
    _judged(report)
    return report


left_out = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark of tests of which members that cover their parameters run."""
    config.addinivalue_line("markers", "covering(strength=1): see tests/support/covering.py")
    config.addinivalue_line("markers", "proof: reads what simulated changes save")
    config.stash[left_out] = 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave members of parametrized tests to a thorough run."""
    if THOROUGH:
        return
    items[:], others = split_items(items)
    config.stash[left_out] = len(others)
    getattr(config, "workeroutput", {})["left_out"] = len(others)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep what a worker says of the members that it left out."""
    node.config.stash[left_out] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say at the end what only a thorough run runs."""
    if config.stash[left_out]:
        text = f"{config.stash[left_out]} members of parametrized tests left to make thorough"
        terminalreporter.write_line(f"{text} (tests/support/covering.py)")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the collector of cycles from looking through all tests and modules again and again: they stay.

    What tests make is looked through every 10,000 objects: the usual 700 took a twentieth of their time.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


UNPROVEN = {"base", "cli", "formats", "jobs", "policies", "replays", "report"}
"""Rooms whose tests read no bottleneck, except in files and tests with the mark `proof`."""


@pytest.fixture(autouse=True)
def proof_where_it_is_read(request: pytest.FixtureRequest) -> None:
    """Simulate changes only where a test reads what they save: commands and replays do it for every run."""
    here = Path(__file__).parent
    rooms = request.path.relative_to(here).parts if request.path.is_relative_to(here) else ()
    if UNPROVEN.intersection(rooms) and request.node.get_closest_marker("proof") is None:
        request.getfixturevalue("without_proof")


@pytest.fixture
def without_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands simulate no change of their own accord, as for large runs: for tests that read no bottleneck."""
    monkeypatch.setattr("clusim.simulation.reruns.PROOF_GRANTS", (0, 0))
    for room in ("remedies", "uncomposed"):
        monkeypatch.setattr(f"clusim.training.{room}.CHEAP_TASKS", 0)
