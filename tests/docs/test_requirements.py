"""The tested versions that `make` installs agree with pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.lock import LAYERS, blocks, name_of, wanted

ROOT = Path(__file__).resolve().parents[2]


def pins(layer: str) -> dict[str, str]:
    """Return the version of each package of a layer."""
    text = (ROOT / "requirements" / f"{layer}.txt").read_text(encoding="utf-8")
    pairs = (pin.partition(";")[0].strip().split("==") for pin in blocks(text))
    return {name_of(name): version for name, version in pairs}


@pytest.mark.parametrize("layer", LAYERS)
def test_pins_satisfy_the_project(layer: str) -> None:
    earlier = list(LAYERS)[: list(LAYERS).index(layer) + 1]
    installed = {name: version for each in earlier for name, version in pins(each).items()}
    for line in wanted()[layer]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(installed[name_of(requirement.name)]), line


def test_every_pin_has_hashes_and_one_layer() -> None:
    seen: set[str] = set()
    for layer in LAYERS:
        text = (ROOT / "requirements" / f"{layer}.txt").read_text(encoding="utf-8")
        assert "://" not in text
        for pin, block in blocks(text).items():
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), pin
            assert name_of(pin) not in seen, pin
            seen.add(name_of(pin))
