"""Chakra execution traces: the wire format, dependencies, which calls belong together, communicators, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings import Event, Recording
from clusim.formats.recordings.chakra import read
from clusim.formats.recordings.chakra_schema import attributes, message_class
from clusim.formats.recordings.kinds import kind_of
from clusim.jobs.ready import sort_by_start
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from formats.recordings.chakra_traces import SAMPLE, coll, comp, files, message, node, sample, trace

US = 1_000_000
MIB = 1 << 20
START = 1
"""What a kernel takes beyond its computing [ps]."""


def job(folder: Path, *ranks: bytes, **more: Any) -> Recording:
    return sort_by_start(read(files(folder, *ranks), **more))


def same(count: int, *nodes: bytes) -> list[bytes]:
    return [trace(*nodes)] * count


def named(found: Recording, rank: int, name: str) -> Event:
    (event,) = [e for e in found.events if (e.rank, e.name) == (rank, name)]
    return event


def after(found: Recording, event: Event) -> set[str]:
    return {found.events[d].name for d in event.deps}


def total(folder: Path, *ranks: bytes) -> int:
    return replay(ReplayRequest((files(folder, *ranks),), topology="dgx-h100")).total_ps


def test_the_sample_is_what_its_writer_writes() -> None:
    written = {path.name: path.read_bytes() for path in SAMPLE.iterdir()}
    assert written == sample()
    assert sum(map(len, written.values())) < 10_000


def test_the_sample_is_read_as_it_says() -> None:
    found = read(str(SAMPLE))
    assert (found.kind, found.num_ranks, found.skipped) == ("chakra", 4, {})
    assert {(g.name, g.ranks) for g in found.groups} == {
        ("group 1", (0, 1)),
        ("group 2", (2, 3)),
        ("all ranks", (0, 1, 2, 3)),
    }
    for rank in range(4):
        forward, backward = named(found, rank, "forward"), named(found, rank, "backward")
        assert (forward.kind, forward.duration_ps) == ("compute", 150 * US)
        assert forward.stream == backward.stream
        reduced = named(found, rank, "forward sum")
        assert (reduced.operation, reduced.bytes) == ("allreduce", 8 * MIB)
        assert found.groups[reduced.group].ranks == ((0, 1) if rank < 2 else (2, 3))
        assert after(found, reduced) == {"forward"}
        assert named(found, rank, "load batch").kind == "delay"
        optimizer = named(found, rank, "optimizer")
        assert (optimizer.flops, optimizer.mem_bytes) == (400_000_000, 200_000_000)
        assert named(found, rank, "end of step").operation == "barrier"
    assert after(found, named(found, 2, "forward")) == {"load batch", "n2"}
    send = named(found, 0, "n5")
    assert (send.kind, send.peer, send.tag, send.bytes) == ("send", 2, 1, 8 * MIB)
    assert send.where.endswith("job.0.et: node 5")


def test_a_file_encoded_by_hand_is_read(tmp_path: Path) -> None:
    attribute = b"\x52\x0f\x0a\x09comm_size\x48\x80\x80\x40"  # field 10: name, int64 1048576
    body = b"\x08\x05\x12\x03sum\x18\x07" + attribute
    data = b"\x07\x0a\x05" + b"0.0.4" + bytes([len(body)]) + body
    (event, *_) = job(tmp_path, data, data).events
    assert (event.name, event.operation, event.bytes) == ("sum", "allreduce", MIB)
    assert event.where.endswith("node 5")


def test_every_type_of_attribute_is_understood() -> None:
    kinds = ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
             "sfixed32", "sfixed64", "bool", "string", "bytes")  # fmt: skip
    number = 3
    node_class, attribute_class = message_class("Node"), message_class("AttributeProto")
    for kind in kinds:
        fields = attribute_class.DESCRIPTOR.fields_by_name
        assert (fields[f"{kind}_val"].number, fields[f"{kind}_list"].number) == (number, number + 1)
        number += 2
    found = node_class()
    for kind in kinds:
        value = b"x" if kind in ("string", "bytes") else 1
        setattr(found.attr.add(name=f"{kind}_one".encode()), f"{kind}_val", value)
        getattr(found.attr.add(name=f"{kind}_two".encode()), f"{kind}_list").values.extend(
            [value] * 2
        )
    values = attributes(node_class.FromString(found.SerializeToString()))
    assert len(values) == 30
    assert (values["string_one"], values["sint64_two"], values["bool_one"]) == ("x", [1, 1], True)


@pytest.mark.parametrize(
    "field", ["int32_val", "uint64_val", "sint64_val", "fixed32_val", "double_val"]
)
def test_sizes_may_have_any_type(tmp_path: Path, field: str) -> None:
    value = 4096.0 if field == "double_val" else 4096
    rows = node(1, "COMM_COLL_NODE", comm_type=0, comm_size=(field, value))
    assert [e.bytes for e in job(tmp_path, *same(2, rows)).events] == [4096, 4096]


@pytest.mark.parametrize(
    ("name", "operation", "size"),
    [
        ("ALL_REDUCE", "allreduce", 1024),
        ("ALL_GATHER", "all_gather", 4096),
        ("REDUCE_SCATTER", "reduce_scatter", 1024),
        ("REDUCE_SCATTER_BLOCK", "reduce_scatter", 1024),
        ("ALL_TO_ALL", "alltoall", 1024),
        ("BROADCAST", "broadcast", 1024),
        ("REDUCE", "reduce", 1024),
        ("GATHER", "gather", 4096),
        ("SCATTER", "scatter", 1024),
        ("BARRIER", "barrier", 1024),
    ],
)
def test_comm_size_is_what_a_rank_gives(
    tmp_path: Path, name: str, operation: str, size: int
) -> None:
    found = job(tmp_path, *same(4, coll(1, name, 1024)))
    assert {(e.operation, e.bytes) for e in found.events} == {(operation, size)}
    rooted = operation in ("broadcast", "reduce", "gather", "scatter")
    assert {e.root for e in found.events} == {0 if rooted else -1}
    assert any("root" in line for line in found.assumed) == rooted
    if operation != "barrier":
        assert replay(ReplayRequest((str(tmp_path),), topology="dgx-h100")).total_ps > 0


def test_the_order_of_nodes_in_the_file_does_not_matter(tmp_path: Path) -> None:
    rows = [
        comp(1, 5),
        coll(2, "ALL_REDUCE", 64, (1,)),
        comp(3, 7, (2,)),
        coll(4, "ALL_GATHER", 8, (3, 1)),
    ]
    first = job(tmp_path, *same(2, *rows))
    assert job(tmp_path, *same(2, *reversed(rows))) == first
    assert [e.name for e in first.events if e.rank == 0] == ["n1", "n2", "n3", "n4"]
    assert after(first, named(first, 1, "n4")) == {"n3", "n1"}


def test_dependencies_by_control_count_too(tmp_path: Path) -> None:
    found = job(tmp_path, *same(2, comp(1, 5), coll(2, "ALL_REDUCE", 64, ctrl=(1,))))
    assert after(found, named(found, 0, "n2")) == {"n1"}


def test_nodes_that_do_nothing_hand_on_what_they_wait_for(tmp_path: Path) -> None:
    empty = [node(2, "INVALID_NODE", (1,)), node(3, "METADATA_NODE", (2,)), comp(4, 0, (3,))]
    found = job(tmp_path, *same(2, comp(1, 5), *empty, coll(5, "ALL_REDUCE", 64, (4,))))
    assert len(found.events) == 4
    assert after(found, named(found, 0, "n5")) == {"n1"}


def test_many_are_joined_by_one_mark(tmp_path: Path) -> None:
    wide = [comp(at, 1, stream=at) for at in range(1, 31)]
    ends = [coll(at, "ALL_REDUCE", 64, (31,)) for at in range(32, 62)]
    join = node(31, "INVALID_NODE", tuple(range(1, 31)), name="all")
    found = job(tmp_path, *same(2, *wide, join, *ends))
    assert len(named(found, 0, "all").deps) == 30
    assert after(found, named(found, 0, "n40")) == {"all"}


def test_a_gpu_computes_one_node_at_a_time(tmp_path: Path) -> None:
    assert total(tmp_path, trace(comp(1, 30), comp(2, 50))) == 80 * US + 2 * START


def test_a_cpu_computes_beside_the_gpu(tmp_path: Path) -> None:
    host = node(2, "COMP_NODE", us=50, is_cpu_op=True)
    assert total(tmp_path, trace(comp(1, 30), host)) == 50 * US
    slow = node(3, "COMP_NODE", (2,), us=5, is_cpu_op=True)
    assert total(tmp_path, trace(comp(1, 30), host, slow)) == 55 * US


def test_computing_overlaps_what_it_does_not_wait_for(tmp_path: Path) -> None:
    alone = total(tmp_path, *same(2, coll(1, "ALL_REDUCE", MIB)))
    assert 0 < alone < 100 * US
    beside = total(tmp_path, *same(2, coll(1, "ALL_REDUCE", MIB), comp(2, 500)))
    assert beside == pytest.approx(500 * US, rel=0.02)
    behind = total(tmp_path, *same(2, coll(1, "ALL_REDUCE", MIB), comp(2, 500, (1,))))
    assert behind == pytest.approx(500 * US + alone, rel=0.02)


def test_a_ready_node_is_not_held_by_one_that_waits(tmp_path: Path) -> None:
    """By numbers, 2 would come before 3; but it waits for a long call, meanwhile 3 can run."""
    rows = [coll(1, "ALL_REDUCE", 64 * MIB), comp(2, 100, (1,)), comp(3, 50)]
    found = job(tmp_path, *same(2, *rows))
    order = [e.name for e in found.events if e.rank == 0 and e.kind == "compute"]
    assert order == ["n3", "n2"]


def test_calls_of_a_communicator_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    rows = [comp(1, 900), coll(2, "ALL_REDUCE", 64, (1,)), coll(3, "ALL_GATHER", 64)]
    found = job(tmp_path, *same(2, *rows))
    calls = [(e.name, e.sequence) for e in found.events if e.rank == 1 and e.kind == "collective"]
    assert calls == [("n2", 0), ("n3", 1)]
    assert len({e.stream for e in found.events if e.kind == "collective"}) == 1


def test_numbers_of_nodes_need_not_agree_between_ranks(tmp_path: Path) -> None:
    found = job(
        tmp_path,
        trace(coll(1, "ALL_REDUCE", 64), coll(2, "ALL_REDUCE", 128, (1,))),
        trace(coll(70, "ALL_REDUCE", 64), coll(80, "ALL_REDUCE", 128, (70,))),
    )
    assert named(found, 0, "n2").sequence == named(found, 1, "n80").sequence == 1
    assert not found.assumed


def test_calls_in_different_orders_are_matched_by_what_they_are(tmp_path: Path) -> None:
    found = job(
        tmp_path,
        trace(coll(1, "ALL_REDUCE", 64), coll(2, "ALL_REDUCE", 128)),
        trace(coll(1, "ALL_REDUCE", 128), coll(2, "ALL_REDUCE", 64)),
    )
    assert named(found, 0, "n1").sequence == named(found, 1, "n2").sequence
    assert named(found, 0, "n2").sequence == named(found, 1, "n1").sequence
    assert any("a different order of calls" in line for line in found.assumed)
    assert replay(ReplayRequest((str(tmp_path),), topology="dgx-h100")).total_calls == 2


def test_ranks_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    ranks = [
        trace(coll(1, "ALL_REDUCE", 64), coll(2, "ALL_GATHER", 128, (1,))),
        trace(coll(1, "ALL_GATHER", 128), coll(2, "ALL_REDUCE", 64, (1,))),
    ]
    with pytest.raises(
        InputError, match=r"job\.0\.et: node 1: allreduce 'n1' of rank 0 never gets done"
    ):
        job(tmp_path, *ranks)


def test_a_circle_of_nodes_is_refused(tmp_path: Path) -> None:
    rows = [comp(1, 5, (3,)), comp(2, 5, (1,)), comp(3, 5, (2,)), comp(4, 5, (1,))]
    with pytest.raises(
        InputError, match=r"job\.0\.et: node 1: nodes wait for each other in a circle: 1 -> 3 -> 2"
    ):
        job(tmp_path, *same(2, *rows))
    with pytest.raises(InputError, match=r"circle: 1 -> 1"):
        job(tmp_path, *same(2, comp(1, 5, (1,))))


def test_a_circle_by_control_only_is_cut(tmp_path: Path) -> None:
    found = job(tmp_path, *same(2, comp(1, 5, ctrl=(2,)), coll(2, "ALL_REDUCE", 64, (1,))))
    assert after(found, named(found, 0, "n2")) == {"n1"}
    assert any("cyclic control dependencies" in line for line in found.assumed)


def test_dependencies_on_missing_nodes_are_counted(tmp_path: Path) -> None:
    found = job(tmp_path, *same(2, coll(2, "ALL_REDUCE", 64, (1, 99), ctrl=(1,))))
    assert found.skipped == {"dependencies on nodes that are not in the file": 6}


def test_a_node_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"job\.0\.et: node 1 occurs twice"):
        job(tmp_path, *same(2, comp(1, 5), comp(1, 6)))


def test_messages_meet_by_pair_and_tag(tmp_path: Path) -> None:
    found = job(
        tmp_path,
        trace(*(message(at, "send", 1, 64 * at, tag=at % 2) for at in (1, 2, 3))),
        trace(*(message(at, "recv", 0, 64 * at, tag=at % 2) for at in (1, 3, 2))),
    )
    keys = {(e.kind, e.tag, e.sequence): e.bytes for e in found.events}
    for tag, sequence, size in ((1, 0, 64), (0, 0, 128), (1, 1, 192)):
        assert keys["send", tag, sequence] == keys["recv", tag, sequence] == size
    assert replay(ReplayRequest((str(tmp_path),), topology="dgx-h100")).total_calls == 3


def ring(size: int, num_bytes: int, us: int) -> list[bytes]:
    """Return a ring all-reduce as ASTRA-sim's custom collectives have it: every send stands before its receive."""
    found = []
    for me in range(size):
        rows: list[bytes] = []
        for step in range(2 * size - 2):
            before = (len(rows) - 1,) if rows else ()
            rows.append(message(len(rows), "send", (me + 1) % size, num_bytes, step, before))
            before = (len(rows) - 1,)
            rows.append(message(len(rows), "recv", (me - 1) % size, num_bytes, step, before))
            if step < size - 1:
                rows.append(comp(len(rows), us, (len(rows) - 1,)))
        found.append(trace(*rows))
    return found


