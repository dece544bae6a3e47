"""A sender policy at every command that builds a system with NICs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusim.replays.placing import ReplayRequest
from clusim.studies.sweep.grid import run_point, train_point
from clusim.training.api import train_request
from clusim_cli.main import run

FILES = {"home": Path()}


def _senders(setup: Any) -> set[str | None]:
    """Return the policies of the NICs of a setup's system."""
    controls = [node.nic.rate_control for node in setup.fabric.nodes if node.nic is not None]
    return {None if one is None else one.sender and one.sender.name for one in controls}


def test_steps_replays_and_grids_take_a_policy() -> None:
    policy = "sender=swift"
    steps = train_request("gpt3-1.3b-ddp", "hgx-h20", nodes=2, policy=policy)
    replay = ReplayRequest(("a.log",), "hgx-h20", 2, policy=policy).setup("hgx-h20", "", ())
    values = {"topology": ("hgx-h20", "hgx-h20"), "nodes": ("2", 2), "policy": (policy, policy)}
    cell = run_point(values | {"size": ("1MiB", 1 << 20)} | FILES)
    row = train_point(values | {"workload": ("gpt3-1.3b-ddp", "gpt3-1.3b-ddp")} | FILES)
    for setup in (steps.setup, replay, cell.request.setup, row.request.setup):
        assert _senders(setup) == {"swift"}


def test_the_identity_of_a_setup_covers_its_policy() -> None:
    def identity(policy: str) -> Any:
        return train_request("gpt3-1.3b-ddp", "hgx-h20", nodes=2, policy=policy).setup.identity

    assert len({identity(""), identity("sender=swift"), identity("sender=dctcp")}) == 3


def test_run_prints_another_time_without_rate_control(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "hgx-h20", "--nodes", "4", "-c", "alltoall", "--size", "16MiB", "--json"]
    words += ["--no-progress", "--granularity", "32KiB"]
    prints = {}
    for policy in ("", "sender=dcqcn-policy", "sender=none", "sender=swift"):
        capsys.readouterr()
        assert run([*words, "--policy", policy]) == 0
        prints[policy] = json.loads(capsys.readouterr().out)["fingerprint"]
    assert prints[""] == prints["sender=dcqcn-policy"]
    assert len(set(prints.values())) == 3
