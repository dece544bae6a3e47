"""Who is in which communicator, what they did together, and what is odd about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clusim.base.units import format_ranges
from clusim.formats.logs import find_anomalies, read_logs, report, summarize
from clusim.formats.logs.anomalies import CONTRADICTION
from clusim.formats.logs.calls import call_table
from clusim.formats.logs.columns import Repeating
from clusim.formats.logs.logreport import ring_picture, tree_picture
from clusim_cli.main import run as run_command
from formats.logs.samples import ALL, V221, begin, call, read
from replays.samples import job


def lines(*items: str) -> str:
    return "\n".join(items) + "\n"


def test_groups_by_commid(tmp_path: Path) -> None:
    """Two groups of two ranks with equal ranks and sizes are told apart by their ids."""
    text = lines(
        *(begin(rank, comm=comm) for comm in (1, 2) for rank in (0, 1)),
        *(call(rank, i, comm=comm) for i in range(3) for comm in (1, 2) for rank in (0, 1)),
    )
    log = read(tmp_path, text)
    assert [(c.comm_id, c.n_logged) for c in log.communicators] == [(0xC01, 2), (0xC02, 2)]
    assert log.operations["communicator"].tolist() == [0, 1] * 3
    assert log.operations["ranks"].tolist() == [2] * 6


def test_splits(tmp_path: Path) -> None:
    """Splits without an id of their own are one communicator for each color."""
    world = [begin(rank, n_ranks=4) for rank in range(4)]
    split = [
        f"host0:{100 + r}:{200 + r} [{r}] NCCL INFO ncclCommSplit comm 0x99{r:02x} rank {r % 2} nranks 2 cudaDev {r}"
        f" nvmlDev {r} busId {r + 1}000 parent 0x55{0:02x}{r:02x} splitCount 1 color {r // 2} key {r}- Init START"
        for r in range(4)
    ]
    done = [line.replace("- Init START", " - Init COMPLETE") for line in split]
    log = read(tmp_path, lines(*world, *split, *done))
    assert [(c.n_ranks, c.n_logged, c.parent, c.color) for c in log.communicators] == [
        (4, 4, -1, -1), (2, 2, 0, 0), (2, 2, 0, 1),
    ]  # fmt: skip
    assert log.communicators[2].bus_of == {0: 0x3000, 1: 0x4000}


def test_addresses_are_used_again(tmp_path: Path) -> None:
    """A communicator at the address of one that was destroyed is another one, also within one block."""
    first = [begin(0), *(call(0, i) for i in range(3)), begin(0, event="Destroy COMPLETE")]
    second = [line.replace("0xc00", "0xc77") for line in first]
    log = read(tmp_path, lines(*first, *second))
    assert [c.comm_id for c in log.communicators] == [0xC00, 0xC77]
    assert log.operations["communicator"].tolist() == [0, 0, 0, 1, 1, 1]


def test_only_calls(tmp_path: Path) -> None:
    """Without a line about communicators, handles with the same calls are one."""
    text = lines(
        *(call(r, i, count=8, comm=1, n_ranks=4) for i in range(4) for r in range(4)),
        *(call(r, i, count=9, comm=2, n_ranks=4) for i in range(4) for r in range(4)),
    )
    log = read(tmp_path, text)
    assert [c.n_logged for c in log.communicators] == [4, 4]
    assert log.operations["ranks"].tolist() == [4] * 8
    assert log.operations["count"].tolist() == [8] * 4 + [9] * 4


def test_one_rank_of_many(tmp_path: Path) -> None:
    log = read(tmp_path, lines(begin(3, n_ranks=16), call(3, 0, n_ranks=16)))
    assert log.communicators[0].assumed == [
        "only rank 3 of 16 logged; the others are assumed to do the same"
    ]
    assert not any(a.kind == "calls missing" for a in find_anomalies(log))


def test_matching_by_count_and_order(tmp_path: Path) -> None:
    """Collectives of one group share an opCount: they match by their order; a hole is found."""
    grouped = [
        call(r, 5, name=name, count=count)
        for r in (0, 1)
        for name, count in (("AllReduce", 1), ("AllReduce", 2), ("AllGather", 3))
    ]
    log = read(tmp_path, lines(begin(0), begin(1), *grouped, call(0, 6), call(0, 7), call(1, 7)))
    table = zip(
        *(log.operations[name].tolist() for name in ("op_count", "count", "ranks", "agree")),
        strict=True,
    )
    assert list(table) == [(5, 1, 2, 1), (5, 2, 2, 1), (5, 3, 2, 1), (6, 4, 1, 1), (7, 4, 2, 1)]
    assert log.operations["size"].tolist() == [4, 8, 24, 16, 16]
    (missing,) = [a for a in find_anomalies(log) if a.kind == "calls missing"]
    assert missing.text.startswith("1 collectives")


def test_disagreement_is_said(tmp_path: Path) -> None:
    log = read(tmp_path, lines(begin(0), begin(1), call(0, 1, count=10), call(1, 1, count=11)))
    assert log.operations["agree"].tolist() == [0]
    assert any(a.kind == "calls differ" and a.text.endswith(":3") for a in find_anomalies(log))


def test_send_and_recv(tmp_path: Path) -> None:
    """Each is a call of its own rank; those of one group share the opCount, and root is the peer."""
    text = lines(
        begin(0), begin(1),
        call(0, 2, name="Send").replace("root 0", "root 1"), call(0, 2, name="Recv").replace("root 0", "root 1"),
        call(1, 2, name="Send"), call(1, 2, name="Recv"),
    )  # fmt: skip
    log = read(tmp_path, text)
    operations = log.operations
    names = [log.facts.names[name] for name in operations["name"]]
    assert list(zip(names, operations["rank"], operations["root"], strict=True)) == [
        ("Send", 0, 1), ("Recv", 0, 1), ("Send", 1, 0), ("Recv", 1, 0),
    ]  # fmt: skip


def test_choices_in_groups(tmp_path: Path) -> None:
    """The tuner's lines come behind all calls of a group: they are matched by thread, name and size."""
    who = "host0:100:200 [0] NCCL INFO "
    text = lines(
        begin(0), call(0, 1, count=1), call(0, 1, count=256), call(0, 2, count=1),
        f"{who}AllReduce: 4 Bytes -> Algo TREE proto LL channel{{Lo..Hi}}={{0..0}}",
        f"{who}AllReduce: 1024 Bytes -> Algo RING proto LL128 channel{{Lo..Hi}}={{0..3}}",
    )  # fmt: skip
    log = read(tmp_path, text)
    chosen = [log.facts.choices[c][2] if c >= 0 else "" for c in log.operations["choice"]]
    assert chosen == ["Tree", "Ring", ""]
    # NCCL 2.31 adds a word (format string of its library).
    newer = text.replace("{0..3}", "{0..3} cgaClusterSize 4")
    assert newer.count("cgaClusterSize") == text.count("{0..3}") == 1
    log = read(tmp_path, newer)
    assert log.facts.choices[log.operations["choice"][1]][2:] == ("Ring", "LL128", 0, 3, -1)


