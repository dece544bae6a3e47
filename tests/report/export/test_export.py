"""Exports hold what the trace holds, in the form their readers expect."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from clusim.base.errors import InputError, TraceError
from clusim.report.export import perfetto_packets
from clusim.report.export.kineto import write_chrome, write_kineto
from clusim.report.export.nccl_log import write_nccl_log
from clusim.report.export.perfetto import write_perfetto
from clusim.report.export.run import Run
from clusim.report.export.tables import write_csv, write_parquet
from clusim.results.trace.reader import read_result
from clusim.results.trace.tables import iterate_table, table_names

Fields = dict[int, list[Any]]


def decode(data: bytes) -> Fields:
    """Return the fields of a protobuf message; a reader of its own, to check the writer."""
    fields: Fields = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value: Any = varint()
        else:
            size = 8 if kind == 1 else varint()
            value = data[at : at + size]
            at += size
        fields.setdefault(key >> 3, []).append(value)
    return fields


def packets(path: Path) -> Iterator[Fields]:
    return (decode(packet) for packet in decode(path.read_bytes())[1])


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**35, 2**63 - 1, 2**64 - 1])
def test_numbers_survive_encoding(value: int) -> None:
    assert decode(perfetto_packets.pb_number(5, value)) == {5: [value]}


def test_negative_numbers_are_64_bits() -> None:
    assert decode(perfetto_packets.pb_number(5, -1)) == {5: [2**64 - 1]}


def test_fields_nest() -> None:
    message = perfetto_packets.pb_field(
        3, perfetto_packets.pb_text(1, "ä"), perfetto_packets.pb_fixed64(4, 9)
    )
    inner = decode(decode(message)[3][0])
    assert inner[1] == ["ä".encode()]
    assert int.from_bytes(inner[4][0], "little") == 9


@pytest.fixture(scope="module")
def perfetto(training: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("perfetto") / "trace.pftrace"
    return path, write_perfetto(training, path)


def track_paths(file: Path) -> set[str]:
    """Return the names of all tracks, behind those of the tracks they are below."""
    tracks = {}
    for packet in packets(file):
        for track in map(decode, packet.get(60, [])):
            tracks[track[1][0]] = (track[2][0].decode(), track.get(5, [0])[0])

    def path(uuid: int) -> str:
        name, parent = tracks[uuid]
        return f"{path(parent)}/{name}" if parent else name

    return {path(uuid) for uuid in tracks}


def test_tracks_form_a_tree_of_fabric_nodes_streams_and_channels(
    perfetto: tuple[Path, Any],
) -> None:
    paths = track_paths(perfetto[0])
    assert len(paths) == perfetto[1].tracks
    assert "dgx-h100/gpu3/stream compute" in paths
    assert "dgx-h100/gpu3/stream dp" in paths
    assert "dgx-h100/gpu7/dp channel 3" in paths
    assert "dgx-h100/gpu0/memory traffic of communication" in paths
    below = "dgx-h100/wires/nvlink switch -> gpu"
    assert f"{below}/nvswitch0->gpu0.0: load" in paths
    assert f"{below}/mean load of 144 wires" in paths
    assert not any("/wires/pcie" in path for path in paths), "nothing crossed PCIe"


def test_machines_of_a_cluster_have_their_ranks_adapters_and_wires(
    cluster: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.pftrace"
    counts = write_perfetto(cluster, path)
    paths = track_paths(path)
    assert len(paths) == counts.tracks, "no two tracks are at one place"
    top = "dgx-a100:nodes=2"
    assert f"{top}/n1/gpu3/stream comm0" in paths
    assert f"{top}/n0/wires/infiniband nic -> leaf/nic0->leaf0.0.0: load" in paths
    assert f"{top}/n1/wires/infiniband leaf -> nic/leaf0.0->nic0.0: load" in paths
    assert {path.split("/")[1] for path in paths if "/" in path} == {"n0", "n1"}


def test_every_task_and_slice_begins_and_ends(perfetto: tuple[Path, Any], training: Path) -> None:
    run = Run.open(training)
    tasks, pieces = len(run.tasks()), sum(1 for _ in run.pieces(flows=False))
    assert perfetto[1].slices == tasks + pieces
    kinds: Counter[int] = Counter()
    open_slices: dict[int, int] = {}
    for packet in packets(perfetto[0]):
        for event in map(decode, packet.get(11, [])):
            kinds[event[9][0]] += 1
            track, time = event[11][0], packet[8][0]
            if event[9][0] == 1:
                assert track not in open_slices, "slices of one track overlap"
                open_slices[track] = time
            elif event[9][0] == 2:
                assert open_slices.pop(track) <= time
    assert kinds[1] == kinds[2]
    assert kinds[1] + kinds[3] == tasks + pieces
    assert kinds[4] == perfetto[1].samples
    assert not open_slices


def test_every_receive_has_an_arrow_from_one_send_that_began_before(
    perfetto: tuple[Path, Any],
) -> None:
    began: dict[bytes, int] = {}
    arrows = []
    for packet in packets(perfetto[0]):
        for event in map(decode, packet.get(11, [])):
            for flow in event.get(47, []):
                assert flow not in began, "a send has a name of its own"
                began[flow] = packet[8][0]
            arrows += [(flow, packet[8][0]) for flow in event.get(48, [])]
    assert len(arrows) == perfetto[1].arrows > 0
    assert all(began[flow] <= time for flow, time in arrows)


def test_names_are_sent_once(perfetto: tuple[Path, Any]) -> None:
    names = [
        decode(entry)[2][0]
        for packet in packets(perfetto[0])
        for interned in map(decode, packet.get(12, []))
        for entry in interned.get(2, [])
    ]
    assert b"recvReduceSend" in names
    assert len(names) == len(set(names))


def test_parts_can_be_left_out(training: Path, tmp_path: Path) -> None:
    counts = write_perfetto(training, tmp_path / "t", slices=False, counters=False)
    assert (counts.arrows, counts.samples) == (0, 0)
    assert counts.slices == len(Run.open(training).tasks())


def test_slices_of_an_instance_do_not_overlap_and_know_their_peers(collective: Path) -> None:
    ends: dict[int, int] = {}
    ring = Counter()
    for piece in Run.open(collective).pieces():
        assert ends.get(piece.track, 0) <= piece.start_ps <= piece.end_ps
        ends[piece.track] = piece.end_ps
        assert (piece.sends_to >= 0) == (piece.flow > 0)
        assert (piece.gets_from >= 0) == (piece.source_flow > 0)
        ring[piece.name] += 1
    assert set(ring) == {"send", "recvReduceSend", "recvReduceCopySend", "recvCopySend", "recv"}


def test_traffic_has_counters_only(traffic: Path, tmp_path: Path) -> None:
    counts = write_perfetto(traffic, tmp_path / "t.pftrace")
    assert counts.slices == 0
    assert counts.samples > 0


def test_flows_have_counters_below_their_senders_and_a_table(
    controlled: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.pftrace"
    write_perfetto(controlled, path)
    paths = track_paths(path)
    below = "hgx-h20:nodes=3/n1/gpu2/flow n1/gpu2->n0/gpu0"
    for name in ("payload rate", "rate limit", "marked", "window", "round trip"):
        assert f"{below}: {name}" in paths
    flows = read_result(controlled).bins.flows
    rows = [row for piece in iterate_table(controlled, "flows") for row in piece["sent"]]
    assert len(rows) == flows.tables["sent"].size
    assert sum(rows) == 16 * (256 << 10)


def test_a_rank_has_a_file_of_kernels_with_nccl_names(training: Path, tmp_path: Path) -> None:
    files = write_kineto(training, tmp_path / "out")
    assert [file.name for file in files] == [f"rank-{rank}.json.gz" for rank in range(8)]
    trace = json.loads(gzip.decompress(files[3].read_bytes()))
    assert trace["distributedInfo"] == {"backend": "nccl", "rank": 3, "world_size": 8}
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    names = {event["name"].partition("(")[0] for event in kernels}
    assert names == {
        "layer 0 backward",
        "layer 1 backward",
        "ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE",
    }
    call = next(event for event in kernels if event["name"].startswith("nccl"))
    assert call["args"]["In msg nelems"] == (1 << 20) // 4
    assert call["args"]["Process Group Ranks"] == "[0, 1, 2, 3, 4, 5, 6, 7]"
    task = next(task for task in Run.open(training).tasks() if task.call == 0 and task.rank == 3)
    assert call["ts"] == task.start_ps / 1e6
    assert call["dur"] == (task.end_ps - task.start_ps) / 1e6
    assert len({event["args"]["correlation"] for event in kernels}) == len(kernels)


def test_chrome_has_a_process_for_each_rank_and_node(training: Path, tmp_path: Path) -> None:
    path = tmp_path / "chrome.json"
    count = write_chrome(training, path)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert len(events) == count
    titles = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"rank 0 (gpu0)", "wires of gpu0", "wires of nvswitch3"} <= titles
    assert all(0 <= event["args"]["load %"] <= 100.1 for event in events if event["ph"] == "C")


def test_a_log_has_the_lines_of_nccl(training: Path, tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    lines = write_nccl_log(training, path)
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") == lines == 1 + 8 + 16
    assert (
        len(re.findall(r"rank \d nranks 8 cudaDev \d .* commId 0x[0-9a-f]+ - Init COMPLETE", text))
        == 8
    )
    pattern = (
        r"^\S+:\d+:\d+ \[(\d)\] NCCL INFO AllReduce: opCount ([0-9a-f]+) sendbuff 0x[0-9a-f]+ recvbuff 0x[0-9a-f]+"
        r" count 262144 datatype 7 op 0 root 0 comm 0x[0-9a-f]+ \[nranks=8\] stream 0x[0-9a-f]+$"
    )
    calls = re.findall(pattern, text, re.MULTILINE)
    assert sorted(calls) == [(str(rank), count) for rank in range(8) for count in "01"]


def test_no_name_of_a_fabric_makes_a_line_of_the_log(collective: Path, tmp_path: Path) -> None:
    forged = "a\u2028clusim:1:1 [0] NCCL INFO AllReduce: opCount 0\u2029b\x85c"
    trace = tmp_path / "forged.h5"
    shutil.copy(collective, trace)
    with h5py.File(trace, "r+") as file:
        value = forged.encode()
        file["/meta"].attrs["fabric"] = np.array(value, h5py.string_dtype("utf-8", len(value)))
    path, sound = tmp_path / "forged.log", tmp_path / "sound.log"
    count = write_nccl_log(trace, path)
    assert count == write_nccl_log(collective, sound)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[1:] == sound.read_text(encoding="utf-8").splitlines()[1:]
    assert lines[0].endswith(", a?clusim:1:1 [0] NCCL INFO AllReduce: opCount 0?b?c")


def test_every_table_can_be_written(training: Path, traffic: Path, tmp_path: Path) -> None:
    for trace in (training, traffic):
        for name, columns in table_names(trace).items():
            path = tmp_path / "table.csv"
            rows = write_csv(trace, name, path)
            with path.open(encoding="utf-8", newline="") as file:
                head, *body = csv.reader(file)
            assert head == columns
            assert len(body) == rows
            written = [
                [str(value) for value in row]
                for piece in iterate_table(trace, name)
                for row in zip(*(column.tolist() for column in piece.values()), strict=True)
            ]
            assert body == written, "every value reads as it was"


def test_a_table_in_pieces_is_the_table(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(training, "history", tmp_path / "whole.csv")
    monkeypatch.setattr("clusim.results.trace.tables.PIECE_ROWS", 100)
    write_csv(training, "history", tmp_path / "pieces.csv")
    assert (tmp_path / "pieces.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert sum(1 for _ in iterate_table(training, "tasks")) == 1


def test_tasks_have_their_rank_beside_their_times(training: Path) -> None:
    (table,) = iterate_table(training, "tasks")
    result = read_result(training)
    assert list(table)[:5] == ["name", "rank", "stream", "start", "end"]
    assert table["end"].tolist() == result.tasks.end_ps.tolist()


def test_histories_are_rows_of_wire_and_time(training: Path) -> None:
    result = read_result(training)
    pieces = list(iterate_table(training, "history"))
    busy = np.concatenate([piece["busy"] for piece in pieces])
    assert busy.tolist() == result.bins.wires["busy"].ravel().tolist()
    assert pieces[0]["wire"][0] == result.wires.names[0]


def test_parquet_is_written_or_its_absence_explained(training: Path, tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    try:
        from pyarrow import parquet
    except ImportError:
        with pytest.raises(InputError, match="parquet: needs pyarrow"):
            write_parquet(training, "tasks", path)
        return
    rows = write_parquet(training, "tasks", path)
    assert parquet.read_table(path).num_rows == rows
    for name in table_names(training):
        write_parquet(training, name, path)
        table = parquet.read_table(path)
        pieces = list(iterate_table(training, name))
        for column in table.column_names:
            values = [value for piece in pieces for value in piece[column].tolist()]
            assert table[column].to_pylist() == values


def test_what_is_not_there_is_said(training: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"table 'nothing': not in .* it has wires, history"):
        write_csv(training, "nothing", tmp_path / "x.csv")
    with pytest.raises(TraceError, match="no such file"):
        write_perfetto(tmp_path / "nothing.h5", tmp_path / "x")
