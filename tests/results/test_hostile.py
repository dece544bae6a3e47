"""Traces that somebody doctored: what is not as a trace has it is one line that names the column."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from clusim.analysis.slices import Slices, all_starts
from clusim.base.errors import TraceError
from clusim.results.trace.inputs import read_inputs
from clusim.results.trace.reader import open_records, read_result
from clusim.results.trace.tables import iterate_table
from clusim.simulation.reruns import rerun
from fuzz import traces

RING, NVLS, STEP, FOLDED, TRAFFIC = range(5)
NONE = 0xFFFFFFFF


def doctored(folder: Path, change: Callable[[Any], None], sample: int = RING) -> Path:
    path = folder / "run.h5"
    path.write_bytes(traces.samples()[sample]["run.h5"])
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def value(name: str, new: Any, row: int = 0, field: str = "") -> Callable[[Any], None]:
    """Return what sets one value of a column."""

    def change(file: Any) -> None:
        values = file[name][...]
        part = values[field] if field else values
        part[row] = new
        file[name][...] = values

    return change


def attribute(name: str, new: Any, of: str = "/meta") -> Callable[[Any], None]:
    def change(file: Any) -> None:
        file[of].attrs[name] = new

    return change


def instead(name: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return what puts another column in the place of one."""

    def change(file: Any) -> None:
        values = file[name][...]
        del file[name]
        new = make(values)
        if new is not None:
            file[name] = new

    return change


def declared(name: str, rows: int) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        kind = file[name].dtype
        del file[name]
        file.create_dataset(name, (rows,), kind, chunks=(64,))

    return change


# What is read -> what is changed; all of it was a traceback, nonsense or gigabytes once, or is like one that was.
READ = {
    "overlap": {
        "/schedule/tasks/call": value("/schedule/tasks/call", 99),
        "/schedule/tasks/rank": value("/schedule/tasks/rank", -1),
        "/schedule/tasks/kind": value("/schedule/tasks/kind", b"kernal"),
        "/tasks/end": value("/tasks/end", 1 << 62),
        "/tasks: an end before": value("/tasks/start", -1),
        "/tasks: a time after": value("/tasks/end", 1 << 61),
        ": prims: missing": instead("/image/prims", lambda old: None),
        "/image/scalars: must be two": instead("/image/scalars", lambda old: old[:1]),
        "/image/wires: not one row": instead("/image/wires", lambda old: old[:-1]),
        "/image/tasks: fewer rows": instead("/image/tasks", lambda old: old[:-1]),
        "/image: succ: not the columns": instead("/image/succ", lambda old: old.astype("<u8")),
        "without the inputs": lambda file: file.__delitem__("/image"),
        "/image: instances": value("/image/instances", 1 << 31, field="template"),
    },
    "critical-path": {
        "prims[0].opcode": value("/image/prims", 200, field="opcode"),
        "/primitives/instance": value("/primitives/instance", 1 << 31),
        "/primitives/cause": value("/primitives/cause", 7),
        "/primitives/wire": value("/primitives/wire", 1 << 20),
        "/primitives/time": value("/primitives/time", 1 << 60),
        ": slice 1000 of": value("/primitives/seq", 1000, row=slice(None)),
        "before its gate": value("/primitives/gate", (1 << 62) - 1),
        "inst_conns": value("/image/inst_conns", NONE),
        "succ": value("/image/tasks", NONE, field="succ_hi"),
        "conn_off": value("/image/instances", 10_000, field="conn_off"),
        "repeat": value("/image/prims", NONE, field="repeat"),
        "routes[": value("/image/routes", 12345, row=slice(None)),
    },
    "kineto": {
        "/schedule/calls/protocol": value("/schedule/calls/protocol", b"easy"),
        "/schedule/calls/ranks_off": value("/schedule/calls/ranks_off", 3, row=1),
        "/schedule/calls/ranks": value("/schedule/calls/ranks", 77),
        "/schedule/calls/dtype": value("/schedule/calls/dtype", b""),
    },
    "nccl-log": {
        "not one of its call's": value("/schedule/calls/ranks", 1),
        "/schedule/calls/bytes": value("/schedule/calls/bytes", -5),
    },
    "perfetto": {
        "/fabric/rank_endpoint": value("/fabric/rank_endpoint", 50),
        "/wires/wire": value("/wires/wire", b"x->y.0"),
        "/fabric/node": value("/fabric/node", b"gpu1"),
        "/schedule/instances/task": value("/schedule/instances/task", 4),
        "/hbm/bytes": instead("/hbm/bytes", lambda old: old[:1]),
    },
    "tables": {
        "/tasks/start: units": lambda file: None,
        "/wires/busy": instead("/wires/busy", lambda old: old[:, :1]),
    },
    "report": {
        "/wires/time": value("/wires/time", 1, row=slice(None)),
        "/wires/total/packets": value("/wires/total/packets", -1),
        "/fabric/rate": value("/fabric/rate", np.nan),
        "/fabric/wire_class": value("/fabric/wire_class", b"\x1b[2J"),
    },
    "info": {
        "/meta: attribute seed": attribute("seed", "many"),
        "/meta: attribute time_ps": attribute("time_ps", -1),
        "/meta: attribute wall_s": attribute("wall_s", np.inf),
        "/meta: attribute fabric": attribute("fabric", b"\xff\xfe"),
        "/meta: fingerprint": attribute("fingerprint", np.bytes_(b"xyz")),
        "/meta: attribute call_ranks": attribute("call_ranks", 0),
        "/meta: attribute engine": attribute("engine", h5py.Empty("S1")),
        "/meta: must have one": instead("/meta/fabric_text", lambda old: old.repeat(2)),
        "/meta/verdict: no verdict": value("/meta/verdict", b"{}"),
        "/meta/verdict: not JSON": value("/meta/verdict", b"{"),
        "/meta/progress": value("/meta/progress", 1 << 40, row=1),
        "/tasks/start: in 'ns'": attribute("units", np.bytes_(b"ns"), "/tasks/start"),
        "/wires/total/bytes: values of type": instead("/wires/total/bytes", lambda old: old * 0.5),
        "/tasks/name: the file is too small": declared("/tasks/name", 1 << 40),
        "/wires/time": declared("/wires/time", 1 << 31),
    },
}  # fmt: skip
READ["tables"].pop("/tasks/start: units")
CASES = [(action, words) for action, changes in READ.items() for words in changes]


