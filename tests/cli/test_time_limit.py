"""``--time-limit``: what is known is printed, and the command fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusim.run.limit import Watch

Clusim = Callable[..., Any]


class _Late(Watch):
    """Is over as soon as the engine runs."""

    over = True

    def begins(self, what: str) -> None:
        """Let it be prepared."""


@pytest.mark.parametrize(
    "words",
    [("run", "dgx-h100", "--size", "8MiB"), ("traffic", "fat-tree:k=4", "--message", "64MiB")],
)
def test_the_command_prints_what_is_known_and_fails(
    clusim: Clusim, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("clusim.run.limit.Watch", _Late)
    trace = tmp_path / "t.h5"
    done = clusim(*words, "--time-limit", "90s", "--trace-out", trace, "--json")
    assert done.code == 1
    said = json.loads(done.out)
    assert (said["complete"], said["ended_by"]) == (False, "time limit of 90 s")
    assert said["time_ps"] <= said["least_time_ps"]
    for cause in said.get("verdict", {"causes": []})["causes"]:
        assert (cause["saving_ps"], cause["simulated_ps"]) == (None, None), (
            "of a whole that is not known"
        )
    assert said["fingerprint"] is None
    kept = f"what was recorded is in {trace}.partial"
    assert done.err.startswith("clusim: time limit of 90 s: ended at ")
    assert done.err.endswith(f"{kept}\n")
    text = clusim(*words, "--time-limit", "90s")
    assert "  ended by " in text.out
    assert "  at least " in text.out


def test_a_limit_that_is_no_time_is_one_line(clusim: Clusim) -> None:
    done = clusim("run", "dgx-h100", "--time-limit", "0")
    assert done.code == 2
    assert done.err == "clusim: time limit 0 ps: must be more than nothing\n"