def test_a_ring_whose_ranks_all_send_before_they_receive_takes_its_steps(tmp_path: Path) -> None:
    """2(N-1) messages and N-1 additions behind each other; the ranks do them side by side."""
    size, num_bytes, us = 8, 128 << 10, 5
    lone = tmp_path / "lone"
    ends = [message(0, "send", 1, num_bytes)], [message(0, "recv", 0, num_bytes)]
    lone.mkdir()
    one = total(lone, *(trace(*rows) for rows in ends))
    whole = total(tmp_path, *ring(size, num_bytes, us))
    expected = 2 * (size - 1) * one + (size - 1) * (us * US + START)
    assert expected <= whole <= expected * 1.02


def two_stages(us: int = 0) -> list[bytes]:
    """Return a message that its receiver asks for 300 us after it was sent; recorded ends took `us`."""
    ends: dict[str, Any] = {"comm_size": 32 * MIB, "comm_tag": 0, "us": us}
    first = [
        node(1, "COMM_SEND_NODE", comm_dst=1, **ends),
        comp(2, 100, (1,), name="next"),
    ]
    last = [
        comp(1, 300, name="busy"),
        node(2, "COMM_RECV_NODE", (1,), comm_src=0, **ends),
        comp(3, 50, (2,), name="use"),
    ]
    return [trace(*first), trace(*last)]


