"""Files of Chakra traces: which make up a job, other releases, PyTorch's JSON, damage, real ones."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim.base.errors import InputError
from clusim.formats.recordings import Event, Recording
from clusim.formats.recordings.chakra import read
from clusim.formats.recordings.chakra_schema import message_class
from clusim.formats.recordings.kinds import kind_of
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from clusim_cli.main import run
from formats.recordings.chakra_traces import SAMPLE, coll, comp, files, message, node, sample, trace
from support.covering import examples
from support.realfiles import real_files

US = 1_000_000
MIB = 1 << 20
START = 1
"""What a kernel takes beyond its computing [ps]."""


def job(folder: Path, *ranks: bytes, **more: Any) -> Recording:
    return read(files(folder, *ranks), **more)


def same(count: int, *nodes: bytes) -> list[bytes]:
    return [trace(*nodes)] * count


def named(found: Recording, rank: int, name: str) -> Event:
    (event,) = [e for e in found.events if (e.rank, e.name) == (rank, name)]
    return event


def after(found: Recording, event: Event) -> set[str]:
    return {found.events[d].name for d in event.deps}


def total(folder: Path, *ranks: bytes) -> int:
    return replay(ReplayRequest((files(folder, *ranks),), topology="dgx-h100")).total_ps


def test_missing_ranks_do_what_the_first_does(tmp_path: Path) -> None:
    files(tmp_path, *same(4, comp(1, 5), coll(2, "ALL_REDUCE", 64, (1,))))
    for number in (1, 3):
        (tmp_path / f"job.{number}.et").unlink()
    (tmp_path / "comm_group.json").write_text('{"9": [0, 1, 2, 3]}')
    found = read(str(tmp_path))
    assert (found.num_ranks, len(found.events)) == (4, 8)
    assert any("2 of 4 ranks did not record" in line for line in found.assumed)


def test_one_trace_alone_is_of_as_many_ranks_as_lie_beside_it(tmp_path: Path) -> None:
    files(tmp_path, *same(3, coll(1, "ALL_REDUCE", 64)))
    assert read(str(tmp_path / "job.1.et")).num_ranks == 3
    (tmp_path / "alone.et").write_bytes(trace(coll(1, "ALL_REDUCE", 64)))
    found = read(str(tmp_path / "alone.et"), num_ranks=8)
    assert found.num_ranks == 8
    assert any("repeated for each of the 8 GPUs" in line for line in found.assumed)


def test_several_jobs_in_a_directory_are_told(tmp_path: Path) -> None:
    files(tmp_path, *same(2, coll(1, "ALL_REDUCE", 64)), job="a")
    files(tmp_path, *same(2, coll(1, "ALL_REDUCE", 128)), job="b")
    with pytest.raises(
        InputError, match=r"traces of 2 jobs; name the files or the prefix of one.*: a, b"
    ):
        read(str(tmp_path))
    assert {e.bytes for e in read(str(tmp_path / "b")).events} == {128}


def test_archives_and_compressed_files_are_read(tmp_path: Path) -> None:
    intact = read(str(SAMPLE))
    with tarfile.open(tmp_path / "sample.tar.gz", "w:gz") as archive:
        for name, data in sample().items():
            member = tarfile.TarInfo(f"run/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    name = str(tmp_path / "sample.tar.gz")
    assert kind_of(name) == "chakra"
    assert [(e.rank, e.name, e.deps) for e in read(name).events] == [
        (e.rank, e.name, e.deps) for e in intact.events
    ]
    for file, data in sample().items():
        if file.endswith(".et"):
            (tmp_path / f"{file}.gz").write_bytes(gzip.compress(data))
    packed = sorted(str(path) for path in tmp_path.glob("*.et.gz"))
    assert [(e.rank, e.name) for e in read(packed).events] == [
        (e.rank, e.name) for e in intact.events
    ]


def test_ten_ranks_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    found = job(tmp_path, *(trace(comp(1, 1 + rank)) for rank in range(11)))
    assert {e.rank: e.duration_ps for e in found.events} == {r: (1 + r) * US for r in range(11)}


def test_files_of_other_releases_are_read(tmp_path: Path) -> None:
    first = message_class("GlobalMetadata")()
    first.attr.add(name=b"schema").string_val = b"1.0.2-chakra.1.0.0"
    begin = first.SerializeToString()
    rows = coll(1, "ALL_REDUCE", 64)
    storage = (
        bytes([len(body := b"\x08\x02\x18\x08\x5a\x02\x08\x01")]) + body
    )  # StorageInfo is field 11
    files(tmp_path, *[bytes([len(begin)]) + begin + rows + storage] * 2)
    found = read(str(tmp_path))
    assert [e.operation for e in found.events] == ["allreduce"] * 2
    assert found.skipped == {"nodes of type STORAGE_NODE": 2}
    assert len(job(tmp_path, rows, rows).events) == 2  # without metadata


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (coll(1, "ALL_REDUCE", -5), "comm_size = -5; expected an integer from 0"),
        (coll(1, "ALL_REDUCE", 1 << 60), "comm_size"),
        (
            node(1, "COMM_COLL_NODE", comm_type=77, comm_size=4),
            "comm_type = 77; expected 0 to 9 or one of ALL_REDUCE",
        ),
        (node(1, "COMM_COLL_NODE", comm_type="mix", comm_size=4), "comm_type = 'mix'"),
        (node(1, "COMM_COLL_NODE", comm_type=0, comm_size="much"), "comm_size = 'much'"),
        (comp(1, 1 << 60), "duration_micros"),
        (node(1, "COMP_NODE", num_ops=-1), "num_ops"),
        (node(1, "COMP_NODE", tensor_size=1 << 50), "tensor_size"),
        (message(1, "send", 1 << 40, 5), "comm_dst"),
    ],
)
def test_absurd_values_are_refused(tmp_path: Path, row: bytes, words: str) -> None:
    with pytest.raises(InputError, match=rf"job\.0\.et: node 1: .*{words}"):
        job(tmp_path, *same(2, row))


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.0.et"
    for data in (b"\xff" * 64, b"hello world, this is text", os.urandom(4) + b"\xff" * 99, b"\x01"):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"job\.0\.et"):
            read(str(path))
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        read(str(path))
    with pytest.raises(InputError, match="no such file"):
        read(str(tmp_path / "nothing"))
    path.write_bytes(trace(node(1, "METADATA_NODE")))
    with pytest.raises(InputError, match="no event that can be simulated"):
        read(str(path))


def test_a_cut_trace_is_read_to_its_last_whole_node(tmp_path: Path) -> None:
    rows = [comp(at, at, () if at == 1 else (at - 1,)) for at in range(1, 6)]
    whole = trace(*rows)
    assert len(job(tmp_path, whole[:-3]).events) == 4
    assert any(
        "job.0.et is cut inside message 6" in line for line in job(tmp_path, whole[:-3]).assumed
    )


Seen = set[tuple[object, ...]]


def seen(found: Recording) -> Seen:
    return {
        (e.rank, e.kind, e.name, e.operation, e.bytes, e.peer, e.duration_ps) for e in found.events
    }


@settings(max_examples=examples(20))
@given(
    seed=st.integers(0, 10**6), how=st.sampled_from(["cut", "mutate", "shuffle", "drop", "insert"])
)
def test_damage_is_refused_or_invents_nothing(seed: int, how: str) -> None:
    rng = random.Random(seed)
    damaged = sample()
    name = f"job.{rng.randrange(4)}.et"
    data = bytearray(damaged[name])
    at = rng.randrange(len(data))
    if how == "cut":
        del data[at:]
    elif how == "mutate":
        data[at] = rng.randrange(256)
    elif how == "drop":
        del data[at : at + rng.randrange(1, 20)]
    elif how == "insert":
        data[at:at] = rng.randbytes(rng.randrange(1, 9))
    else:
        other = rng.randrange(len(data))
        data[at], data[other] = data[other], data[at]
    damaged[name] = bytes(data)
    with tempfile.TemporaryDirectory() as folder:
        for file, content in damaged.items():
            (Path(folder) / file).write_bytes(content)
        try:
            found = read(folder)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
            return
    if how == "cut":
        assert seen(found) <= seen(read(str(SAMPLE)))


def host_trace(*, linked: bool = False) -> dict[str, Any]:
    groups = [{"pg_name": "0", "backend_id": 99, "ranks": [], "group_size": 2}]
    tensor = [7, 8, 0, 256, 4, "cuda:0"]
    rows: list[dict[str, Any]] = [
        {"id": 2, "name": "[pytorch|profiler|execution_trace|thread]", "ctrl_deps": 1},
        {"id": 3, "name": "## process_group:init ##", "ctrl_deps": 2, "inputs": {"values": [json.dumps(groups)]}},
        {"id": 4, "name": "aten::mm", "ctrl_deps": 2, "inputs": {"values": [tensor]}},
        {"id": 5, "name": "record_param_comms", "ctrl_deps": 2,
         "inputs": {"values": [[tensor], 1, 99, 1, "all_gather", [], [], 2]}},
        {"id": 6, "name": "nccl:all_gather", "ctrl_deps": 5, "inputs": {"values": [tensor]}},
        {"id": 7, "name": "record_param_comms", "ctrl_deps": 2, "inputs": {"values": [1, 0, 0, "wait", [], [], 1]}},
        {"id": 8, "name": "record_param_comms", "ctrl_deps": 2,
         "inputs": {"values": [[tensor], 2, ["0", "default_pg"], 0, "broadcast", [], [], 2]}},
    ]  # fmt: skip
    if linked:
        rows[2]["exclusive_dur"] = 12.5
        rows.append(
            {
                "id": 9,
                "name": "gemm",
                "ctrl_deps": 4,
                "cat": "kernel",
                "stream": 7,
                "exclusive_dur": 40,
            }
        )
    return {"schema": "1.0.2-chakra.0.0.4", "pid": 1, "nodes": rows}


def test_traces_of_pytorch_before_conversion_are_read(tmp_path: Path) -> None:
    path = tmp_path / "1.0.2-chakra.0.0.4.json"
    path.write_text(json.dumps(host_trace()))
    assert kind_of(str(path)) == "chakra"
    found = read(str(path))
    assert (found.num_ranks, found.skipped) == (2, {})
    gather, broadcast = (e for e in found.events if e.rank == 1)
    assert (gather.operation, gather.bytes, gather.sequence) == ("all_gather", 2048, 0)
    assert (broadcast.operation, broadcast.bytes, broadcast.root) == ("broadcast", 1024, 0)
    assert any("without times" in line for line in found.assumed)
    assert any("the same work as rank 1" in line for line in found.assumed)


def test_linked_traces_of_pytorch_have_times(tmp_path: Path) -> None:
    path = tmp_path / "linked_0.json"
    path.write_text(json.dumps(host_trace(linked=True)))
    found = read(str(path))
    host, kernel = named(found, 1, "aten::mm"), named(found, 1, "gemm")
    assert (host.kind, host.duration_ps) == ("delay", 12_500_000)
    assert (kernel.kind, kernel.duration_ps, kernel.stream) == ("compute", 40 * US, "stream 7")
    assert after(found, kernel) == {"aten::mm"}
    assert not any("without times" in line for line in found.assumed)


def test_the_sample_is_replayed_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(SAMPLE), "--topology", "dgx-h100", "--no-progress"]) == 0
    shown = capsys.readouterr().out
    assert "4 ranks on 1 node" in shown
    assert "total  9 calls" in shown
    # 450 us are recorded; the optimizer has 200 MB of memory traffic: 59.7 us at the 3.35 TB/s of the GPU, or longer.
    (computing,) = re.findall(r"computing ([0-9.]+) us \(mean", shown)
    assert float(computing) == 520.1 > 450 + 200e6 / 3.35e12 * 1e6


def test_a_damaged_file_is_one_line_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.0.et").write_bytes(b"\xff" * 99)
    assert run(["replay", str(tmp_path), "--topology", "dgx-h100"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


MICRO = {
    "all_gather": "all_gather",
    "all_reduce": "allreduce",
    "all_to_all": "alltoall",
    "reduce_scatter": "reduce_scatter",
}
"""Operations by the names of ASTRA-sim's microbenchmarks."""

