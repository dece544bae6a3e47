"""Traces of the PyTorch profiler: calls, groups, what waits for what, several ranks, old releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings import Event, Recording
from clusim.formats.recordings.kinds import kind_of
from clusim.formats.recordings.kineto import read
from clusim.replays.api import replay
from clusim.replays.placing import ReplayRequest
from clusim.replays.report import Replay
from clusim_cli.main import run
from formats.recordings.kineto_traces import COMM, COMPUTE, Writer, save, training, write_sample

SAMPLE = Path(__file__).parents[3] / "traces" / "kineto-2ranks"
US = 1_000_000


def whole(*files: str, gap: str = "", topology: str = "dgx-a100") -> Replay:
    return replay(ReplayRequest(files, topology=topology, gap=gap))


def recording(tmp_path: Path, *traces: Any) -> Recording:
    return read([save(tmp_path / f"{at}.json", trace) for at, trace in enumerate(traces)])


def by_name(found: Recording, name: str, rank: int = 0) -> Event:
    return next(e for e in found.events if e.name.startswith(name) and e.rank == rank)


def waits_for(found: Recording, name: str, rank: int = 0) -> set[str]:
    return {found.events[at].name[:13] for at in by_name(found, name, rank).deps}


def pair(**more: Any) -> list[Writer]:
    """Two ranks with a kernel, an all-reduce after it and a kernel after that."""
    both = [Writer(rank, 2) for rank in range(2)]
    for writer in both:
        writer.kernel("first", 1000, 100)
        writer.wait(COMM, COMPUTE)
        writer.collective("allreduce", 1100, 500, 1 << 20, **more)
        writer.wait(COMPUTE, COMM)
        writer.kernel("last", 1605, 50)
    return both


# What is read


def test_the_sample_is_what_its_writer_makes(tmp_path: Path) -> None:
    write_sample(tmp_path)
    for name in ("rank0.json", "rank1.json"):
        assert (tmp_path / name).read_text() == (SAMPLE / name).read_text()
    assert kind_of(str(SAMPLE)) == "kineto"


def test_sample() -> None:
    found = read(str(SAMPLE))
    assert (found.num_ranks, found.nccl_version, found.assumed, found.skipped) == (
        2,
        "2.21.5",
        [],
        {},
    )
    assert [group.ranks for group in found.groups] == [(0, 1)]
    own = [e for e in found.events if e.rank == 1]
    assert [(e.kind, e.stream) for e in own] == [
        ("compute", "7"), ("compute", "7"), ("collective", "20"), ("compute", "7"), ("collective", "20"),
        ("compute", "7"),
    ]  # fmt: skip
    calls = [e for e in own if e.kind == "collective"]
    assert [(e.operation, e.bytes, e.dtype, e.sequence) for e in calls] == [
        ("allreduce", 16 << 20, "float32", 0),
        ("allreduce", 24 << 20, "float32", 1),
    ]
    assert [e.duration_ps for e in calls] == [115 * US, 160 * US]
    assert waits_for(found, "optimizer", 1) == {"ncclDevKernel"}
    assert waits_for(found, "ncclDevKernel", 1) == {"backward of l"}
    assert [(e.algorithm, e.protocol) for e in calls] == [
        ("", "")
    ] * 2  # names of kernels do not tell
    assert own[0].start_ps == 0
    assert own[0].where.startswith(str(SAMPLE / "rank1.json") + ": event ")


def test_sample_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(SAMPLE), "--topology", "dgx-a100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = json.dumps(found)
    assert "allreduce" in text
    replayed = whole(str(SAMPLE))
    # The last rank decides how long a collective took: the first also waited.
    assert [call.measured_us for call in replayed.calls] == [115.0, 160.0]
    assert replayed.recorded_ps == 908 * US


def test_a_collective_moves_what_waits_for_it_and_hides_behind_what_does_not(
    tmp_path: Path,
) -> None:
    files = [save(tmp_path / f"r{w.rank}.json", w.trace()) for w in pair()]
    found = whole(*files)
    call = found.calls[0]
    # Kernel, collective, the recorded 5 us until the next kernel, kernel.
    assert found.total_ps == pytest.approx((100 + 5 + 50) * US + call.time_ps, abs=US)
    assert whole(*files, gap="none").total_ps == pytest.approx(150 * US + call.time_ps, abs=US)
    hidden = [Writer(rank, 2) for rank in range(2)]
    for writer in hidden:
        writer.kernel("first", 1000, 100)
        writer.wait(COMM, COMPUTE)
        writer.collective("allreduce", 1100, 500, 1 << 20)
        writer.kernel("long", 1100, 900)
        writer.wait(COMPUTE, COMM)
        writer.kernel("last", 2000, 50)
    files = [save(tmp_path / f"h{w.rank}.json", w.trace()) for w in hidden]
    assert whole(*files).total_ps == pytest.approx(1050 * US, abs=10)  # a kernel may end 1 ps late


@pytest.mark.parametrize(
    ("operation", "counts", "expected"),
    [
        ("_allgather_base", (100, 400), ("all_gather", 1600)),
        ("all_gather", (100, 0), ("all_gather", 1600)),
        ("allgather_into_tensor_coalesced", (100, 400), ("all_gather", 1600)),
        ("_reduce_scatter_base", (400, 100), ("reduce_scatter", 1600)),
        ("reduce_scatter_tensor_coalesced", (400, 100), ("reduce_scatter", 1600)),
        ("all_to_all", (400, 400), ("alltoall", 1600)),
        ("all_to_allv", (400, 300), ("alltoall", 1600)),
        ("allreduce_coalesced", (7, 7), ("allreduce", 28)),
        ("_broadcast_oop", (5, 5), ("broadcast", 20)),
        ("_reduce_oop", (5, 5), ("reduce", 20)),
        ("gather", (100, 0), ("gather", 1600)),
        ("scatter", (0, 100), ("scatter", 1600)),
        ("barrier", (0, 0), ("barrier", 4)),
    ],
)
def test_operations(
    tmp_path: Path, operation: str, counts: tuple[int, int], expected: tuple[str, int]
) -> None:
    writer = Writer(1, 4)
    writer.collective(operation, 1000, 50, *counts, Rank=2)
    event = recording(tmp_path, writer.trace()).events[0]
    assert (event.operation, event.bytes) == expected
    assert event.root == (2 if expected[0] in ("broadcast", "reduce", "gather", "scatter") else -1)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("Float", 4), ("BFloat16", 2), ("Half", 2), ("Double", 8), ("Long", 8), ("Byte", 1), ("Float8_e4m3fn", 1)],
)  # fmt: skip
def test_types(tmp_path: Path, dtype: str, size: int) -> None:
    writer = Writer(0, 2)
    writer.collective("allreduce", 1000, 50, 10, dtype=dtype)
    assert recording(tmp_path, writer.trace()).events[0].bytes == 10 * size


def test_groups_are_taken_from_where_they_are(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], tuple[int, ...] | None]] = [
        ({"Process Group Ranks": [0, 2, 4, 6], "Group size": 4}, (0, 2, 4, 6)),
        ({"Process Group Ranks": "[0, 2, ...]", "Group size": 4}, (0, 2, 4, 6)),
        ({"Process Group Ranks": "[0, 1, ...]", "Group size": 4, "Process Group Name": "7"}, (0, 3, 5, 7)),
        ({"Process Group Name": "7", "Group size": 4}, (0, 3, 5, 7)),
        ({"Group size": 2, "Global rank start": 0, "Global rank stride": 4}, (0, 4)),
        ({"Group size": 8}, tuple(range(8))),
        ({"Group size": 3}, None),
        ({"Process Group Ranks": "[1, 2]", "Group size": 2}, None),
        ({"Process Group Ranks": "[0, 0]", "Group size": 2}, None),
    ]  # fmt: skip
    for args, ranks in cases:
        writer = Writer(0, 8)
        writer.kernel("first", 990, 5)
        writer.collective("allreduce", 1000, 50, 10)
        for event in writer.events:
            for key in ("Process Group Ranks", "Group size", "Process Group Name"):
                event["args"].pop(key, None)
            if "Collective name" in event["args"]:
                event["args"].update(args)
        trace = writer.trace()
        trace["distributedInfo"]["pg_config"] = [
            {"pg_name": "7", "pg_size": 4, "ranks": [0, 3, 5, 7]}
        ]
        found = recording(tmp_path, trace)
        event = next(e for e in found.events if e.name.startswith("nccl") and e.rank == 0)
        if ranks is None:
            assert (event.kind, event.duration_ps) == ("compute", 50 * US)
            assert sum(found.skipped.values()) == 1
        else:
            assert found.groups[event.group].ranks == ranks


def test_everybody_is_an_empty_list_of_pg_config(tmp_path: Path) -> None:
    writer = Writer(0, 4)
    writer.collective("allreduce", 1000, 50, 10, **{"Process Group Ranks": "", "Group size": 4})
    trace = writer.trace()
    trace["distributedInfo"]["pg_config"] = [{"pg_name": "0", "pg_size": 4, "ranks": []}]
    assert recording(tmp_path, trace).groups[0].ranks == (0, 1, 2, 3)


# Messages and all-to-alls


def sender(rank: int, world: int, *batch: tuple[str, int, int]) -> Writer:
    """A rank with one launch of messages (kind, peer, elements), as batch_isend_irecv makes it."""
    writer = Writer(rank, world)
    writer.kernel("first", 1000, 10)
    for at, (kind, peer, count) in enumerate(batch):
        args = writer.comm(kind, count, Rank=peer)
        args["Dst Rank" if kind == "send" else "Src Rank"] = peer
        writer.add(
            "cpu_op", "record_param_comms", 1011 + at, 0.5, **{"External id": 900 + at}, **args
        )
    writer.kernel("ncclDevKernel_SendRecv(ncclDevComm*, unsigned long)", 1100, 40, COMM)
    return writer


def test_a_batch_of_messages_is_one_launch(tmp_path: Path) -> None:
    traces = [
        sender(0, 2, ("send", 1, 1000), ("recv", 1, 500)).trace(),
        sender(1, 2, ("recv", 0, 1000), ("send", 0, 500)).trace(),
    ]
    found = recording(tmp_path, *traces)
    messages = [
        (e.rank, e.kind, e.peer, e.bytes) for e in found.events if e.kind in ("send", "recv")
    ]
    assert messages == [
        (0, "send", 1, 4000), (0, "recv", 1, 2000), (1, "recv", 0, 4000), (1, "send", 0, 2000),
    ]  # fmt: skip
    assert len({e.bunch for e in found.events if e.rank == 0 and e.bunch >= 0}) == 1
    replayed = whole(*[save(tmp_path / f"m{at}.json", t) for at, t in enumerate(traces)])
    assert replayed.total_calls == 1
    assert replayed.calls[0].measured_us == 40.0


def test_messages_launched_one_by_one(tmp_path: Path) -> None:
    writers = [Writer(rank, 2) for rank in range(2)]
    for writer in writers:
        for at in range(3):
            kind, end = ("send", "Dst Rank") if writer.rank == 0 else ("recv", "Src Rank")
            writer.collective(
                kind, 1000 + 100 * at, 20, 10 + at, Rank=1 - writer.rank, **{end: 1 - writer.rank}
            )
    found = recording(tmp_path, *[w.trace() for w in writers])
    assert [(e.kind, e.sequence, e.bytes) for e in found.events if e.rank == 1] == [
        ("recv", 0, 40), ("recv", 1, 44), ("recv", 2, 48),
    ]  # fmt: skip


def test_uneven_splits_are_messages_if_every_rank_recorded(tmp_path: Path) -> None:
    splits = ([10, 30], [5, 15])
    writers = [Writer(rank, 2) for rank in range(2)]
    for writer, split in zip(writers, splits, strict=True):
        writer.collective(
            "all_to_all", 1000, 50, sum(split) * 64, (15, 45)[writer.rank] * 64,
            **{"In split size": str(split), "Out split size": "[1, 2]"},
        )  # fmt: skip
    traces = [w.trace() for w in writers]
    found = recording(tmp_path, *traces)
    assert [(e.rank, e.kind, e.peer, e.bytes) for e in found.events] == [
        (0, "send", 1, 30 * 256), (0, "recv", 1, 5 * 256), (1, "send", 0, 5 * 256), (1, "recv", 0, 30 * 256),
    ]  # fmt: skip
    assert (
        whole(*[save(tmp_path / f"a{at}.json", t) for at, t in enumerate(traces)]).total_calls == 1
    )
    alone = recording(tmp_path, traces[0])
    assert (alone.events[0].operation, alone.events[0].bytes) == ("alltoall", 40 * 256)
    assert any("uneven all-to-alls" in text for text in alone.assumed)


def test_even_splits_stay_one_collective(tmp_path: Path) -> None:
    writer = Writer(0, 2)
    writer.collective("all_to_all", 1000, 50, 80, **{"In split size": "[40, 40]"})
    found = recording(tmp_path, writer.trace())
    assert found.events[0].kind == "collective"
    assert not any("uneven" in text for text in found.assumed)


# What waits for what


def test_without_sync_events_the_host_tells(tmp_path: Path) -> None:
    """Two collectives under way at once; the kernels after the two waits wait for one each."""
    writer = Writer(0, 2)
    writer.kernel("first", 1000, 100)
    for at in range(2):
        writer.next_launch("cudaEventRecord")
        writer.collective("allreduce", 1100 + 100 * at, 100, 1000)
        writer.kernel(f"beside {at}", 1100 + 100 * at, 90)
    for at in range(2):
        writer.external += 1
        writer.next_launch("cudaStreamWaitEvent")
        writer.kernel(f"after {at}", 1400 + 300 * at, 10)
    found = recording(tmp_path, writer.trace())
    nccl = [at for at, e in enumerate(found.events) if e.kind == "collective" and e.rank == 0]
    assert [by_name(found, f"after {at}").deps for at in range(2)] == [(nccl[0],), (nccl[1],)]
    assert [waits_for(found, f"beside {at}") for at in range(2)] == [set(), set()]
    assert found.events[nccl[0]].deps == (0,)
    assert not any(
        "kernels that wait for collectives are not recorded" in text for text in found.assumed
    )


def test_where_nothing_tells_times_do_and_it_is_said(tmp_path: Path) -> None:
    writer = Writer(0, 2)
    writer.kernel("first", 1000, 100)
    writer.collective("allreduce", 1100, 100, 1000)
    writer.kernel("beside", 1100, 50)
    writer.kernel("after", 1205, 50)
    writer.kernel("later", 1400, 50)
    found = recording(tmp_path, writer.trace())
    assert waits_for(found, "after") == {"ncclDevKernel"}
    assert waits_for(found, "later") == set()
    assert any("1 that began as one ended" in text for text in found.assumed)


def test_the_host_waits_for_everything(tmp_path: Path) -> None:
    writer = Writer(0, 1)
    writer.kernel("copy", 1000, 300, stream=9)
    writer.next_launch("cudaDeviceSynchronize")
    writer.kernel("after", 1400, 50)
    writer.kernel("copy again", 1400, 50, stream=9)
    found = recording(tmp_path, writer.trace())
    assert waits_for(found, "after") == {"copy"}
    assert waits_for(found, "copy again") == set()


def test_a_wait_that_its_times_contradict_is_none(tmp_path: Path) -> None:
    both = pair()
    for event in both[0].events:
        if event["name"] == "last":
            event["ts"] = 1300
    found = recording(tmp_path, *[w.trace() for w in both])
    assert waits_for(found, "last") == set()
    assert waits_for(found, "last", 1) == {"ncclDevKernel"}


def test_kernels_that_overlap_on_a_stream_still_do(tmp_path: Path) -> None:
    writer = Writer(0, 1)
    writer.kernel("a", 1000, 100)
    writer.kernel("b", 1100, 100)
    writer.kernel("c", 1150, 100)
    writer.kernel("d", 1260, 10)
    found = recording(tmp_path, writer.trace())
    assert [e.stream for e in found.events] == ["7", "7", "7+1", "7"]
    assert [e.deps for e in found.events] == [(), (), (0,), (2,)]
    total_ps = whole(save(tmp_path / "t.json", writer.trace())).total_ps
    assert total_ps == pytest.approx(270 * US, abs=10)


# Several ranks


def test_calls_are_matched_by_seq_if_recordings_began_apart(tmp_path: Path) -> None:
    writers = [Writer(rank, 2) for rank in range(2)]
    for at in range(4):
        for writer in writers:
            if (writer.rank, at) != (1, 0):
                writer.collective("allreduce", 1000 + 100 * at, 50, 100 + at, Seq=40 + at)
    found = recording(tmp_path, *[w.trace() for w in writers])
    assert [(e.sequence, e.bytes) for e in found.events if e.rank == 1] == [
        (1, 404),
        (2, 408),
        (3, 412),
    ]
    assert found.assumed == []
    for writer in writers:
        for event in writer.events:
            event["args"].pop("Seq", None)
    found = recording(tmp_path, *[w.trace() for w in writers])
    assert any("without PyTorch's Seq" in text for text in found.assumed)


def test_clocks_are_set_right_by_collectives(tmp_path: Path) -> None:
    both = pair()
    same = recording(tmp_path, *[w.trace() for w in both])
    assert same.assumed == []
    ahead = both[1].trace(baseTimeNanoseconds=both[1].trace()["baseTimeNanoseconds"] + 7_000_000)
    found = recording(tmp_path, both[0].trace(), ahead)
    assert [e.start_ps for e in found.events] == [e.start_ps for e in same.events]
    assert any("7.000 ms off" in text for text in found.assumed)


def test_one_rank_of_four_stands_for_all(tmp_path: Path) -> None:
    writer = Writer(2, 4)
    writer.kernel("first", 1000, 100)
    writer.collective(
        "allreduce", 1100, 50, 1 << 20, **{"Process Group Ranks": "[2, 3]", "Group size": 2}
    )
    found = recording(tmp_path, writer.trace())
    assert sorted((e.rank, found.groups[e.group].ranks) for e in found.events if e.group >= 0) == [
        (0, (0, 1)), (1, (0, 1)), (2, (2, 3)), (3, (2, 3)),
    ]  # fmt: skip
    assert "symmetric peers" in " ".join(found.assumed)
    assert "include waiting for ranks that did not record" in " ".join(found.assumed)


def test_hosts_are_machines(tmp_path: Path) -> None:
    traces = [w.trace(host_name=("a", "b")[w.rank]) for w in pair()]
    assert recording(tmp_path, *traces).hosts == ["a", "b"]
    del traces[1]["host_name"]
    assert recording(tmp_path, *traces).hosts == []


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1\.json: is rank 0, like .*0\.json"):
        recording(tmp_path, training(0), training(0))


def test_ranks_from_names(tmp_path: Path) -> None:
    for rank in (1, 0):
        trace = training(rank)
        del trace["distributedInfo"]["rank"]
        save(tmp_path / f"trace_rank-{rank}.Apr_03.pt.trace.json", trace)
    found = read(str(tmp_path))
    assert [found.events[0].rank, found.events[-1].rank] == [0, 1]
    assert sum("taken as rank" in text for text in found.assumed) == 2


# Old releases


def test_before_kernels_told_their_collective(tmp_path: Path) -> None:
    """By the number of the operation, or by when it was launched."""
    for number in (True, False):
        writer = Writer(0, 2)
        writer.collective("_allgather_base", 1000, 50, 100, 200)
        for event in writer.events:
            if event["cat"] == "kernel":
                event["args"] = {
                    k: event["args"][k] for k in ("stream", "correlation", "External id")
                }
                event["args"]["External id"] += 0 if number else 5000
        event = recording(tmp_path, writer.trace()).events[0]
        assert (event.operation, event.bytes) == ("all_gather", 800)


def test_shapes_alone_tell_a_size(tmp_path: Path) -> None:
    writer = Writer(0, 2)
    writer.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclColl)", 1000, 50, COMM)
    writer.add(
        "user_annotation", "nccl:all_reduce", 960, 35,
        **{"External id": 3, "Input Dims": [[128, 4], []], "Input type": ["float", ""]},
    )  # fmt: skip
    trace = writer.trace()
    del trace["distributedInfo"]["pg_config"]
    for event in trace["traceEvents"]:
        event["cat"], event["ts"] = event["cat"].capitalize(), str(int(event["ts"]))
    found = recording(tmp_path, trace)
    assert (found.events[0].operation, found.events[0].bytes) == ("allreduce", 2048)
    assert any("taken to be of all ranks" in text for text in found.assumed)


def test_a_name_alone_stays_a_kernel(tmp_path: Path) -> None:
    writer = Writer(0, 2)
    writer.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclColl)", 1000, 50, COMM)
    found = recording(tmp_path, writer.trace())
    assert [(e.kind, e.duration_ps) for e in found.events if e.rank == 0] == [("compute", 50 * US)]
    assert list(found.skipped.values()) == [1]


def test_times_keep_their_digits(tmp_path: Path) -> None:
    writer = Writer(0, 1)
    writer.kernel("a", 1712195495505631.501, 1.001)
    writer.kernel("b", 0, 2)
    text = json.dumps(writer.trace()).replace('"ts": 0', '"ts": 1712195495505633.777')
    path = tmp_path / "t.json"
    path.write_text(text.replace("1712195495505631.5,", "1712195495505631.501,"))
    found = read(str(path))
    assert [(e.start_ps, e.duration_ps) for e in found.events] == [
        (0, 1_001_000),
        (2_276_000, 2_000_000),
    ]


def test_devices_have_streams_of_their_own(tmp_path: Path) -> None:
    writer = Writer(0, 1)
    writer.kernel("a", 1000, 100)
    writer.kernel("b", 1000, 100)
    writer.events[-1]["args"]["device"] = writer.events[-2]["args"]["device"] = 1
    next(e for e in writer.events if e["name"] == "b")["args"]["device"] = 1
    found = recording(tmp_path, writer.trace())
    assert {e.stream for e in found.events} == {"0/7", "1/7"}
    assert any("2 devices" in text for text in found.assumed)