def driven(bracket: int, tuned: int, begins: str = "") -> str:
    """Return the log of one thread that drives two GPUs: calls and the tuner's lines with these devices in front."""
    rows = []
    for number in range(12):
        count = 1 << (number % 3)
        for rank in (0, 1):
            one = call(0, number, count=count).replace("[0]", f"[{bracket}]")
            rows.append(one.replace("0x5500", f"0x55{rank:02x}").replace("0x7f00", f"0x7f{rank}0"))
        rows.append(
            f"host0:100:200 [{tuned}] NCCL INFO AllReduce: {4 * count} Bytes -> Algo RING proto LL"
            " channel{Lo..Hi}={0..1}"
        )
    return begins + lines(*rows)


@pytest.mark.parametrize(("bracket", "tuned"), [(0, 0), (0, 1), (1, 0)])
def test_one_thread_that_drives_several_gpus(bracket: int, tuned: int, tmp_path: Path) -> None:
    """The device in front of a line is where the thread was, not whose call it is."""
    begins = lines(
        begin(0),
        begin(1).replace("host0:101:201", "host0:100:200").replace("0x550001", "0x550100"),
    )
    for text in (driven(bracket, tuned, begins + "\n"), driven(bracket, tuned)):
        log = read(tmp_path, text)
        assert [(c.n_ranks, c.n_logged) for c in log.communicators] == [(2, 2)]
        assert log.operations["ranks"].tolist() == [2] * 12
        assert log.operations["agree"].tolist() == [1] * 12
        assert (log.operations["choice"] >= 0).all()