def test_a_message_goes_when_it_is_sent_unless_nccl_sent_it(tmp_path: Path) -> None:
    """It crosses while its receiver computes, on some of its SMs; NCCL, whose times are recorded, waits for it."""
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    ends = (("SEND", "comm_dst"), ("RECV", "comm_src"))
    alone = total(
        recorded,
        *(
            trace(node(1, f"COMM_{kind}_NODE", us=9, comm_size=32 * MIB, **{end: 1 - at}))
            for at, (kind, end) in enumerate(ends)
        ),
    )
    assert 90 * US < alone < 250 * US
    assert total(tmp_path, *two_stages()) < 350 * US + alone * 0.4
    assert total(recorded, *two_stages(9)) > 350 * US + alone * 0.4
    found = job(tmp_path, *two_stages())
    assert all(event.eager for event in found.events if event.kind in ("send", "recv"))
    assert any("is transferred when it is sent, as in ASTRA-sim" in line for line in found.assumed)
    assert not any(event.eager for event in job(recorded, *two_stages(9)).events)


def test_a_receive_without_a_send_in_reach_is_still_a_contradiction(tmp_path: Path) -> None:
    ends = [
        trace(message(1, "recv", peer, 64, tag=peer), message(2, "send", peer, 64, 1 - peer, (1,)))
        for peer in (1, 0)
    ]
    with pytest.raises(InputError, match=r"recv 'n1' of rank 0 never gets done: ranks wait"):
        job(tmp_path, *ends)