@pytest.mark.parametrize(("action", "words"), CASES, ids=[f"{a} {w}" for a, w in CASES])
def test_a_doctored_trace_is_refused_in_one_line(action: str, words: str, tmp_path: Path) -> None:
    path = doctored(tmp_path, READ[action][words])
    with pytest.raises(TraceError) as caught:
        traces.ACTIONS[action](path)
    assert len(str(caught.value).splitlines()) == 1
    assert str(path) in str(caught.value)
    assert words.removesuffix(": the file is too small") in str(caught.value)


@pytest.mark.parametrize("sample", [RING, NVLS, STEP, FOLDED, TRAFFIC])
def test_a_good_trace_passes_everything(sample: int, tmp_path: Path) -> None:
    doctored(tmp_path, lambda file: None, sample)
    refused = traces.use(tmp_path, every=True)
    slices = {"blame", "critical-path", "what-if"}
    tasks = {"overlap", "pipeline", "timeline", "collectives"}
    assert set(refused) == (slices | tasks if sample == TRAFFIC else set())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (instead("/image/targets", lambda old: old[:2]), "every endpoint is a target"),
        (value("/image/inst_conns", 0, row=slice(None)), "opcode does not fit the connection"),
        (lambda file: file.__delitem__("/schedule"), "/schedule: missing"),
    ],
)
def test_an_image_that_does_not_hold_together_is_refused(
    change: Callable[[Any], None], words: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError, match=words):
        read_inputs(doctored(tmp_path, change, NVLS))


@pytest.mark.parametrize("kind", ["<u8", ">i8", "<i2"])
def test_whole_numbers_of_another_type_are_taken_as_they_are(kind: str, tmp_path: Path) -> None:
    good = read_result(doctored(tmp_path, lambda file: None))
    path = doctored(tmp_path, instead("/wires/total/packets", lambda old: old.astype(kind)))
    assert (read_result(path).wires.counters["packets"] == good.wires.counters["packets"]).all()
    changed = instead("/tasks/start", lambda old: old.astype(kind))
    assert (read_result(doctored(tmp_path, changed)).tasks.start_ps == good.tasks.start_ps).all()


