"""What users can ask that is long, late or large: exact on both engines, or one line and exit code 2."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import clusim as package
from clusim.base.errors import InternalError, ScheduleError
from clusim.base.resources import find_topology
from clusim.lowering import Fault

Clusim = Callable[..., Any]
QUIET = ("--no-progress",)
RING = ("--algorithm", "ring", "--ranks", "0,1", "--channels", "1", *QUIET)


PAIR = """\
name: pair
nodes: {gpu0..1: {kind: gpu, chip: h100-sxm5}}
links: [{from: gpu0, to: gpu1, count: 18, type: nvlink4, rate: 1 kB/s}]
"""
"""Two GPUs with the links of a DGX H100, at a rate that makes a run last minutes."""


def _slow(tmp_path: Path, rate: str) -> Path:
    """A DGX H100 with NVLinks of this rate."""
    shipped = find_topology("dgx-h100")
    assert shipped is not None
    text = shipped.read_text()
    path = tmp_path / "slow.yaml"
    path.write_text(text.replace("type: nvlink4}", f"type: nvlink4, rate: {rate}}}"))
    assert rate in path.read_text()
    return path


def test_a_run_of_minutes_has_one_time_on_both_engines(clusim: Clusim, tmp_path):
    """2^47 ps are 141 s: the clocks of memory in 2^-16 ps need more than 64 bits."""
    machine, found = tmp_path / "pair.yaml", []
    machine.write_text(PAIR)
    for engine in ("c", "reference"):
        done = clusim("run", machine, *RING, "--size", "3MiB", "--granularity", "512KiB",
                      "--engine", engine, "--json")  # fmt: skip
        assert done.code == 0, done.err
        found.append(json.loads(done.out))
    assert found[0]["fingerprint"] == found[1]["fingerprint"]
    assert found[0]["time_ps"] > 2**47
    # 3 MiB cross each of the 18 links' 1 kB/s in all; headers and acknowledgements make it more.
    assert found[0]["time_ps"] > 3 * 2**20 * 10**9 / 18


def test_a_run_of_minutes_on_links_of_100_kB_per_s_has_a_bandwidth(clusim: Clusim, tmp_path):
    done = clusim("run", _slow(tmp_path, "100 kB/s"), *RING, "--size", "128MiB", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["busbw_GBps"] == pytest.approx(128 * 2**20 / 91.065 / 1e9, rel=1e-3)


def test_a_run_of_months_is_refused_in_one_line_and_leaves_no_trace(clusim: Clusim, tmp_path):
    trace = tmp_path / "run.h5"
    done = clusim("run", _slow(tmp_path, "1 kB/s"), "--algorithm", "ring", "--size", "64GiB",
                  "--granularity", "16MiB", "--trace-out", trace, *QUIET)  # fmt: skip
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert "wire gpu" in done.err
    assert "at or after 2^62 ps (53 days of simulated time)" in done.err
    assert not trace.exists()


def test_a_burst_that_takes_a_day_is_refused_with_the_name_of_its_wire(clusim: Clusim, tmp_path):
    done = clusim("run", _slow(tmp_path, "1 kB/s"), "--algorithm", "ring", "--size", "64GiB",
                  "--granularity", "64MiB", *QUIET)  # fmt: skip
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("clusim: wire gpu0->nvswitch0.0: a packet takes 2^56 ps (20 hours)")


@pytest.mark.parametrize(
    ("message", "packet", "packets"),
    [
        ("4294967300", "1", 4294967300),
        ("4GiB", "1", 2**32),
        ("1TiB", "64", 2**34),
    ],
)
@pytest.mark.parametrize("engine", ["c", "reference"])
def test_more_packets_than_are_counted_are_refused(
    clusim: Clusim, message: str, packet: str, packets: int, engine: str
):
    done = clusim("traffic", "mesh:4x4", "--message", message, "--packet", packet,
                  "--engine", engine, *QUIET)  # fmt: skip
    assert (done.code, done.out) == (2, "")
    assert done.err.strip().endswith(
        f": {packets} packets; at most 2^32-1: larger packets or bursts"
    )


def test_bursts_are_told_from_the_packets_they_stand_for(clusim: Clusim):
    asked = ("run", "dgx-a100", "--size", "1MiB", "--granularity", "4KiB", *QUIET)
    data = json.loads(clusim(*asked, "--json").out)
    assert data["grants"] < data["packet_hops"]
    ratio = data["packet_hops"] / data["grants"]
    assert data["packet_hops_per_s"] / data["grants_per_s"] == pytest.approx(ratio, rel=0.01)
    text = clusim(*asked).out
    assert f"{data['packet_hops']:,} packet-hops as {data['grants']:,} burst-hops" in text
    assert re.search(r"M burst-hops/s \([0-9.]+ M packet-hops/s\)", text)
    exact = clusim("run", "dgx-a100", "--size", "64KiB", "--granularity", "packet", *QUIET).out
    assert "M packet-hops/s" in exact
    assert "bursts/s" not in exact


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch):
    """Every run ends with a broken law."""
    from clusim.engine import simulation as engine

    real = engine.lib

    class Broken:
        def __getattr__(self, name: str):
            return getattr(real, name)

        @staticmethod
        def clusim_sim_check(sim, error) -> int:
            error.message = b"busy time of wire 3: 7 against 2"
            return -3

    monkeypatch.setattr(engine, "lib", Broken())


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "dgx-a100", "--size", "64KiB", "--seed", "41"),
        ("traffic", "mesh:2x2", "--message", "64KiB", "--seed", "41"),
    ],
)
def test_a_broken_law_is_exit_code_70_with_seed_and_fingerprint(broken, clusim, arguments):
    done = clusim(*arguments, *QUIET)
    assert (done.code, done.out) == (70, "")
    assert "busy time of wire 3: 7 against 2; seed 41, fingerprint " in done.err


def test_a_run_from_python_that_breaks_a_law_has_no_result(broken, tmp_path):
    fabric = package.load("dgx-a100")
    schedule = package.collectives.build(fabric, "allreduce", "ring", 65536)
    with pytest.raises(InternalError, match="conservation"):
        package.simulate(fabric, schedule, trace_out=tmp_path / "run.h5")
    assert not (tmp_path / "run.h5").exists()


def test_a_repeated_run_obeys_the_laws(clusim, tmp_path, request):
    from clusim.simulation.reruns import rerun

    fabric = package.load("dgx-a100")
    schedule = package.collectives.build(fabric, "allreduce", "ring", 65536)
    trace = tmp_path / "run.h5"
    package.simulate(fabric, schedule, trace_out=trace)
    request.getfixturevalue("broken")
    with pytest.raises(InternalError, match="conservation"):
        rerun(trace)


@pytest.mark.parametrize("engine", ["c", "reference"])
def test_a_rate_at_which_packets_last_no_time_is_refused_with_the_name_of_its_wire(
    clusim: Clusim, tmp_path, engine: str
):
    done = clusim("run", _slow(tmp_path, "100 TB/s"), *RING, "--size", "64KiB", "--engine", engine)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("clusim: wire gpu0->nvswitch0.0: a packet would last less than 1 ps")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("engine", ["c", "reference"])
def test_a_fault_at_which_packets_last_no_time_is_refused_with_the_name_of_its_wire(engine: str):
    faults = [Fault(0, Fraction(10**6), wire="gpu1->nvswitch2.0")]
    words = "fault of wire gpu1->nvswitch2.0: a packet would last less than 1 ps"
    with pytest.raises(ScheduleError, match=words):
        package.collective(
            "dgx-h100", "allreduce", 4096, algorithm="ring", faults=faults, engine=engine
        )
