from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clusim.formats.topologies import Imported, import_file

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture
def sample() -> Callable[..., Imported]:
    """Import a file of `samples`."""

    def read(name: str, **options: str) -> Imported:
        return import_file(SAMPLES / name, **options)  # type: ignore[arg-type]

    return read