def test_links_to_elsewhere_are_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.zeros(3, np.int64)
    for link in (h5py.ExternalLink(str(other), "/x"), h5py.SoftLink("/wires/wire")):

        def change(file: Any, link: Any = link) -> None:
            del file["/meta/progress"]
            file["/meta/progress"] = link

        with pytest.raises(TraceError, match="points to somewhere else"):
            read_result(doctored(tmp_path, change))


def test_values_in_another_file_are_not_read(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        del file["/meta/progress"]
        secret = [("/etc/hostname", 0, 24)]
        file.create_dataset("/meta/progress", (3,), "<i8", external=secret)

    with pytest.raises(TraceError, match="lie in another file"):
        read_result(doctored(tmp_path, change))


def test_a_file_that_hdf5_does_not_begin_is_not_read(tmp_path: Path) -> None:
    """Columns are placed from where HDF5 begins; one whose values lie elsewhere would have a place, too."""
    path = tmp_path / "run.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        file.attrs["clusim_format"] = 1
        file.create_dataset("x", (3,), "<i8", external=[("/etc/hostname", 0, 24)])
    with pytest.raises(TraceError, match="begins with a block that is not of HDF5"):
        read_result(path)


def test_texts_of_any_length_are_not_read(tmp_path: Path) -> None:
    path = doctored(tmp_path, instead("/tasks/name", lambda old: [t.decode() for t in old]))
    with pytest.raises(TraceError, match="texts of one width"):
        read_result(path)


def test_the_image_is_checked_before_it_runs_again(tmp_path: Path) -> None:
    path = doctored(tmp_path, value("/image/wires", 0, field="rate_den"))
    with pytest.raises(TraceError, match="rate_den"):
        rerun(path)


def test_a_path_that_goes_round_in_circles_is_an_error(tmp_path: Path) -> None:
    """Slices that are complete at once, each because of another: the walk would not end."""

    def change(file: Any) -> None:
        end_ps = file["/tasks/end"][...].max()
        file["/tasks/end"][...] = end_ps
        for name in ("time", "gate"):
            file[f"/primitives/{name}"][...] = end_ps
        file["/primitives/cause"][...] = 1
        for name in ("tail_ps", "head_ps"):
            value("/image/conns", 0, row=slice(None), field=name)(file)

    with pytest.raises(TraceError, match=r"circles|missing|waited for a slice"):
        traces.ACTIONS["critical-path"](doctored(tmp_path, change))


def test_a_program_of_endless_slices_is_not_written_out(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        value("/image/prims", 1 << 21, row=slice(None), field="repeat")(file)
        value("/image/instances", 1 << 30, row=slice(None), field="length")(file)

    path = doctored(tmp_path, change)
    inputs = read_inputs(path)
    slices = Slices(inputs.image, all_starts(inputs.image, read_result(path).tasks.start_ps))
    with pytest.raises(TraceError, match="too many to follow"):
        slices.table(0)


def test_every_block_of_slices_is_checked(tmp_path: Path) -> None:
    path = doctored(tmp_path, value("/primitives/instance", 1 << 20, row=-1))
    with open_records(path, block_rows=2) as records:
        records.block(0)
        with pytest.raises(TraceError, match="/primitives/instance"):
            records.block(records.num_blocks - 1)
    with pytest.raises(TraceError, match="/primitives/instance"):
        list(iterate_table(path, "primitives"))


def test_what_a_small_file_declares_takes_no_memory(tmp_path: Path) -> None:
    """Zeros pack a thousand times: the limit is on what the columns take in memory."""

    def change(file: Any) -> None:
        rows = 1 << 28
        file.create_dataset(
            "/schedule/tasks/big", (rows,), "<i8", chunks=(1 << 19,), compression="gzip"
        )
        for low in range(0, rows, 1 << 19):
            file["/schedule/tasks/big"].id.write_direct_chunk((low,), _ZEROS)

    path = doctored(tmp_path, change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TraceError, match="of memory"):
        read_inputs(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def _zeros() -> bytes:
    import zlib

    return zlib.compress(bytes(8 << 19))


_ZEROS = _zeros()


def test_the_command_answers_with_one_line_and_code_2(tmp_path: Path) -> None:
    path = doctored(tmp_path, value("/schedule/tasks/call", 99))
    program = "from clusim_cli.main import main\nmain()"
    for arguments in (["analyze", "overlap"], ["analyze", "blame", "--confirm"], ["report"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments, str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
