"""Write ``sbom.json``, the bill of materials in CycloneDX: all locked packages, with hashes and layer.

``python tests/support/sbom.py FILE``, with ``tests/`` on the path. It is computed from ``requirements/*.txt`` only, so
that equal locks have equal files. Packages of the layer ``run`` are required by users, all others by developers.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.lock import blocks  # noqa: E402

LAYERS = ("build", "run", "test", "optional", "torch-libraries", "torch")


def _component(pin: str, text: str, layer: str) -> dict[str, Any]:
    """Return the entry of a pinned package."""
    name, _, version = pin.partition(";")[0].strip().partition("==")
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version.replace('+', '%2B')}",
        "scope": "required" if layer == "run" else "excluded",
        "hashes": [
            {"alg": "SHA-256", "content": found}
            for found in sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))
        ],
        "properties": [{"name": "clusim:layer", "value": layer}],
    }


def sbom() -> str:
    """Return the text of the file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    components = [
        _component(pin, text, layer)
        for layer in LAYERS
        for pin, text in blocks(
            (ROOT / "requirements" / f"{layer}.txt").read_text(encoding="utf-8")
        ).items()
    ]
    name, version = project["name"], project["version"]
    data = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
    }
    # One line per package: the file is for programs, and its differences for people.
    data["components"] = []
    lines = ",\n".join(json.dumps(part) for part in components)
    return (
        json.dumps(data, indent=1).replace('"components": []', f'"components": [\n{lines}\n]')
        + "\n"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(sbom(), encoding="utf-8")
