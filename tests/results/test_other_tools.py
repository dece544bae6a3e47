"""Traces as other tools see them: units of every column, texts as texts, histories with their axes."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import clusim
from clusim.results.result import Result
from clusim.results.trace.layout import LATER, about
from clusim.results.trace.reader import open_trace, result_of

GROUPS = ("wires", "wires/total", "hbm", "tasks", "primitives", "fabric", "schedule/calls")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    path = tmp_path_factory.mktemp("trace") / "run.h5"
    return path, clusim.collective(
        "a100x4-mesh", "allreduce", "64KiB", trace_out=path, confirm=False
    )


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("/schedule/tasks/compute_ps", "ps"),
        ("/schedule/instances/offset", "B"),
        ("/schedule/calls/bytes", "B"),
        ("/schedule/tasks/rank", "1"),
        ("/wires/total/queued_max", "B"),
        ("/wires/busy", "ps"),
    ],
)
def test_numbers_have_the_unit_that_their_names_say(name: str, unit: str) -> None:
    assert about(name, is_text=False)["units"] == unit


def test_no_column_of_times_or_sizes_counts_in_ones(traced: tuple[Path, Result]) -> None:
    seen = 0
    with h5py.File(traced[0]) as file:

        def look(name: str, item: object) -> None:
            nonlocal seen
            if isinstance(item, h5py.Dataset) and not name.startswith("image/"):
                text, unit = item.dtype.kind == "S", item.attrs["units"].decode()
                assert (unit == "") == (text or name == "meta/progress"), name
                assert text == (item.attrs.get("_Encoding") == b"utf-8"), name
                if name.endswith(("_ps", "bytes")):
                    assert unit in ("ps", "B"), name
                    seen += 1

        file.visititems(look)
    assert seen > 10


@pytest.mark.parametrize("group", GROUPS)
def test_xarray_opens_a_group_and_reads_texts(traced: tuple[Path, Result], group: str) -> None:
    import xarray

    with xarray.open_dataset(
        traced[0], group=group, engine="h5netcdf", phony_dims="sort"
    ) as dataset:
        for name, values in dataset.variables.items():
            assert values.dtype.kind != "S", name
            assert "long_name" in values.attrs


def test_histories_in_xarray_are_those_of_the_result(traced: tuple[Path, Result]) -> None:
    import xarray

    path, result = traced
    wanted = result.to_xarray()
    with xarray.open_dataset(path, group="wires", engine="h5netcdf") as found:
        for name in ("busy", "bytes", "queue"):
            assert found[name].equals(wanted[name].drop_vars(("wire_class", "rate")))
            assert found[name].attrs == wanted[name].attrs
    with xarray.open_dataset(path, group="hbm", engine="h5netcdf") as found:
        assert np.array_equal(found["time"], result.bins.edge_ps[:-1])


def test_traces_without_what_was_added_are_read_as_before(
    traced: tuple[Path, Result], tmp_path: Path
) -> None:
    older = tmp_path / "older.h5"
    older.write_bytes(traced[0].read_bytes())
    with h5py.File(older, "a") as file:
        del file["/hbm/time"]
        for name in ("/wires/wire", "/tasks/name"):
            del file[name].attrs["_Encoding"]
        file["/schedule/tasks/compute_ps"].attrs["units"] = np.bytes_(b"1")
        for name in LATER & {f"/wires/total/{total}" for total in file["/wires/total"]}:
            del file[name]
    with open_trace(older) as file:
        result = result_of(file)
    assert result.fingerprint == traced[1].fingerprint
    assert result.wires.counters["drops"].tolist() == [0] * len(result.wires.names)
