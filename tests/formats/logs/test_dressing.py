"""What launchers and collectors put around lines, and tables of every release: files of others, written small."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.formats.logs import read_logs
from clusim.formats.logs.logreport import report as log_text
from formats.logs.samples import V229, begin, call, read

CONFIG = "# nThread 1 nGpus 8 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20\n"
RANKS = "".join(
    f"#   Rank {i:2} Pid 12 on box device {i:2} [0x0{i}] Tesla V100\n" for i in range(8)
)
TIMES = "     time   algbw   busbw  error"
TITLE = f"#       size         count      type   redop    root{TIMES}{TIMES}\n"
SUMS = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 8.75\n#\n"


def row(size: int, count: int, op: str, root: str, bus: float = 8.75) -> str:
    half = f"  100.0  10.0  {bus}  0e+00"
    return f"{size:12}  {count:12}  {'float':>6}  {op:>6}  {root:>6}{half}{half}\n"


def test_a_blank_reduction_is_no_reason_to_drop_the_row(tmp_path: Path) -> None:
    for root in ("-1", ""):
        title = TITLE if root else TITLE.replace("    root", "")
        (run,) = read(tmp_path, CONFIG + RANKS + title + row(8192, 256, "", root) + SUMS).runs
        assert (run.sizes, run.ops, run.roots, run.broken) == ([8192], [""], [-1], 0)
        assert run.values[0][:3] == (100.0, 10.0, 8.75)
        assert run.collective() == "all_gather or alltoall"


@pytest.mark.parametrize(
    ("size", "op", "root", "bus", "name"),
    [
        (1024, "sum", "-1", 0.01, "all_reduce"),  # rounded to nothing: the columns decide
        (1024, "sum", "-1", 17.5, "all_reduce"),
        (8192, "sum", "-1", 8.75, "reduce_scatter"),
        (1024, "none", "0", 10.0, "broadcast"),
        (1024, "sum", "0", 10.0, "reduce"),
        (1024, "none", "-1", 10.0, "sendrecv"),
    ],
)
def test_the_header_decides(
    size: int, op: str, root: str, bus: float, name: str, tmp_path: Path
) -> None:
    line = row(size, 256, op, root, bus)
    if bus < 1:
        line = line.replace("10.0", "0.00")
    (run,) = read(tmp_path, CONFIG + RANKS + TITLE + line).runs
    assert run.collective() == name


def test_the_name_of_the_file_decides_what_columns_leave_open(tmp_path: Path) -> None:
    path = tmp_path / "2024_AllGather-8.txt"
    path.write_text(CONFIG + RANKS + TITLE + row(8192, 256, "none", "-1"))
    assert read_logs([str(path)]).runs[0].collective() == "all_gather"
    other = tmp_path / "broadcast.txt"  # a name that the columns contradict
    other.write_text(path.read_text())
    assert read_logs([str(other)]).runs[0].collective() == "all_gather or alltoall"


def test_tables_end_with_their_sums(tmp_path: Path) -> None:
    table = TITLE + row(1024, 256, "sum", "-1", 17.5) + SUMS
    log = read(tmp_path, CONFIG + RANKS + table + table.replace("1024", "2048"))
    assert [run.sizes for run in log.runs] == [[1024], [2048]]
    assert [run.n_ranks for run in log.runs] == [8, 8]
    assert [run.number for run in log.runs] == [0, 1]
    assert [run.config["nGpus"] for run in log.runs] == [8, 8]


@pytest.mark.parametrize(
    "front",
    ["0: ", " 12: ", "node-1: ", "2024-05-01T00:00:00.123456789Z ", "[1,0]<stdout>: ", "12:30:01.5 ",
     "[default0]:", "(MPIWorker pid=77, ip=10.0.0.1) ", "[pod/nccl-test-launcher-abc/mpi] ", "mpi-launcher-1  | ",
     "\x1b[36m(Worker pid=7)\x1b[0m ", "> ", "[prterun-node1-77@1,0]<stdout>: ",
     "Fri Mar  1 10:11:12 2024[1,0]<stdout>:", "Mar  1 10:11:12 node1 mpirun[77]: "],
)  # fmt: skip
def test_a_dressed_table_is_the_same_table(front: str, tmp_path: Path) -> None:
    text = CONFIG + RANKS + TITLE + row(1024, 256, "sum", "-1", 17.5) + SUMS
    bare = read(tmp_path, text)
    dressed = read(tmp_path, "".join(front + line for line in text.splitlines(keepends=True)))
    assert [run.values for run in dressed.runs] == [run.values for run in bare.runs]
    assert dressed.runs[0].devices == bare.runs[0].devices


@pytest.mark.parametrize(
    "front", ["(EngineCore pid=1) (RayWorker pid=9, ip=10.0.0.1) ", "[default3]:", "\x1b[36m(W pid=3)\x1b[0m "]
)  # fmt: skip
def test_a_dressed_log_is_the_same_log(front: str, tmp_path: Path) -> None:
    bare = read(tmp_path, V229)
    dressed = read(tmp_path, "".join(front + line for line in V229.splitlines(keepends=True)))
    assert dressed.facts.nccl_lines == bare.facts.nccl_lines
    assert dressed.facts.unknown.keys() == bare.facts.unknown.keys()
    assert [c.bus_of for c in dressed.communicators] == [c.bus_of for c in bare.communicators]
    assert len(dressed.operations["line"]) == len(bare.operations["line"])


def test_repeats_of_ray_are_no_part_of_values(tmp_path: Path) -> None:
    text = (
        "(W pid=1) h:1:1 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5 [repeated 3x across cluster]"
        " (Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0 to disable)\n"
        "(W pid=1) h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0"
        " [repeated 2x across cluster]\n"
    )
    log = read(tmp_path, text)
    assert list(log.facts.environment["NCCL_IB_HCA"]) == ["mlx5"]
    assert [route.kind for route in log.facts.routes] == ["NET"]
    assert any("Ray dropped 3 similar lines" in text for _, text in log.facts.problems)


def test_communicators_of_rccl_since_rocm_7(tmp_path: Path) -> None:
    begun = "\n".join(
        begin(r).replace("INFO comm", "INFO ncclCommInitRank_impl comm") for r in (0, 1)
    )
    log = read(tmp_path, begun + "\n" + "\n".join(call(r, 0) for r in (0, 1)) + "\n")
    (communicator,) = log.communicators
    assert (communicator.n_ranks, communicator.n_logged) == (2, 2)
    assert {log.facts.members[h].function for h in communicator.handles} == {"ncclCommInitRank"}
    assert log.operations["ranks"].tolist() == [2]


def test_a_log_that_only_mentions_nccl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no line of NCCL"):
        read(tmp_path, "WARNING: NCCL is not available\nusing gloo\n")


def test_files_of_docker_have_json_around_lines(tmp_path: Path) -> None:
    """A line is an object, in which quotes and signs are written otherwise."""
    plain = [*begin(0), *begin(1), call(0, 0), call(1, 0), CONFIG.strip(), RANKS.splitlines()[0]]
    wrapped = []
    for line in plain:
        text = (
            line.replace("\\", "\\\\")
            .replace('"', '\\"')
            .replace("<", "\\u003c")
            .replace(">", "\\u003e")
        )
        wrapped.append(f'{{"log":"{text}\\n","stream":"stdout","time":"2026-03-01T10:00:00.1Z"}}')
    one, two = (read(tmp_path, "\n".join(lines) + "\n") for lines in (plain, wrapped))
    assert two.operations["size"].tolist() == one.operations["size"].tolist()
    assert len(two.operations["size"]) == 1
    assert two.communicators[0].host_of == one.communicators[0].host_of
    assert [d.name for d in two.runs[0].devices] == ["Tesla V100"]


SYSTEM = """\
=== System : maxWidth 12.5 totalWidth 36.0 ===
CPU/0 (1/2/4)
+ SYS[5000.0] - CPU/1
+ PCI[24.0] - PCI/31000 (1000c01010000000)
              + PCI[24.0] - GPU/47000 (0)
                            + XGMI[36.0] - GPU/4C000
              + PCI[24.0] - NIC/35000
                            + NET[12.5] - NET/0 (0/0/12.500000)
