"""The page of promises names a test for each, and the bill of materials is that of the locks."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from support.sbom import LAYERS, sbom

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "promises.md"


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_promise_links_the_test_that_holds_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    promises = re.findall(r"^- (.+?)(?=^- |^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(promises) > 20
    for promise in promises:
        found = re.fullmatch(
            r"[^\[]{10,}:\s+\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)\.\s*", promise, re.DOTALL
        )
        assert found, promise
        assert found[1] in _functions(ROOT / found[2]), promise


def test_the_bill_of_materials_is_current() -> None:
    """`make sbom` writes it."""
    text = (ROOT / "sbom.json").read_text(encoding="utf-8")
    assert text == sbom()
    parts = json.loads(text)["components"]
    assert {part["properties"][0]["value"] for part in parts} == set(LAYERS)
    assert all(part["hashes"] for part in parts)


def test_torch_is_locked_and_has_one_index() -> None:
    text = (ROOT / "tests" / "support" / "optional.py").read_text(encoding="utf-8")
    assert "--extra-index-url" not in text
    pins = (ROOT / "requirements" / "torch.txt").read_text(encoding="utf-8")
    assert re.search(r"^torch==[\d.]+\+cpu \\\n +--hash=sha256:[0-9a-f]{64}$", pins, re.MULTILINE)