def test_unknown_datatype(tmp_path: Path) -> None:
    log = read(tmp_path, lines(begin(0), call(0, 1).replace("datatype 7", "datatype 99")))
    assert log.operations["size"].tolist() == [0]
    assert any(a.kind == "datatype" for a in find_anomalies(log))


def test_cut_calls_are_counted_and_not_invented(tmp_path: Path) -> None:
    whole = call(0, 1)
    text = lines(begin(0), *(whole[:n] for n in range(60, len(whole) - 18, 7)), whole)
    log = read(tmp_path, text)
    assert log.operations["op_count"].tolist() == [1]
    assert log.facts.cut_calls > 5


def test_torn_lines_are_mended(tmp_path: Path) -> None:
    """A connection another rank cut in two is put together; a torn host name gives no new host."""
    who = "host0:100:200 [0] NCCL INFO "
    text = lines(
        *(f"{who}Bootstrap : Using eth0:10.0.0.1<0>" for _ in range(30)), begin(0), begin(1),
        f"{who}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/re{who.replace('100:200', '101:201')}Connected all rings",
        "ad",
        "ost0:100:200 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    )  # fmt: skip
    log = read(tmp_path, text)
    assert list(log.hosts) == ["host0"]
    assert summarize(log)["communicators"][0]["transports"] == {"P2P CUMEM read": 2}
    assert log.facts.rejoined == 1
    assert any(a.kind == "spliced" for a in find_anomalies(log))


def connection(a: int, b: int, via: str, channel: int = 0) -> str:
    who = f"host{a // 8}:{100 + a}:{200 + a} [{a % 8}] NCCL INFO"
    return f"{who} Channel {channel:02}/0 : {a}[{a % 8}] -> {b}[{b % 8}] via {via}"


@pytest.mark.parametrize(
    ("kind", "said", "extra"),
    [
        ("SHM", "while 1 pairs use P2P",
         [connection(0, 1, "SHM/direct/direct"), connection(1, 0, "P2P/IPC")]),
        ("GDR", "all 1 connections over NET/IB", [connection(0, 1, "NET/IB/0")]),
        ("socket", "1 connections between nodes use TCP", [connection(0, 1, "NET/Socket/0")]),
        ("channels", "different transports on different channels",
         [connection(0, 1, "NET/IB/0/GDRDMA"), connection(0, 1, "NET/IB/0", 1)]),
        ("timeout", "BROADCAST number 5 over 300 s",
         ["[rank1]:[E ProcessGroupNCCL.cpp:563] [Rank 1] Watchdog caught collective operation timeout: "
          "WorkNCCL(SeqNum=5, OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=300000) ran for 300 milliseconds"]),
        ("network error", "Got completion from peer",
         ["host0:100:200 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer x with status=12"]),
        ("abort", "1 ranks aborted", [begin(0, event="Abort COMPLETE")]),
        ("channels", "different numbers of coll channels: 2 on 1 ranks, 4 on 1 ranks",
         [f"host0:{100 + r}:{200 + r} [{r}] NCCL INFO {2 + 2 * r} coll channels, 0 collnet channels, 0 nvls channels,"
          " 2 p2p channels, 2 p2p channels per peer" for r in (0, 1)]),
        ("versions", "2.20.5, 2.21.5", ["NCCL version 2.20.5", "NCCL version 2.21.5"]),
        ("settings differ", "NCCL_ALGO is not the same",
         [f"host0:{100 + r}:{200 + r} [{r}] NCCL INFO NCCL_ALGO set by environment to {'RT'[r]}" for r in (0, 1)]),
        ("slow NIC", "mlx5_1 runs at 100 Gb/s, others at 400",
         [f"host0:100:200 [0] NCCL INFO NET/IB: [{i}] mlx5_{i}:uverbs{i}:1/RoCE provider=Mlx5 speed={s}"
          for i, s in enumerate((400000, 100000, 400000))]),
    ],
)  # fmt: skip
def test_anomalies(kind: str, said: str, extra: list[str], tmp_path: Path) -> None:
    text = lines(begin(0), begin(1), *extra)
    found = [a for a in find_anomalies(read(tmp_path, text)) if a.kind == kind]
    assert any(said in a.text for a in found), found


def test_a_rank_that_never_finished(tmp_path: Path) -> None:
    log = read(tmp_path, lines(begin(1, event="Init START"), begin(0)))
    assert any(
        a.text == "ranks [1] began to initialise and never finished" for a in find_anomalies(log)
    )


def test_missing_nvlinks(tmp_path: Path) -> None:
    text = lines(
        "#   Rank  0 Pid    100 on host0 device  0 [0x01] NVIDIA A100-SXM4-40GB",
        begin(0, n_ranks=1),
        *(
            f"host0:100:200 [0] NCCL INFO {line}"
            for line in (
                "=== System : maxBw 160.0 totalBw 160.0 ===",
                "CPU/0 (1/1/2)",
                "+ PCI[24.0] - GPU/1000 (0)",
                "              + NVL[160.0] - NVS/0",
                "==========================================",
            )
        ),
    )
    (anomaly,) = [a for a in find_anomalies(read(tmp_path, text)) if a.kind == "NVLink"]
    assert "has 8 NVLinks (160 GB/s), the chip 12" in anomaly.text


def test_slow_network_card_in_the_topology_print(tmp_path: Path) -> None:
    system = (
        "=== System : maxBw 48.0 totalBw 48.0 ===",
        "CPU/0 (1/1/2)",
        "+ PCI[24.0] - NIC/2000",
        "              + NET[50.0] - NET/0 (a/1/50.000000)",
        "+ PCI[24.0] - NIC/3000",
        "              + NET[12.5] - NET/1 (b/1/12.500000)",
        "==========================================",
    )
    text = lines(begin(0, n_ranks=1), *(f"host0:100:200 [0] NCCL INFO {line}" for line in system))
    (anomaly,) = [a for a in find_anomalies(read(tmp_path, text)) if a.kind == "slow NIC"]
    assert anomaly.text == "host0: NET/1 has 12.5 GB/s, the fastest 50"


def test_rings_between_sockets(tmp_path: Path) -> None:
    found = [a.text for a in find_anomalies(read(tmp_path, V221)) if a.kind == "NUMA"]
    assert found == ["ring 0 crosses between CPU sockets 2 times"]


def test_nothing_is_odd_about_a_healthy_job(tmp_path: Path) -> None:
    assert not find_anomalies(read(tmp_path, job().text()))


def test_topology_and_cost_table_in_words(tmp_path: Path) -> None:
    text = report(read(tmp_path, V221))
    assert (
        "topology     as rank 0 printed it: 2 CPUs, 2 GPUs, 1 NIC, at most 16 GB/s, 24 per GPU"
        in text
    )
    assert "2 x PCI to GPU 24 GB/s" in text
    assert (
        "cost table   least latency and most bandwidth, AllReduce: Ring LL 8.6 us, Ring Simple 15 GB/s"
        in text
    )


def test_contradictory_ranks_name_both_places(tmp_path: Path) -> None:
    text = lines(begin(0), begin(1).replace("rank 1 ", "rank 0 "), begin(2, n_ranks=4))
    found = [a.text for a in find_anomalies(read(tmp_path, text)) if a.kind == "ranks contradict"]
    path = tmp_path / "log0.txt"
    assert found == [
        f"two processes are rank 0 of communicator 0xc00: at {path}:1 and at {path}:2; the first is used",
        f"communicator 0xc00 has 2 ranks at {path}:1 and 4 at {path}:3: taken as two",
    ]


def test_pictures() -> None:
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    assert ring_picture([0, 1, 2, 3], hosts) == "0 1 => 2 3 => 0"
    tree = {0: (-1, (1, 2)), 1: (0, ()), 2: (0, (3,)), 3: (2, ())}
    assert tree_picture(tree, hosts) == "0 > (1 | => 2 > 3)"
    assert tree_picture({n: (n - 1, (n + 1,)) for n in range(3000)}, {}).count(">") == 3000
    assert format_ranges([3, 0, 1, 2, 8]) == "0-3,8"


@pytest.mark.parametrize("version", ALL)
def test_report(version: str, tmp_path: Path) -> None:
    log = read(tmp_path, ALL[version])
    text = report(log)
    assert text.splitlines()[0].endswith((" of NCCL", " of RCCL"))
    assert "Communicator 0: 2 ranks" in text
    assert json.loads(json.dumps(summarize(log), allow_nan=False))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(V221, encoding="utf-8")
    assert run_command(["log", "summary", str(path)]) == 0
    assert "ranks 0-1 use host memory (SHM)" in capsys.readouterr().out
    assert run_command(["log", "summary", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["communicators"][0]["n_ranks"] == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.write_bytes(bytes(range(256)) * 999), "no line of NCCL"),
    ],
)
def test_command_errors(
    make: Callable[[Path], object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.log"
    make(path)
    assert run_command(["log", "summary", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clusim: ")
    assert message in line


def test_a_call_that_was_made_before_takes_six_bytes(tmp_path: Path) -> None:
    """Which it is, its number, its line, a byte or two each; new ones have the rest beside it, once."""
    repeated = read(
        tmp_path, lines(begin(0), *(call(0, i, count=i % 5 + 1) for i in range(20_000)))
    )
    assert repeated.calls.kept_bytes <= 6 * 20_000
    assert repeated.operations.kept_bytes <= 6 * 20_000
    new = read(tmp_path, lines(begin(0), *(call(0, i, count=i + 1) for i in range(20_000))))
    assert 6 * 20_000 < new.calls.kept_bytes <= 24 * 20_000


def test_a_log_that_is_there_twice_is_told(tmp_path: Path) -> None:
    """A process cannot begin the same rank of the same communicator twice; its calls would count twice."""
    begun = [
        begin(rank, event=event) for event in ("Init START", "Init COMPLETE") for rank in (0, 1)
    ]
    text = lines(*begun, call(0, 1), call(1, 1))
    assert not [a for a in find_anomalies(read(tmp_path, text)) if a.kind == CONTRADICTION]
    (told,) = [
        a.text for a in find_anomalies(read(tmp_path, text, text)) if a.kind == CONTRADICTION
    ]
    assert "rank 0 of communicator 0xc00 begins twice" in told
    assert "log0.txt:1 and at" in told
    assert "log1.txt:1; if the log is given twice" in told


def test_nothing_that_is_said_of_a_log_takes_a_whole_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millions of calls are looked at a part at a time, so memory is what is kept of them."""
    monkeypatch.setattr(Repeating, "__getitem__", lambda _self, name: pytest.fail(name))
    ranks = (0, 1)
    log = read(tmp_path, lines(*map(begin, ranks), *(call(r, i) for i in range(9) for r in ranks)))
    assert report(log, everything=True)
    assert summarize(log)["calls"]["operations"] == len(log.operations) == 9
    assert len(call_table(log).call) == 9


def test_operations_are_the_same_however_many_are_matched_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of two ranks in two files, of several communicators and kinds, in shares and windows of a few rows."""
    names = ("AllReduce", "Send")
    files = [
        lines(begin(rank), *(call(rank, i, count=i % 7 + 1, name=names[i % 2]) for i in range(500)))
        for rank in (0, 1)
    ]
    whole = read(tmp_path, *files)
    monkeypatch.setattr("clusim.formats.logs.operations._TOGETHER", 64)
    monkeypatch.setattr("clusim.formats.logs.columns.PART_ROWS", 30)
    some = read(tmp_path, *files)
    for name in whole.operations.names:
        np.testing.assert_array_equal(whole.operations[name], some.operations[name], err_msg=name)
    assert summarize(whole)["calls"] == summarize(some)["calls"]


def test_what_the_page_shows_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nccl.log").write_text(V221, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).resolve().parents[3] / "docs" / "logs.md"
    assert f"```\n{report(read_logs(['nccl.log']))}\n```" in page.read_text(encoding="utf-8")
