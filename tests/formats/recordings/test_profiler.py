"""Traces of NCCL's example profiler plugin: every release's way to write them, and what damage does to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusim.base.errors import InputError
from clusim.formats.recordings.kinds import kind_of
from clusim.formats.recordings.model import ABSENT, Event, Recording
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from clusim_formats.recordings.profiler import read
from support.covering import examples
from support.realfiles import CORPUS

SHIPPED = Path(__file__).resolve().parents[3] / "traces" / "profiler-2ranks"
HASH = 0x1B2C3D4E5F60718
CLOCK = 1_760_000_000_000_000_000
MIB = 1 << 20


class Trace:
    """Writes the events of one rank of a communicator."""

    def __init__(self, rank: int, *, ident: int = HASH, pid: int = 0, quoted: bool = True) -> None:
        self.rank, self.ident, self.pid, self.quoted = rank, ident, pid or 7000 + rank, quoted
        self.lines: list[str] = []
        self.ids: dict[str, int] = {}
        self.now = 1000.0 + 7 * rank
        self.clock = CLOCK

    def event(self, name: str, cat: str, phase: str, args: str = "") -> None:
        at = self.ids.setdefault(cat, 0)
        self.ids[cat] += phase == "e"
        self.now += 1.5
        body = f', "args": {{{args}}}' if args else ""
        self.lines.append(
            f'{{"name": "{name}", "cat": "{cat}", "ph": "{phase}", "id": {at}, "pid": {self.pid}, "tid": 1,'
            f' "ts": {self.now:.6f}{body}}},'
        )

    def bare(self, value: str) -> str:
        return f'"{value}"' if self.quoted else value

    def group(self, inside: list[tuple[str, dict[str, Any]]]) -> None:
        """Write one launch: its calls by name and arguments."""
        self.event("Group API", "GROUP_API", "b", '"groupApiId": 0, "groupDepth":1')
        stream = f'"Stream": {self.bare("0x5020000567d0")}'
        self.event("KernelLaunch", "KERNEL_LAUNCH", "b", f'"groupId": 0, {stream}')
        self.event("KernelLaunch", "KERNEL_LAUNCH", "e")
        for name, args in inside:
            self.call(name, stream, **args)
        self.event("Group API", "GROUP_API", "e")

    def call(
        self, name: str, stream: str, *, count: int, dtype: str = "ncclFloat32", root: int = 0, number: int = 0,
        peer: int = -1, took: int = 0, pause: int = 20_000, proxies: tuple[int, ...] = (), channels: int = 2,
    ) -> None:  # fmt: skip
        kind = "COLL" if peer < 0 else "P2P"
        rooted = f'"root": {root}, ' if peer < 0 else ""
        self.event(
            name, f"{kind}_API", "b",
            f'"count": {count}, "datatype": {self.bare(dtype)}, {rooted}"GraphCaptured":0, {stream}',
        )  # fmt: skip
        own = f'"CommHash": {self.ident}, "Rank": {self.rank}'
        rest = f'"Count": {count}, "Datatype": "{dtype}"'
        if peer < 0:
            chosen = f'"Algorithm": "RING", "Protocol": "SIMPLE", "nChannels": {channels}'
            self.event(name, "COLL", "b", f'"SeqNum": {number}, {own}, {rest}, {chosen}')
        else:
            self.event(name, "P2P", "b", f'{own}, "Peer": {peer}, {rest}, "nChannels": {channels}')
        if took:
            self.clock += pause
            clocks = f'"StartGpuClk": {self.clock}, "StopGpuClk": {self.clock + took}'
            self.event("KernelCh", "GPU", "b", f'"Channel": 0, {clocks}')
            self.event("KernelCh", "GPU", "e")
            self.clock += took
        for other in proxies:
            steps = f'"Channel": 0, "Peer": {other}, "Steps": 4, "ChunkSize": 524288, "transSize": 65536'
            self.event("ScheduleSend", "PROXY", "b", steps)
            self.event("ScheduleSend", "PROXY", "e")
            self.event("SendWait", "NET", "b", '"Step": 0')
            self.event("SendWait", "NET", "e")
        self.event(name, kind, "e")
        self.event(name, f"{kind}_API", "e")

    def text(self) -> str:
        return "[\n" + "\n".join(self.lines) + "\n{}]\n"


def job(rank: int, *, quoted: bool = True) -> str:
    """Return one of two ranks of a machine: two all-reduces, an all-gather, a broadcast and an exchange."""
    trace, late = Trace(rank, quoted=quoted), 1000 * rank
    trace.group([("AllReduce", {"count": 4 * MIB, "took": 400_000 - late})])
    trace.group([("AllGather", {"count": MIB, "dtype": "ncclBfloat16", "took": 65_000 - late})])
    trace.group([("AllReduce", {"count": 4 * MIB, "number": 1, "took": 401_000 - late})])
    trace.group([("Broadcast", {"count": 2 * MIB, "root": 1, "took": 160_000 - late})])
    other = 1 - rank
    message = {"count": MIB, "dtype": "ncclInt8", "peer": other, "took": 14_000, "channels": 1}
    trace.group([("Send", message), ("Recv", message)])
    return trace.text()


def load(tmp_path: Path, *texts: str) -> Recording:
    paths = []
    for at, text in enumerate(texts):
        paths.append(tmp_path / f"trace_{HASH:x}_{at}.json")
        paths[-1].write_text(text)
    return read(paths)


def essence(event: Event) -> tuple[Any, ...]:
    return event.kind, event.rank, event.operation, event.bytes, event.dtype, event.peer, event.root


def test_the_shipped_sample_is_the_one_made_here() -> None:
    files = sorted(SHIPPED.iterdir())
    assert [path.name for path in files] == [f"trace_{HASH:x}_{rank}.json" for rank in range(2)]
    # The first rank's file is as 2.28 wrote it, with values that are no JSON.
    assert [path.read_text() for path in files] == [job(0, quoted=False), job(1)]
    assert kind_of(str(SHIPPED)) == "profiler"


def test_events() -> None:
    found = read(SHIPPED)
    own = [event for event in found.events if event.rank == 0]
    assert (found.num_ranks, len(found.events), found.groups[0].ranks) == (2, 12, (0, 1))
    assert [essence(event) for event in own] == [
        ("collective", 0, "allreduce", 16 * MIB, "float32", ABSENT, ABSENT),
        ("collective", 0, "all_gather", 4 * MIB, "bfloat16", ABSENT, ABSENT),
        ("collective", 0, "allreduce", 16 * MIB, "float32", ABSENT, ABSENT),
        ("collective", 0, "broadcast", 8 * MIB, "float32", ABSENT, 1),
        ("send", 0, "", MIB, "int8", 1, ABSENT),
        ("recv", 0, "", MIB, "int8", 1, ABSENT),
    ]
    assert {(e.algorithm, e.protocol, e.channels) for e in own[:4]} == {("ring", "simple", 2)}
    assert own[4].bunch == own[5].bunch != own[0].bunch
    assert [e.duration_ps for e in own[:4]] == [n * 10**6 for n in (400, 65, 401, 160)]
    assert [e.start_ps for e in own[:2]] == [0, 420 * 10**6]  # by the clock of the GPU
    assert len({e.sequence for e in own[:4]}) == 4
    assert not found.skipped
    assert "events were no JSON and were read with quotes added" in " ".join(found.assumed)


def test_replay() -> None:
    request = ReplayRequest((str(SHIPPED),), topology="dgx-h100", granularity=1 << 14)
    found = replay(request)
    assert found.total_calls == 5
    big = next(call for call in found.calls if call.bytes == 16 * MIB)
    assert (big.count, big.algorithm, big.protocol, big.channels, big.from_log) == (
        2,
        "Ring",
        "Simple",
        2,
        True,
    )
    assert big.measured_us == pytest.approx(399.5)
    # Two channels of a DGX H100 carry about 20 GB/s each: the recorded choice, and not the tuner's 24 channels.
    assert 300e6 < big.time_ps < 500e6
    (exchange,) = [call for call in found.calls if call.operation == "messages"]
    assert exchange.bytes == MIB


def test_both_spellings_are_the_same(tmp_path: Path) -> None:
    odd = load(tmp_path, job(0, quoted=False), job(1, quoted=False).replace('{"name', "{“name"))
    assert [essence(e) for e in odd.events] == [
        essence(e) for e in load(tmp_path, job(0), job(1)).events
    ]


def test_older_files_have_groups_of_tasks_and_no_calls_of_the_program(tmp_path: Path) -> None:
    def older(text: str) -> str:
        kept = [
            line
            for line in text.splitlines()
            if "_API" not in line and "GPU" not in line and "KERNEL" not in line
        ]
        return "\n".join(kept).replace("nChannels", "nMaxChannels")

    found = load(tmp_path, older(job(0)), older(job(1)))
    assert [(e.operation, e.bytes, e.channels) for e in found.events[:2]] == [
        ("allreduce", 16 * MIB, 2),
        ("all_gather", 4 * MIB, 2),
    ]
    assert found.events[3].root == 0
    assert found.events[0].duration_ps == 4_500_000
    assert "times are the host's" in " ".join(found.assumed)
    # Without groups both ends of an exchange would wait for each other if they were in one stream.
    assert replay(ReplayRequest((str(tmp_path / f"trace_{HASH:x}_0.json"), str(tmp_path / f"trace_{HASH:x}_1.json")),
                          topology="dgx-h100", granularity=1 << 16)).total_calls == 6  # fmt: skip


def test_proxies_tell_machines_apart(tmp_path: Path) -> None:
    texts = []
    for rank in range(4):
        trace = Trace(rank)
        across = (rank + 2) % 4 if rank in (1, 3) else None
        trace.group(
            [
                (
                    "AllReduce",
                    {
                        "count": MIB,
                        "took": 9000,
                        "proxies": (across,) if across is not None else (),
                    },
                )
            ]
        )
        texts.append(trace.text())
    found = load(tmp_path, *texts)
    assert found.hosts == ["machine 0", "machine 0", "machine 1", "machine 1"]
    # A rank that only other ranks speak of counts, too.
    assert load(tmp_path, texts[1]).num_ranks == 4


def test_communicators_are_joined_by_their_processes(tmp_path: Path) -> None:
    texts = []
    for rank in range(4):
        whole, pair = Trace(rank), Trace(rank % 2, ident=rank // 2 + 5, pid=7000 + rank)
        for trace in (whole, pair):
            trace.group([("AllReduce", {"count": MIB, "took": 9000})])
            texts.append(trace.text())
    found = load(tmp_path, *texts)
    assert {group.name: group.ranks for group in found.groups} == {
        str(HASH): (0, 1, 2, 3), "5": (0, 1), "6": (2, 3),
    }  # fmt: skip


def refuse(tmp_path: Path, text: str, *said: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    for part in (f"trace_{HASH:x}_0.json", *said):
        assert part in message


def test_what_cannot_be_simulated_says_why(tmp_path: Path) -> None:
    one = Trace(0)
    one.group([("AllReduce", {"count": MIB, "dtype": "ncclFoo"})])
    refuse(tmp_path, one.text(), "1 x calls of data type 'ncclFoo'", ":6)")
    refuse(tmp_path, job(0).replace('"Rank"', '"Runk"'), "calls without communicator and rank")
    refuse(tmp_path, "[\n" + '{"cat": ' * 5000, "not JSON, even with quotes added")
    refuse(tmp_path, "[\n{}]\n")


def test_contradicting_processes_name_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"_1\.json:6: rank 0 of communicator .* is process 9, and process 7000 in"
    ):
        load(tmp_path, job(0), re.sub(r'"pid": \d+', '"pid": 9', job(0)))


def test_a_cut_file_is_read_to_its_end(tmp_path: Path) -> None:
    lines = job(0).splitlines()
    found = load(tmp_path, "\n".join(lines[:7]) + lines[7][:40], job(1))
    assert [e.operation for e in found.events if e.rank == 0] == ["allreduce"]
    assert any("not JSON" in text for text in found.skipped)


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_invents_no_call(data: st.DataObject, tmp_path: Path) -> None:
    lines = job(0, quoted=False).splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        cut = data.draw(st.integers(0, len(lines[at])))
        how = data.draw(st.sampled_from(["drop", "cut", "double", "swap", "junk"]))
        if how == "drop":
            lines[at] = ""
        elif how == "cut":
            lines[at] = lines[at][:cut]
        elif how == "double":
            lines.insert(at, lines[at])
        elif how == "swap":
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines[at] = (
                lines[at][:cut]
                + data.draw(st.sampled_from(["}", "{", '"', "]", "\0", ": x,"]))
                + lines[at][cut:]
            )
    try:
        found = load(tmp_path, "\n".join(lines), job(1))
    except InputError:
        return
    intact = {essence(event) for event in read(SHIPPED).events}
    invented = {essence(event) for event in found.events} - intact
    # A lost COLL_API only loses the root.
    assert {e for e in invented if e[2] != "broadcast"} == set()


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from(["CommHash", "Rank", "Count", "Datatype", "SeqNum", "Peer", "pid", "ts", "id", "cat", "args"]),
    value=st.sampled_from(["null", "-1", "1e999", "9" * 30, "[]", "{}", "true", '"x"', "131071"]),
)  # fmt: skip
def test_wrong_values_are_refused_or_counted(key: str, value: str, tmp_path: Path) -> None:
    text = re.sub(rf'"{key}": [^,}}]+', f'"{key}": {value}', job(0), count=1)
    try:
        found = load(tmp_path, text, job(1))
    except InputError as error:
        said = str(error)
    else:
        said = ""
        assert len(found.events) <= 12 * 65536
    assert "\n" not in said


def test_the_example_of_the_documentation() -> None:
    found = read(f"{CORPUS}/profiler/nccl_profiler_example_0.json")
    (event, _) = found.events
    assert essence(event) == ("collective", 0, "allreduce", MIB, "float32", ABSENT, ABSENT)
    assert (event.duration_ps, event.channels) == (8_159_232_000, 2)
    assert found.hosts == ["machine 0", "machine 1"]
    # A line that tells of the cut, and the call whose end it took.
    assert sorted(found.skipped.values()) == [1, 1]
