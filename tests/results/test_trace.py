from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest

import clusim
from clusim.base.errors import EnvironmentFailure, TraceError
from clusim.results.result import Result
from clusim.results.trace import writer
from clusim.results.trace.layout import FORMAT, RULES
from clusim.results.trace.reader import columns, open_records, read_result
from clusim.topology import Fabric

UNIFORM = clusim.Traffic("uniform", 1024, 1024, load=0.5, duration_ps=4_000_000)


def run(fabric: Fabric, path: Path | None, **options: object) -> Result:
    return clusim.simulate_traffic(fabric, UNIFORM, trace_out=path, confirm=False, **options)  # type: ignore[arg-type]


def interrupt_after(calls: int) -> object:
    seen = 0

    def progress(part: float, now_ps: int) -> None:
        nonlocal seen
        seen += 1
        assert 0 <= part <= 1
        if seen >= calls:
            raise KeyboardInterrupt

    return progress


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make slices end at every bin edge, so that a short run has many."""
    monkeypatch.setattr("clusim.simulation.session.SLICE_S", 0.0)
    monkeypatch.setattr("clusim.simulation.session.EDGES", 1)


def test_a_trace_holds_what_the_result_holds(fabric: Fabric, tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    result = run(fabric, path, command="clusim traffic toy")
    again = read_result(path)
    assert again.complete
    for name in ("time_ps", "fingerprint", "provenance", "call", "verified", "packet_hops"):
        assert getattr(again, name) == getattr(result, name), name
    assert again.wires.names == result.wires.names
    assert again.wires.classes == result.wires.classes
    assert np.array_equal(again.wires.counters, result.wires.counters)
    assert np.array_equal(again.bins.edge_ps, result.bins.edge_ps)
    for name, table in result.bins.wires.items():
        assert np.array_equal(again.bins.wires[name], table)
    assert again.messages is not None
    assert result.messages is not None
    assert np.array_equal(again.messages.end_ps, result.messages.end_ps)
    assert not (tmp_path / "run.h5.partial").exists()


def test_histories_add_up_to_the_totals(fabric: Fabric, tmp_path: Path) -> None:
    result = run(fabric, tmp_path / "run.h5")
    counters = result.wires.counters
    assert np.array_equal(result.bins.wires["bytes"].sum(axis=1), counters["bytes"])
    assert np.array_equal(result.bins.wires["busy"].sum(axis=1), counters["busy_ps"])


def test_a_trace_does_not_change_the_run(fabric: Fabric, tmp_path: Path) -> None:
    assert run(fabric, tmp_path / "run.h5").fingerprint == run(fabric, None, bins=16).fingerprint


def test_every_column_has_a_unit_and_a_description(fabric: Fabric, tmp_path: Path) -> None:
    run(fabric, tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5") as file:
        file.visititems(
            lambda name, item: (
                [item.attrs["units"], item.attrs["long_name"]]
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
        assert file["/wires/busy"].dims[0][0].name == "/wires/wire"
        assert file["/wires/busy"].dims[1][0].name == "/wires/time"
        assert file.attrs["clusim_format"] == FORMAT
    names = {column.name for column in columns(tmp_path / "run.h5")}
    assert {"/wires/busy", "/hbm/bytes", "/messages/end", "/tasks/start"} <= names


def test_rules_name_columns_that_there_are() -> None:
    named = {name for rule in RULES.values() for name in (rule.rows, rule.into) if name}
    assert {n for n in named - RULES.keys() if not n.startswith(("/image/", "/schedule/"))} == set()


@pytest.mark.usefixtures("slices")
def test_an_interrupt_keeps_a_readable_partial_file(fabric: Fabric, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(fabric, tmp_path / "run.h5", progress=interrupt_after(20))
    assert not (tmp_path / "run.h5").exists()
    partial = read_result(tmp_path / "run.h5.partial")
    assert not partial.complete
    assert partial.time_ps > 0
    assert partial.wires.counters["packets"].sum() > 0
    assert len(partial.bins.edge_ps) > 2
    with pytest.raises(TraceError, match=r"try .*run\.h5\.partial"):
        read_result(tmp_path / "run.h5")


@pytest.mark.usefixtures("slices")
def test_flushing_often_changes_nothing(
    fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FLUSH_S", 0.0)
    result = run(fabric, tmp_path / "run.h5", bins=16)
    again = read_result(tmp_path / "run.h5")
    for name, table in result.bins.wires.items():
        assert np.array_equal(again.bins.wires[name], table)


@pytest.mark.parametrize("name", ["no/such/directory/run.h5", "file/run.h5", "."])
def test_an_unwritable_place_is_an_environment_failure(
    fabric: Fabric, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_text("a file, not a directory")
    with pytest.raises(EnvironmentFailure, match="cannot write the trace"):
        run(fabric, tmp_path / name)


def test_a_run_that_cannot_start_leaves_no_file(
    fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise EnvironmentFailure("no engine today")

    monkeypatch.setattr("clusim.simulation.job.start_engine", fail)
    with pytest.raises(EnvironmentFailure, match="no engine today"):
        run(fabric, tmp_path / "run.h5")
    assert not list(tmp_path.iterdir())


def test_what_is_not_a_trace_is_refused_in_one_line(fabric: Fabric, tmp_path: Path) -> None:
    run(fabric, tmp_path / "whole.h5")
    whole = (tmp_path / "whole.h5").read_bytes()
    (tmp_path / "empty.h5").write_bytes(b"")
    (tmp_path / "text.h5").write_text("not a trace")
    (tmp_path / "half.h5").write_bytes(whole[: len(whole) // 2])
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    with h5py.File(tmp_path / "newer.h5", "w") as file:
        file.attrs["clusim_format"] = FORMAT + 1
    for name in ("missing", "empty", "text", "half", "other", "newer"):
        with pytest.raises(TraceError) as caught:
            read_result(tmp_path / f"{name}.h5")
        assert len(str(caught.value).splitlines()) == 1
        assert f"{name}.h5" in str(caught.value)
    with pytest.raises(TraceError):
        read_result(tmp_path)


@pytest.mark.parametrize("at", [64, 512, 2000, 6000, 12000])
def test_a_damaged_trace_is_a_trace_error_or_reads(fabric: Fabric, tmp_path: Path, at: int) -> None:
    run(fabric, tmp_path / "run.h5")
    data = bytearray((tmp_path / "run.h5").read_bytes())
    data[at : at + 64] = bytes(64)
    (tmp_path / "bad.h5").write_bytes(data)
    with suppress(TraceError):
        read_result(tmp_path / "bad.h5")


def test_a_trace_without_primitives_says_so(fabric: Fabric, tmp_path: Path) -> None:
    run(fabric, tmp_path / "run.h5")
    with pytest.raises(TraceError, match="--trace-primitives"), open_records(tmp_path / "run.h5"):
        pass
