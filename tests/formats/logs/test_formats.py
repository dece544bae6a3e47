"""The lines of every version: what exactly is read from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clusim.formats.logs import Log, LoggedRoute, summarize
from clusim.formats.logs.infer_collective import parse_route
from clusim.formats.logs.lines import parts, stamp_ns
from formats.logs.samples import ALL, OLD, RCCL, V28, V212, V221, V229, read


def transports(log: Log) -> dict[str, int]:
    found: dict[str, int] = summarize(log)["communicators"][0]["transports"]
    return found


def test_2_4(tmp_path: Path) -> None:
    log = read(tmp_path, OLD)
    assert dict(log.facts.versions) == {"2.4.6+cuda10.0": 1}
    (communicator,) = log.communicators
    assert (communicator.n_ranks, communicator.n_logged) == (2, 2)
    assert communicator.host_of == {0: "alpha", 1: "beta"}
    assert communicator.gpu_of[1] == "Tesla V100-SXM2-32GB"
    assert log.rings(communicator) == {0: [0, 1], 1: [0, 1]}
    assert transports(log) == {"NET AWS Libfabric no GDR": 4}
    assert log.facts.environment == {"NCCL_TREE_THRESHOLD": {"0": {0}}}
    (run,) = log.runs
    assert run.sizes == [8, 1024]
    assert run.column("time").tolist() == [146.7, 154.6]
    assert np.isnan(run.column("error_in_place")[1])
    assert run.average_busbw == 0.708142
    assert run.config["warmup iters"] == 5


def test_2_8(tmp_path: Path) -> None:
    log = read(tmp_path, V28)
    (communicator,) = log.communicators
    assert communicator.bus_of == {0: 0x400000, 1: 0xB00000}
    assert log.trees_of(communicator) == {
        channel: {0: (-1, (1,)), 1: (0, ())} for channel in (0, 1)
    }
    assert transports(log) == {"P2P IPC read": 2}
    summary = summarize(log)
    assert summary["communicators"][0]["channels"] == {"coll": 2, "p2p": 4, "p2p per peer": 2}
    assert summary["communicators"][0]["ring_channels"] == 2
    assert [a["kind"] for a in summary["anomalies"]] == ["warning"]
    assert "Unable to open device mlx5_ib0 (1 times" in summary["anomalies"][0]["text"]
    assert summary["hosts"]["h8"]["nics"] == {"eth0": "10.0.0.4"}


def test_2_12_numbers(tmp_path: Path) -> None:
    log = read(tmp_path, V212)
    (communicator,) = log.communicators
    assert communicator.n_logged == communicator.n_ranks == 2
    operations = log.operations
    assert operations["op_count"].tolist() == [0, 10]
    assert operations["ranks"].tolist() == [2, 2]
    assert operations["size"].tolist() == [64, 2048]
    assert log.facts.choices[int(operations["choice"][0])] == (
        "", 64, "Tree", "LL", -1, -1, 49.675526,
    )  # fmt: skip
    assert operations["choice"][1] == -1
    assert operations["root"].tolist() == [0, 1]
    assert log.calls["in_place"].tolist() == [1, 0, 1, 0]


def test_2_21_graph(tmp_path: Path) -> None:
    log = read(tmp_path, V221)
    (communicator,) = log.communicators
    (member,) = log.members(communicator)
    assert [(n.depth, n.link, n.bw, n.name) for n in member.system] == [
        (0, "", 0.0, "CPU/0-0"), (1, "PCI", 24.0, "PCI/0-c000"), (2, "PCI", 24.0, "GPU/0-1000"),
        (2, "PCI", 24.0, "NIC/0-2000"), (3, "NET", 12.0, "NET/0"), (1, "SYS", 16.0, "CPU/1"),
        (0, "", 0.0, "CPU/0-1"), (1, "PCI", 24.0, "GPU/0-a1000"), (1, "SYS", 16.0, "CPU/0"),
    ]  # fmt: skip
    assert member.system_bw == (16.0, 24.0)
    assert member.paths["GPU/1000"]["GPU/0-a1000"] == (3, 16.0, "SYS")
    (pattern,) = member.patterns
    assert (pattern.pattern, pattern.bw_intra, pattern.type_intra) == (4, 15.0, "SYS")
    assert pattern.orders == (("GPU/0", "GPU/1"),)
    assert member.costs["AllReduce", "Ring", "Simple"] == (19.8, 15.0)
    assert member.costs["AllReduce", "Tree", "LL"] == (8.8, 1.8)
    assert member.thresholds == "8/8/64 | 16/8/64 | 512 | 512"
    # Rank 1 did not log: the topology print names its bus, the node count its host.
    assert communicator.bus_of == {0: 0x1000, 1: 0xA1000}
    assert communicator.host_of == {0: "box", 1: "box"}
    assert communicator.assumed == [
        "only rank 0 of 2 logged; the others are assumed to do the same"
    ]
    assert log.rings(communicator) == {0: [0, 1]}
    kinds = {a["kind"] for a in summarize(log)["anomalies"]}
    assert {"SHM", "setting", "NUMA", "assumed"} <= kinds


def test_2_29(tmp_path: Path) -> None:
    log = read(tmp_path, V229)
    (communicator,) = log.communicators
    members = log.members(communicator)
    assert [m.ended for m in members] == ["destroyed", ""]
    assert members[0].nvls is True
    assert members[0].nvls_heads == {0: [0, 1]}
    assert members[0].timings["kernels"] == 0.6
    assert log.facts.nvls_trees.columns()["up"].tolist() == [-1, 1]
    assert transports(log) == {"P2P direct": 1, "P2P CUMEM read CE": 1, "NET IB GDRDMA PXN": 1}
    groups = summarize(log)["calls"]["by_size"]
    assert [(g["size"], g["count"], g["algorithm"], g["channels"]) for g in groups] == [
        (8, 1, "Ring", [0, 0]),
        (268435456, 2, "NVLS", [0, 15]),
    ]
    assert summarize(log)["calls"]["from"] == "tuning lines"


def test_rccl(tmp_path: Path) -> None:
    log = read(tmp_path, RCCL)
    assert log.facts.library == "RCCL"
    (communicator,) = log.communicators
    assert sorted(communicator.members) == [0, 1]
    assert log.rings(communicator) == {0: [0, 1]}
    assert log.operations["op_count"].tolist() == [3, 4]
    assert log.calls["time_ns"].max() == 1558545003174220000
    assert dict(log.facts.kernels) == {"ncclDevFunc_AllReduce_RING_LL_Sum_double": 1}


@pytest.mark.parametrize("version", ALL)
def test_no_line_is_lost(version: str, tmp_path: Path) -> None:
    """Every NCCL line of the samples is understood, none is of an unknown kind."""
    log = read(tmp_path, ALL[version])
    assert log.facts.unknown == {}
    assert log.facts.lines == ALL[version].count("\n")


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("P2P/IPC", LoggedRoute("P2P", "IPC")),
        ("P2P/CUMEM/read", LoggedRoute("P2P", "CUMEM", read=True)),
        ("P2P/MNNVL", LoggedRoute("P2P", "MNNVL")),
        ("P2P/direct pointer/read", LoggedRoute("P2P", "direct", read=True)),
        ("P2P/indirect/3[b3000]", LoggedRoute("P2P", "indirect", proxy=3)),
        ("SHM/direct/direct", LoggedRoute("SHM", "")),
        ("SHM/CE/direct", LoggedRoute("SHM", "", copy_engine=True)),
        ("direct shared memory", LoggedRoute("SHM", "")),
        ("NET/Socket/1", LoggedRoute("NET", "Socket", nic=1)),
        ("NET/AWS Libfabric/3/GDRDMA", LoggedRoute("NET", "AWS Libfabric", nic=3, gdr=True)),
        ("NET/IB/5(2)/GDRDMA/Shared", LoggedRoute("NET", "IB", nic=5, proxy=2, gdr=True, shared=True)),
        ("COLLNET/SHARP/0/GDRDMA", LoggedRoute("COLLNET", "SHARP", nic=0, gdr=True)),
        ("P2P/CUMEM/rea", None),
        ("NET/IB", None),
        ("pigeon", None),
    ],
)  # fmt: skip
def test_routes(text: str, route: LoggedRoute | None) -> None:
    assert parse_route(text) == route


@pytest.mark.parametrize(
    ("line", "tree"),
    [
        ("Trees [0] -1->0->1/8/-1", (-1, (1, 8))),
        ("Trees [0] 1/8/-1->0->-1|-1->0->1/8/-1", (-1, (1, 8))),
        ("Trees [0] 1/8/-1->0->-1", (-1, (1, 8))),
        ("Tree 0 : -1 -> 0 -> 1/8/-1", (-1, (1, 8))),
    ],
)
def test_trees_of_all_times(line: str, tree: tuple[int, tuple[int, ...]], tmp_path: Path) -> None:
    log = read(tmp_path, f"h:1:2 [0] NCCL INFO {line}\n")
    assert log.trees_of(log.communicators[0]) == {0: {0: tree}}


def test_collision_of_two_headers() -> None:
    line = b"h1:1:2 [0] NCCL INFO comm 0x9 rank 1 nranks h2:3:4 [1] NCCL INFO Connected all rings"
    one, two = parts(line, set())
    assert (one.host, one.text, one.cut) == ("h1", "comm 0x9 rank 1 nranks ", True)
    assert (two.host, two.pid, two.text, two.cut) == ("h2", 3, "Connected all rings", False)


@pytest.mark.parametrize(
    ("line", "before", "host"),
    [
        (b"  1024  256  float  sum  -138dc:7:8 [0] NCCL INFO x", "  1024  256  float  sum  -1", "38dc"),
        (b"  1.5  2.0  3.0       038dc:7:8 [0] NCCL INFO x", "  1.5  2.0  3.0       0", "38dc"),
        (b"   64  16  float     sum38dc:7:8 [0] NCCL INFO x", "   64  16  float     sum", "38dc"),
        (b"Channel 038dc:7:8 [0] NCCL INFO x", "Channel ", "038dc"),
    ],
)  # fmt: skip
def test_a_host_glued_to_a_row(line: bytes, before: str, host: str) -> None:
    text, part = parts(line, {"38dc"})
    assert (text.text, part.host) == (before, host)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"[2026-03-12 13:57:49] ", 1773323869 * 10**9),
        (b"2026-03-12T13:57:49.25Z ", 1773323869250000000),
        (b"2026-03-12 14:57:49,250+01:00 ", 1773323869250000000),
        (b"13:57:49.000001 ", 50269000001000),
        (b"1558545003.174220 ", 1558545003174220000),
        (b"no time ", -1),
        (b"2026-13-12 13:57:49", -1),
    ],
)
def test_times(text: bytes, ns: int) -> None:
    assert stamp_ns(text) == ns