CPU/1 (1/2/4)
+ PCI[24.0] - GPU/4C000 (1)
              + XGMI[36.0] - GPU/47000
==========================================
"""


@pytest.mark.parametrize("front", ["node7:12:34 [0] NCCL INFO ", "", "    ", "  \t"])
def test_a_topology_print_needs_no_headers(front: str, tmp_path: Path) -> None:
    after = "an application's line\n+ set -x of a shell\n"
    text = "".join(f"{front}{line}\n" for line in SYSTEM.splitlines()) + after
    (member,) = (m for m in read(tmp_path, text).facts.members if m.system)
    assert [(n.depth, n.link, n.name) for n in member.system] == [
        (0, "", "CPU/0"),
        (1, "SYS", "CPU/1"),
        (1, "PCI", "PCI/31000"),
        (2, "PCI", "GPU/47000"),
        (3, "XGMI", "GPU/4C000"),
        (2, "PCI", "NIC/35000"),
        (3, "NET", "NET/0"),
        (0, "", "CPU/1"),
        (1, "PCI", "GPU/4C000"),
        (2, "XGMI", "GPU/47000"),
    ]
    shown = log_text(read(tmp_path, text))
    assert "as a rank of unknown number printed it: 2 CPUs, 2 GPUs, 1 NIC" in shown
    assert "rank -1" not in shown
