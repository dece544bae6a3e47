"""Errors before a program starts: no PyTorch, or a build that cannot be used."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.programs import device


@pytest.mark.parametrize(
    ("version", "words"),
    [("", "not installed"), ('cuda: Optional[str] = "12.8"\n', "CUDA build")],
)
def test_only_a_cpu_build_of_pytorch_can_be_used(
    version: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(version, encoding="utf-8")
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py")) if version else None
    monkeypatch.setattr(device, "find_spec", lambda name: spec)
    with pytest.raises(InputError, match=words):
        device.torch_folder()
