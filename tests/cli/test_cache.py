"""Cache of the command line: forged files run no code, and folders that others may write are not used."""

from __future__ import annotations

import os
import pickle
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusim import load
from clusim.base import kept as base_kept
from clusim.base import resources
from clusim.base.kept import PACKAGE, PLACE, SampleCache, is_private, model_digest
from clusim.nccl.communicator import communicator
from clusim.programs import device
from clusim.topology import shelf

Clusim = Callable[..., Any]

QUESTION = ("topology", "star:4", None, str(PACKAGE))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty cache that is in use."""
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    monkeypatch.setattr(resources, "cached", True)
    monkeypatch.setattr(base_kept, "refused", {})
    return tmp_path / "cache"


class Runs:
    """Object that calls a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *given: object) -> None:
        self._call = function, given

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._call


def _named(module: str, name: str) -> bytes:
    """Return a pickle of a global name, without an import of its module."""
    return b"c" + f"{module}\n{name}\n.".encode()


FORGED = {
    "a call": lambda marker: pickle.dumps(Runs(os.mkdir, str(marker))),
    "evaluated text": lambda marker: pickle.dumps(Runs(eval, f"__import__('os').mkdir({str(marker)!r})")),
    "a module that is not imported": lambda _: _named("antigravity", "fly"),
    "a module of clusim": lambda _: _named("clusim.shim.server", "Server"),
    "a class in a listed class": lambda _: _named("clusim.topology.model", "Fabric.__init__"),
    "a function of a listed module": lambda _: _named("clusim.topology.model", "replace"),
    "a function of numpy": lambda _: _named("numpy", "load"),
    "too deep": lambda _: b"(" * 100_000 + b".",
    "no pickle": lambda _: b"\x80\x04not a pickle.",
}  # fmt: skip


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_file_imports_and_runs_nothing(kind: str, folder: Path, tmp_path: Path) -> None:
    """Its checksum is right, because that has no secret."""
    marker = tmp_path / "ran"
    built = load("star:4")
    SampleCache().put(QUESTION, b64encode(FORGED[kind](marker)).decode())
    before = set(sys.modules)
    assert load("star:4") == built
    assert set(sys.modules) - before <= {"clusim.topology.arrays"}
    assert not marker.exists()


@pytest.mark.parametrize("text", [b"[" * 200_000, b"not JSON", b"1" * 10_000, b"\xff\xfe"])
def test_a_forged_text_is_an_answer_that_is_missing(text: bytes, folder: Path) -> None:
    stored = SampleCache(version="x")
    stored.put("question", 1)
    (path,) = folder.glob("parts-x/*")
    path.write_bytes(base_kept._checksum(path.name, text) + b"\n" + text)
    assert SampleCache(version="x").get("question") is None


def test_all_parts_of_cached_answers_are_listed(folder: Path) -> None:
    """Otherwise answers would be computed again each time."""
    names = [*sorted(resources.shipped_topologies())[::6], "mi300x", "aws-p4d:nodes=2", "torus:2x2"]
    for name in names:
        fabric = load(name)
        pickled = pickle.dumps(fabric)
        assert shelf.restore_object(pickled) == fabric, name
    graphs = tuple(communicator(load("dgx-1v")).graphs.values())
    assert shelf.restore_object(pickle.dumps(graphs)) == graphs


@pytest.mark.parametrize("mode", [0o770, 0o1707])
@pytest.mark.parametrize("which", ["cache", "version"])
def test_a_folder_that_others_may_write_is_not_used(
    which: str, mode: int, folder: Path, clusim: Clusim
) -> None:
    """One line on stderr; the result is the same, and no file is written."""
    expected = clusim("topo", "show", "star:4", "--json").out
    used = folder if which == "cache" else folder / f"parts-{model_digest()}"
    used.mkdir(parents=True, exist_ok=True)
    for path in used.rglob("*.json"):
        path.unlink()
    os.chmod(used, mode)
    done = clusim("topo", "show", "star:4", "--json")
    assert (done.code, done.out) == (0, expected)
    (line,) = done.err.splitlines()
    assert line.startswith(f"clusim: {used}: may be written by other users")
    assert "CLUSIM_CACHE" in line
    assert not [path for path in used.rglob("*.json") if path.parent == used]


def test_a_folder_or_file_of_another_user_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = SampleCache(version="x")
    stored.put("question", 1)
    assert SampleCache(version="x").get("question") == 1
    (path,) = folder.glob("parts-x/*")
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert SampleCache(version="x").get("question") is None
    assert "belongs to another user" in base_kept.refused[str(folder)]
    with pytest.raises(PermissionError):
        base_kept.own_bytes(path)


def test_links_pipes_and_large_files_are_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe does not block the command."""
    stored = SampleCache(version="x")
    stored.put("question", 1)
    (path,) = folder.glob("parts-x/*")
    text = path.read_bytes()
    monkeypatch.setattr(base_kept, "MOST_BYTES", len(text))
    assert SampleCache(version="x").get("question") == 1
    monkeypatch.setattr(base_kept, "MOST_BYTES", len(text) - 1)
    assert SampleCache(version="x").get("question") is None
    monkeypatch.undo()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert SampleCache(folder, version="x").get("question") is None
    path.unlink()
    os.mkfifo(path)
    assert SampleCache(folder, version="x").get("question") is None


def test_a_new_cache_is_of_its_user_only(folder: Path) -> None:
    before = os.umask(0)
    try:
        SampleCache(version="x").put("question", 1)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "parts-x")] == [0o700] * 2


def test_a_compiled_library_is_not_loaded_from_a_folder_that_others_may_write(
    folder: Path,
) -> None:
    own = device._library_folder()
    assert own == folder / "torch"
    own.mkdir(parents=True)
    own.chmod(0o777)
    other = device._library_folder()
    assert other != own
    assert is_private(other)
    assert other.stat().st_mode & 0o777 == 0o700
