"""The page of training steps is that of the present model: a sample of its rows is simulated again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from clusim.validation.measured import made_at

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/accuracy-training.md").read_text("utf-8")


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that writes the page."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("page_maker", ROOT / "benchmarks/training.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "page_maker", module)
    spec.loader.exec_module(module)
    return module


def test_a_sample_of_rows_is_as_the_page_has_it(maker: Any) -> None:
    """Communication beside kernels, whose times follow from memory, SMs and collectives."""
    rows = maker.beside()
    assert len(rows) == 3
    for row in rows:
        assert row in PAGE.splitlines()


def test_the_head_of_the_page_has_its_date_and_commit(maker: Any) -> None:
    made = made_at()
    head = maker.HEAD.format(**made, gemm=0.87, sustained=0.85)
    assert f"Last written on {made['date']}, at commit {made['commit']}, by `python" in head