def test_messages_without_or_with_wrong_ends_are_told(tmp_path: Path) -> None:
    rows = [coll(1, "ALL_REDUCE", 64), node(2, "COMM_SEND_NODE", comm_size=5)]
    assert job(tmp_path, *same(2, *rows)).skipped == {"send nodes without comm_dst": 2}
    with pytest.raises(
        InputError, match=r"node 2: send of rank 0 with rank 7; the job has ranks 0\.\.1"
    ):
        job(tmp_path, trace(rows[0], message(2, "send", 7, 5)), trace(rows[0]))


GROUPS = '[\'[{"pg_name": "0", "ranks": []}, {"pg_name": "7", "ranks": [0, 2]}]\']'


def test_communicators_come_from_metadata_of_pytorch(tmp_path: Path) -> None:
    rows = [
        node(1, "METADATA_NODE", name="## process_group:init ##", inputs=GROUPS),
        coll(2, "ALL_REDUCE", 64, (1,), pg_name="7"),
        coll(3, "ALL_GATHER", 64, (2,), pg_name="0"),
    ]
    other = trace(coll(3, "ALL_GATHER", 64))
    found = job(tmp_path, trace(*rows), other, trace(*rows))
    assert {(g.name, g.ranks) for g in found.groups} == {
        ("group 7", (0, 2)),
        ("all ranks", (0, 1, 2)),
    }
    assert named(found, 2, "n3").bytes == 192
    with pytest.raises(
        InputError, match=r"rank 1 calls allreduce on group '7', whose ranks are 0, 2"
    ):
        job(tmp_path, trace(*rows), trace(*rows), trace(*rows))


