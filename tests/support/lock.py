"""Write ``requirements/*.txt``: the versions that `make` installs, with their hashes, in layers.

``python tests/support/lock.py FOLDER`` resolves all requirements of ``pyproject.toml`` together with uv, for Linux and
every Python from 3.11 on, and splits the result: a layer holds only packages that no layer before it needs, so that
each is installed by ``pip install --no-deps --require-hashes``. ``--list LAYER`` prints the requirements of a layer.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {
    "build": "Compiles the engine.",
    "run": "Libraries of clusim itself.",
    "test": "Tests, linters and pages.",
    "optional": "Tests of browsers, executors and tables; skipped where one of these cannot be installed.",
}
BEFORE = "Written by `make lock`; `make newest` tries newer versions."
EXTRAS = {"build": ["build"], "run": [], "test": ["dev"], "optional": ["optional-tests"]}


def name_of(requirement: str) -> str:
    """Return the normalised name at the beginning of a requirement."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def blocks(text: str) -> dict[str, str]:
    """Return the pinned requirements of a compiled file, each with its hashes, by name and marker."""
    parts = re.split(r"^(?=[a-z0-9])", text, flags=re.M)[1:]
    return {
        part.partition("\\")[0].strip(): re.sub(r"^ +#.*\n", "", part, flags=re.M) for part in parts
    }


def resolve(inputs: str, constraints: Path | None = None) -> str:
    """Return the text of uv for these requirements."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "requirements.in"
        source.write_text(inputs, encoding="utf-8")
        words = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
        words += ["--generate-hashes", "--no-header", "--fork-strategy", "fewest", str(source)]
        words += ["--constraints", str(constraints)] if constraints else []
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def wanted() -> dict[str, list[str]]:
    """Return the requirements of each layer in pyproject.toml, names of its extras resolved."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = data["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]

    def opened(requirement: str) -> list[str]:
        own = re.fullmatch(r"clusim-net\[(.*)\]", requirement)
        if not own:
            return [requirement]
        return [
            each for extra in own[1].split(",") for line in extras[extra] for each in opened(line)
        ]

    result = {
        layer: [each for extra in names for line in extras[extra] for each in opened(line)]
        for layer, names in EXTRAS.items()
    }
    result["build"] += data["build-system"]["requires"]
    result["run"] += project["dependencies"]
    return result


def write(folder: Path) -> None:
    """Write a file per layer."""
    folder.mkdir(exist_ok=True)
    layers = wanted()
    whole = resolve("\n".join(line for lines in layers.values() for line in lines))
    every = blocks(whole)
    with TemporaryDirectory() as place:
        pins = Path(place) / "all.txt"
        pins.write_text(whole, encoding="utf-8")
        done: set[str] = set()
        for layer, about in LAYERS.items():
            needed = {name_of(pin) for pin in blocks(resolve("\n".join(layers[layer]), pins))}
            chosen = {pin: text for pin, text in every.items() if name_of(pin) in needed - done}
            done |= needed
            text = f"# {about} {BEFORE}\n" + "".join(chosen.values())
            (folder / f"{layer}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print(*wanted()[sys.argv[2]])
    else:
        write(Path(sys.argv[1]))