FIRST = real_files("chakra", pattern="astrasim_*.0.et")


@pytest.mark.parametrize("first", FIRST, ids=lambda path: path.name)
def test_real_microbenchmarks_are_nccl_s_collectives(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = first.with_name(first.name.removesuffix(".0.et"))
    name, ranks_, _ = re.fullmatch(r"astrasim_(\w+)_(\d+)npus_1MB_(\w+)", path.name).groups()
    operation, ranks = MICRO[name], int(ranks_)
    assert kind_of(str(path)) == "chakra"
    found = read(str(path))
    size = MIB * (ranks if operation == "all_gather" else 1)
    assert {(e.operation, e.bytes) for e in found.events} == {(operation, size)}
    assert (found.num_ranks, found.assumed, found.skipped) == (ranks, [], {})
    replayed = replay(ReplayRequest((str(path),), topology="dgx-a100", kind="chakra")).total_ps
    call = ["--algorithm", "nccl", "--collective", operation, "--size", str(size)]
    assert (
        run(["run", "dgx-a100", *call, "--ranks", f"0-{ranks - 1}", "--json", "--no-progress"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["time_ps"] == replayed


def test_a_real_trace_of_pytorch_is_read() -> None:
    (path,) = real_files("chakra", pattern="*.tgz")
    assert kind_of(str(path)) == "chakra"
    found = read(str(path))
    calls = [(e.operation, e.bytes) for e in found.events if e.rank == 0]
    assert calls == [("all_gather", 8)] * 10
    assert (found.num_ranks, found.skipped) == (2, {})
