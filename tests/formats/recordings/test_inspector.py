"""What NCCL's Inspector wrote of jobs: communicators, calls, measured times, and what damage does to them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusim.base.errors import InputError
from clusim.formats.recordings.inspector import read
from clusim.formats.recordings.kinds import kind_of
from clusim.formats.recordings.model import ABSENT, Event, Recording
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from support.covering import examples
from support.realfiles import CORPUS

SHIPPED = Path(__file__).resolve().parents[3] / "traces" / "inspector-8ranks.jsonl"
MIB = 1 << 20
ORIGIN = 1_760_000_000_000_000

CALLS = (
    ("AllReduce", 0, 64 * MIB, 278), ("AllReduce", 1, 8 * MIB, 64), ("ReduceScatter", 0, 8 * MIB, 173),
    ("AllGather", 0, 8 * MIB, 176), ("Broadcast", 0, 16 * MIB, 250), ("AllReduce", 2, 64 * MIB, 279),
)  # fmt: skip
"""Function, number, size per rank, time [us]."""


IDENT = "0x51e0c0ffee"
"""The communicator of all."""


def header(rank: int, size: int = 8, ident: str = IDENT, nodes: int = 1) -> dict[str, Any]:
    return {"id": ident, "rank": rank, "n_ranks": size, "nnodes": nodes}


def about(pid: int, when: int = ORIGIN, host: str = "node-a") -> dict[str, Any]:
    return {
        "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": when, "hostname": host, "pid": pid,
    }  # fmt: skip


def coll(name: str, number: int, size: int, took: int, start: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {
        "coll": name, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": took,
        "coll_timing_source": "kernel_gpu",
    }  # fmt: skip
    if start:
        kernels = [
            {"channel_id": c, "kernel_start_ts": start + c, "kernel_stop_ts": start + took}
            for c in range(2)
        ]
        found["event_trace_ts"] = {
            "coll_start_ts": start - 50,
            "coll_stop_ts": start - 45,
            "kernel_events": kernels,
        }
    return {"coll_perf": found}


def p2p(name: str, number: int, peer: int, size: int, took: int = 50) -> dict[str, Any]:
    return {
        "p2p_perf": {
            "p2p": name, "p2p_sn": number, "p2p_peer": peer, "p2p_msg_size_bytes": size,
            "p2p_exec_time_us": took,
        }
    }  # fmt: skip


def job(*, verbose: bool = True) -> str:
    """Return eight ranks of one machine, a process each, as the plugin writes them into one directory."""
    lines = []
    for rank in range(8):
        when = ORIGIN + 100
        for name, number, size, took in CALLS:
            start = when + rank if verbose else 0
            row = {"header": header(rank), "metadata": about(4000 + rank, when + took + 20)}
            lines.append(json.dumps(row | coll(name, number, size, took - rank, start)))
            when += took + 100
    return "\n".join(lines) + "\n"


def load(tmp_path: Path, text: str, name: str = "inspector.json") -> Recording:
    path = tmp_path / name
    path.write_text(text)
    return read(path)


def row(rank: int, call: dict[str, Any], **more: Any) -> str:
    base = {"header": header(rank), "metadata": about(4000 + rank)}
    return json.dumps(base | call | more)


def survives(tmp_path: Path, text: str) -> Recording | None:
    """Read damaged text; None if it is refused in one line."""
    try:
        return load(tmp_path, text)
    except InputError as error:
        if "\n" in str(error):
            raise
        return None


def essence(event: Event) -> tuple[Any, ...]:
    return (
        event.kind,
        event.rank,
        event.group,
        event.operation,
        event.bytes,
        event.peer,
        event.duration_ps,
    )


def test_the_shipped_sample_is_the_one_made_here() -> None:
    assert SHIPPED.read_text() == job()
    assert kind_of(str(SHIPPED)) == "inspector"


def test_events() -> None:
    found = read(SHIPPED)
    assert (found.num_ranks, len(found.events), found.hosts) == (8, 48, ["node-a"] * 8)
    assert [group.ranks for group in found.groups] == [tuple(range(8))]
    own = [event for event in found.events if event.rank == 3]
    assert [(e.operation, e.bytes) for e in own] == [
        ("allreduce", 64 * MIB), ("allreduce", 8 * MIB), ("reduce_scatter", 64 * MIB),
        ("all_gather", 64 * MIB), ("broadcast", 16 * MIB), ("allreduce", 64 * MIB),
    ]  # fmt: skip
    assert [e.duration_ps for e in own] == [(took - 3) * 10**6 for *_, took in CALLS]
    assert own[0].start_ps == 3 * 10**6  # the first kernel of all started on rank 0
    assert own[1].start_ps == (278 + 100 + 3) * 10**6
    assert own[4].root == 0
    assert own[0].channels == 2
    assert {e.sequence for e in found.events if e.operation == "broadcast"} == {own[4].sequence}
    assert not found.skipped


def test_predicted_stands_beside_measured() -> None:
    request = ReplayRequest((str(SHIPPED),), topology="dgx-h100", granularity=1 << 13)
    found = replay(request)
    calls = {(call.operation, call.bytes): call for call in found.calls}
    big = calls["allreduce", 64 * MIB]
    assert big.count == 2
    # The rank that came last waited least: 271 and 272 us.
    assert big.measured_us == pytest.approx(271.5)
    assert big.error is not None
    # nccl-tests take 314 to 324 us for it on four such machines, launch included: this job's buffers may have been
    # registered, which spares NVLS its copies.
    assert 0.1 < big.error < 0.3
    assert found.recorded_ps == (sum(took + 100 for *_, took in CALLS) - 100) * 10**6
    # What was recorded as pauses stays: 100 us between the end of a call and the start of the next.
    assert found.total_ps > 500 * 10**6
    assert (
        replay(ReplayRequest((str(SHIPPED),), topology="dgx-h100", gap="none")).total_ps
        < found.total_ps
    )


def test_recorded_time_is_that_of_the_calls_that_are_replayed() -> None:
    request = ReplayRequest((str(SHIPPED),), topology="dgx-h100", calls=1, granularity=1 << 14)
    assert replay(request).recorded_ps == 278 * 10**6


def test_without_a_trace_of_events_calls_follow_each_other(tmp_path: Path) -> None:
    found = load(tmp_path, job(verbose=False))
    assert all(event.start_ps == ABSENT for event in found.events)
    assert any("NCCL_INSPECTOR_DUMP_VERBOSE" in text for text in found.assumed)
    # The order of functions is that of their dumps.
    assert [e.operation for e in found.events if e.rank == 0][2:5] == [
        "reduce_scatter",
        "all_gather",
        "broadcast",
    ]


@pytest.mark.parametrize(
    "arrange",
    [
        lambda rows: "[" + ",\n".join(rows) + "]",
        lambda rows: "".join(rows),
        lambda rows: "\n\n".join(json.dumps(json.loads(r), indent=2) for r in rows),
        lambda rows: "[\n" + ",\n".join(rows) + ",\n{}]",
    ],
)
def test_every_arrangement_of_objects(tmp_path: Path, arrange: Callable[[list[str]], str]) -> None:
    rows = job().splitlines()
    found = load(tmp_path, arrange(rows))
    expected = read(SHIPPED)
    assert [essence(e) for e in found.events] == [essence(e) for e in expected.events]


def test_a_directory_of_compressed_files_of_processes(tmp_path: Path) -> None:
    rows = job().splitlines()
    for rank in range(8):
        own = "\n".join(rows[rank * len(CALLS) : (rank + 1) * len(CALLS)])
        with gzip.open(tmp_path / f"node-a-pid{4000 + rank}.json.gz", "wt") as stream:
            stream.write(own)
    found = read(tmp_path)
    assert sorted(essence(e) for e in found.events) == sorted(
        essence(e) for e in read(SHIPPED).events
    )
    assert kind_of(str(tmp_path)) == "inspector"


def test_newer_files_name_the_communicator_once(tmp_path: Path) -> None:
    stats = {"coll_records": 2, "p2p_records": 0, "coll_dropped_total": 7}
    lines = []
    for rank in range(2):
        lines.append(row(rank, {"dump_stats": stats}, header=header(rank, 2)))
        lines += [json.dumps(coll("AllReduce", n, MIB, 30)) for n in range(2)]
    found = load(tmp_path, "\n".join(lines))
    assert [(e.rank, e.bytes) for e in found.events if e.sequence == 1] == [(0, MIB), (1, MIB)]
    assert "the plugin itself dropped 14 calls" in " ".join(found.assumed)


def test_communicators_are_joined_by_their_processes(tmp_path: Path) -> None:
    """Two machines of two GPUs: a communicator of all, one per machine, and one across; one rank is not recorded."""
    lines = []
    for rank in range(4):
        where = about(70 + rank % 2, host=f"node-{'ab'[rank // 2]}")
        groups = [("all", rank, 4, 2), (f"tp{rank // 2}", rank % 2, 2, 1)]
        if rank != 3:
            groups.append((f"dp{rank % 2}", rank // 2, 2, 2))
        lines += [
            json.dumps({"header": header(own, size, ident, nodes), "metadata": where} | coll("AllReduce", 0, MIB, 90))
            for ident, own, size, nodes in groups
        ]  # fmt: skip
    found = load(tmp_path, "\n".join(lines))
    assert found.num_ranks == 4
    assert {group.name: group.ranks for group in found.groups} == {
        "all": (0, 1, 2, 3), "tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3),
    }  # fmt: skip
    assert found.hosts == ["node-a", "node-a", "node-b", "node-b"]
    replayed = replay(ReplayRequest((str(tmp_path / "inspector.json"),), topology="dgx-h100"))
    assert replayed.machines == 2
    assert {comm.graphs: comm.machines for comm in replayed.communicators}["tp1"] == 1


def test_one_rank_of_many_speaks_for_its_peers(tmp_path: Path) -> None:
    line = json.dumps(
        {"header": header(9, 16, nodes=2), "metadata": about(5)} | coll("AllGather", 3, MIB, 80)
    )
    found = load(tmp_path, line)
    assert (found.num_ranks, len(found.events), found.events[0].bytes) == (16, 16, 16 * MIB)
    assert found.hosts == ["machine 0"] * 8 + ["machine 1"] * 8
    assert any("15 of 16 ranks did not record" in text for text in found.assumed)


def test_one_process_with_all_gpus(tmp_path: Path) -> None:
    lines = [row(rank, coll("AllReduce", 0, MIB, 30), metadata=about(1)) for rank in range(8)]
    found = load(tmp_path, "\n".join(lines))
    assert sorted(event.rank for event in found.events) == list(range(8))


def test_messages_both_ways_do_not_wait_for_each_other(tmp_path: Path) -> None:
    lines = []
    for rank in range(2):
        lines += [
            row(rank, p2p("Send", n, 1 - rank, MIB), header=header(rank, 2)) for n in range(3)
        ]
        lines += [
            row(rank, p2p("Recv", n, 1 - rank, MIB), header=header(rank, 2)) for n in range(3)
        ]
    found = load(tmp_path, "\n".join(lines))
    assert [(e.kind, e.rank, e.peer, e.sequence) for e in found.events if e.rank == 0 and e.kind == "recv"] == [
        ("recv", 0, 1, 0), ("recv", 0, 1, 1), ("recv", 0, 1, 2),
    ]  # fmt: skip
    replayed = replay(ReplayRequest((str(tmp_path / "inspector.json"),), topology="dgx-h100"))
    assert replayed.total_calls == 6
    assert replayed.calls[0].measured_us == 50


def refuse(tmp_path: Path, text: str, *said: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("inspector.json", *said):
        assert part in message


def test_contradictions_name_file_and_line(tmp_path: Path) -> None:
    one, call = row(0, coll("AllReduce", 0, MIB, 30)), coll("AllReduce", 1, MIB, 30)
    refuse(tmp_path, f"{one}\n{row(0, call, metadata=about(9))}", ":2", "rank 0", "node-a:9")
    refuse(tmp_path, f"{one}\n\n{row(1, call, header=header(1, 4))}", ":3", "has 4 ranks, and 8")


def test_nothing_to_simulate_says_why(tmp_path: Path) -> None:
    refuse(tmp_path, row(0, coll("AllFoo", 0, MIB, 30)), "1 x calls of 'AllFoo'", ":1)")
    refuse(tmp_path, row(9, coll("AllReduce", 0, MIB, 30)), "a rank below n_ranks")
    refuse(tmp_path, json.dumps(coll("AllReduce", 0, MIB, 30)), "without a header")
    refuse(tmp_path, row(0, coll("AllReduce", 0, 1 << 60, 30)), "without number, size or peer")
    refuse(tmp_path, '{"coll_perf": {"coll":', "not a complete JSON object", ":1)")
    refuse(tmp_path, '{"a":' * 100_000, "not a complete JSON object")


def test_what_is_damaged_is_counted_and_the_rest_read(tmp_path: Path) -> None:
    rows = job().splitlines()
    rows[5] = rows[5][:70]
    rows[9] = rows[8]
    found = load(tmp_path, "\n".join(rows))
    assert len(found.events) == 46
    assert sorted((n, text.split(" (")[0]) for text, n in found.skipped.items()) == [
        (1, "calls that occur twice"),
        (1, "texts that are not a complete JSON object"),
    ]
    assert any("inspector.json:6" in text for text in found.skipped)
    request = ReplayRequest(
        (str(tmp_path / "inspector.json"),), topology="dgx-h100", granularity=1 << 16
    )
    assert replay(request).total_calls == len(CALLS)


def test_a_cut_gzip_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "inspector.json.gz"
    path.write_bytes(gzip.compress(job().encode())[:-20])
    with pytest.raises(InputError, match=r"damaged or cut"):
        read(path)


WHOLE = {essence(e) for e in read(SHIPPED).events}


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_invents_no_call(data: st.DataObject, tmp_path: Path) -> None:
    rows = job().splitlines()[: 2 * len(CALLS)]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(rows) - 1))
        line = rows[at]
        cut = data.draw(st.integers(0, len(line)))
        how = data.draw(st.sampled_from(["drop", "cut", "swap", "double", "junk"]))
        if how == "drop":
            rows[at] = ""
        elif how == "cut":
            rows[at] = line[:cut]
        elif how == "swap":
            other = data.draw(st.integers(0, len(rows) - 1))
            rows[at], rows[other] = rows[other], rows[at]
        elif how == "double":
            rows.insert(at, line)
        else:
            rows[at] = (
                line[:cut]
                + data.draw(st.sampled_from(["}", "{", '"', "[", "\0", "\x80", "]]"]))
                + line[cut:]
            )
    text = "\n".join(rows)
    found = survives(tmp_path, text)
    if found is None:
        return
    # Ranks that did not record have the durations of the one they are like; another name of a communicator
    # cannot be told from another communicator, which may be one of further ranks.
    renamed = set(re.findall(r'"id": "([^"]*)"', text)) - {IDENT}
    if not renamed:
        assert {e.rank for e in found.events} <= {rank for _, rank, *_ in WHOLE}
    first = 3 if renamed else 2
    bare = {(e[0], *e[first:6]) for e in WHOLE}
    assert {(essence(e)[0], *essence(e)[first:6]) for e in found.events} <= bare


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.sampled_from([None, -1, 1e400, 10**40, "x", [], {}, True, 1 << 62]), key=st.sampled_from(
    ["header", "id", "rank", "n_ranks", "nnodes", "metadata", "hostname", "pid", "dump_timestamp_us", "coll_perf",
     "coll", "coll_sn", "coll_msg_size_bytes", "coll_exec_time_us", "event_trace_ts", "kernel_events",
     "kernel_start_ts"]
))  # fmt: skip
def test_wrong_values_are_refused_or_counted(value: Any, key: str, tmp_path: Path) -> None:
    def spoilt(item: Any) -> Any:
        if isinstance(item, dict):
            return {k: value if k == key else spoilt(v) for k, v in item.items()}
        return [spoilt(v) for v in item] if isinstance(item, list) else item

    rows = job().splitlines()
    rows[0] = json.dumps(spoilt(json.loads(rows[0])))
    found = survives(tmp_path, "\n".join(rows))
    if found is None:
        return
    assert len(found.events) in (47, 48)


def test_examples_of_the_documentation() -> None:
    sizes = {"nccl_profiler_inspector_0": 16 << 30, "nccl_profiler_inspector_1": 16 << 30}
    for name, size in sizes.items():
        found = read(f"{CORPUS}/profiler/{name}.json")
        assert {event.bytes for event in found.events} == {size}
        assert found.num_ranks == 8
    path = f"{CORPUS}/profiler/nccl_exporter_example_0.json"
    (call,) = replay(ReplayRequest((path,), topology="dgx-h100")).calls
    assert (call.waits, call.error) == (True, None)  # one rank of 32 recorded it