def test_unknown_communicators_are_all_ranks_and_said(tmp_path: Path) -> None:
    found = job(tmp_path, *same(2, coll(1, "ALL_REDUCE", 64, pg_name="12")))
    assert found.groups[0].ranks == (0, 1)
    assert any("group '12' is not defined: all ranks assumed" in line for line in found.assumed)


def test_unknown_communicators_are_the_ranks_that_call_them(tmp_path: Path) -> None:
    def of(name: str) -> bytes:
        return trace(coll(1, "ALL_REDUCE", 64, pg_name=name))

    found = job(tmp_path, of("a"), of("b"), of("a"), of("b"))
    assert {(g.name, g.ranks) for g in found.groups} == {("group a", (0, 2)), ("group b", (1, 3))}
    assert any("the ranks that call it, 0, 2 assumed;" in line for line in found.assumed)


def test_a_table_of_groups_beside_a_prefix_is_read(tmp_path: Path) -> None:
    rows = same(4, coll(1, "ALL_REDUCE", 64, pg_name="1"))
    files(tmp_path, rows[0], trace(comp(1, 5)), rows[0], trace(comp(1, 5)))
    (tmp_path / "comm_group.json").write_text('{"1": [0, 2]}')
    for name in (str(tmp_path), str(tmp_path / "job"), str(tmp_path / "job.")):
        assert read(name).groups[0].ranks == (0, 2)
        assert kind_of(name) == "chakra"


def test_dimensions_of_a_network_are_machines_or_said(tmp_path: Path) -> None:
    def over(*dims: bool) -> bytes:
        return trace(coll(1, "ALL_REDUCE", 64, involved_dim=list(dims)))

    found = job(tmp_path, *[over(True, False)] * 4, num_ranks=4, machine_ranks=2)
    assert {g.ranks for g in found.groups} == {(0, 1), (2, 3)}
    found = job(tmp_path, *[over(False, True)] * 4, num_ranks=4, machine_ranks=2)
    assert {g.ranks for g in found.groups} == {(0, 2), (1, 3)}
    found = job(tmp_path, *[over(True, False, False)] * 4, num_ranks=4, machine_ranks=2)
    assert {g.ranks for g in found.groups} == {(0, 1, 2, 3)}
    assert any("involved_dim" in line for line in found.assumed)
    assert not job(tmp_path, *[over(True, True)] * 4).assumed


def test_the_time_a_call_took_is_kept_to_compare(tmp_path: Path) -> None:
    rows = coll(1, "ALL_REDUCE", MIB, us=40)
    assert {e.duration_ps for e in job(tmp_path, *same(2, rows)).events} == {40 * US}
    (call,) = replay(ReplayRequest((str(tmp_path),), topology="dgx-h100")).calls
    assert call.measured_us == 40
    assert 0 < call.kernel_ps < 40 * US
