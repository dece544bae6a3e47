"""Instructions and cache misses per packet-hop are at most those of `benchmarks/counts.json`.

Callgrind counts them in small twins of the benchmark cases, with caches of 32 KB and 1 MB: they do not depend on the
load of the computer. One case always, all with CLUSIM_THOROUGH=1 (a minute).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.covering import THOROUGH

ROOT = Path(__file__).resolve().parents[2]
RUN, COUNTS = ROOT / "benchmarks" / "run.py", ROOT / "benchmarks" / "counts.json"
RUN_IMAGE = ROOT / "build" / "c" / "run_image"
KNOWN: dict[str, dict[str, float]] = json.loads(COUNTS.read_text("utf-8"))
CASES = sorted(KNOWN) if THOROUGH else ["permutation-fat-tree-8"]
MORE = 1.08
"""Counts of other versions of the compiler, over those of the file."""

_COUNT = "import json, run; print(json.dumps(run.instructions({!r}, 1)))"


def _engine_is_newer() -> bool:
    sources = [*ROOT.glob("csrc/*.[ch]"), *ROOT.glob("csrc/parts/*.h")]
    return max(path.stat().st_mtime for path in sources) > RUN_IMAGE.stat().st_mtime


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind here")
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="callgrind excludes sanitizers"
)
@pytest.mark.skipif(
    not RUN_IMAGE.exists() or _engine_is_newer(),
    reason="no build/c of these sources: make test-c",
)
@pytest.mark.parametrize("case", CASES)
def test_a_hop_needs_no_more_instructions_and_cache_lines_than_before(case: str) -> None:
    """Fewer by a tenth: write the counts anew (`benchmarks/run.py --write-counts`)."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNT.format(case)],
        check=True,
        capture_output=True,
        text=True,
        cwd=RUN.parent,
    )
    found = json.loads(done.stdout)
    for name, count in KNOWN[case].items():
        assert found[name] <= count * MORE + 0.02, name
