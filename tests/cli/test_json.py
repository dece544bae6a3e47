"""What commands print with `--json` is what their schemas say, and the published schemas are these."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from clusim_cli.schemas import file_name, known, schema, texts
from support.calls import CALLS

Clusim = Callable[..., Any]

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.proof


def _never(constant: str) -> NoReturn:
    pytest.fail(f"{constant} is no JSON")


def test_every_command_with_json_is_called() -> None:
    # A PyTorch program needs a process (tests/torchrun).
    assert set(known()) - {"capture", "torchrun"} == set(CALLS)


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
