"""Times read off Kineto files by the rules of HolisticTraceAnalysis are those that clusim finds in the run.

Its rules, as its documentation and version 0.5 have them: ``distributedInfo`` names the rank; events with a stream run
on the GPU, and one launch of the host has the correlation of each; a kernel whose name begins with ``nccl`` and goes on
with ``Kernel`` communicates, ``Memcpy`` and ``Memset`` move memory, the others compute. The library itself brings
Jupyter and 500 MB, so that nothing here installs it.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.report.export.kineto import write_kineto
from clusim.report.page_data import Feed

COMMUNICATION = re.compile(r"nccl.*Kernel")
MEMORY = re.compile(r"Memcpy|Memset|dma")
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}

Spans = list[tuple[float, float]]


def kind_of(name: str) -> str:
    """Return the kind of a kernel, by its name alone."""
    if COMMUNICATION.match(name):
        return "communication"
    return "memory" if MEMORY.match(name) else "compute"


def union(spans: Spans) -> Spans:
    """Return spans that do not overlap."""
    found: list[list[float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return [(start, end) for start, end in found]


def length(spans: Spans) -> float:
    return sum(end - start for start, end in union(spans))


def of_rank(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the rank of a file and its events."""
    found = json.loads(gzip.decompress(path.read_bytes()))
    assert found["distributedInfo"]["backend"] == "nccl"
    return found["distributedInfo"]["rank"], found["traceEvents"]


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "resnet.h5"
    clusim.train("resnet50-dgx1v", steps=1, fold="none", trace_out=path, confirm=False)
    return path


@pytest.mark.parametrize("name", ["resnet", "training"])
def test_overlap_and_times_are_those_of_the_run(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    trace = request.getfixturevalue(name)
    shares = Feed.open(trace).shares
    files = dict(of_rank(path) for path in write_kineto(trace, tmp_path / "kineto"))
    assert sorted(files) == list(shares.ranks)
    for place, rank in enumerate(shares.ranks):
        spans: dict[str, Spans] = {"compute": [], "communication": [], "memory": []}
        for event in files[rank]:
            if event.get("cat") in ON_GPU:
                end = event["ts"] + event["dur"]
                spans[kind_of(event["name"])].append((event["ts"], end))
        compute = length(spans["compute"])
        bare = length([span for each in spans.values() for span in each])
        communication = length(spans["communication"])
        both = compute + communication - length(spans["compute"] + spans["communication"])
        right = {
            field: int(getattr(shares, field)[place]) / 1e6
            for field in ("compute", "both", "exposed")
        }
        # Times are written in microseconds, to the picosecond.
        near = {"abs": 1e-3}
        assert compute == pytest.approx(right["compute"] + right["both"], **near)
        assert both == pytest.approx(right["both"], **near)
        assert bare - compute == pytest.approx(right["exposed"], **near)
        assert communication == pytest.approx(right["both"] + right["exposed"], **near)


def test_every_kernel_has_one_launch_before_it(training: Path, tmp_path: Path) -> None:
    for path in write_kineto(training, tmp_path / "kineto"):
        rank, events = of_rank(path)
        launches = {
            event["args"]["correlation"]: event
            for event in events
            if event.get("cat") == "cuda_runtime"
        }
        kernels = [event for event in events if event.get("cat") in ON_GPU]
        assert kernels
        numbers = [event["args"]["correlation"] for event in kernels]
        assert len(set(numbers)) == len(numbers)
        for event in kernels:
            assert event["args"]["device"] == event["pid"] == rank
            assert event["args"]["stream"] == event["tid"]
            assert launches[event["args"]["correlation"]]["ts"] <= event["ts"]
