"""Tables of nccl-tests: old columns, N/A, other lines in the middle of rows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from clusim.formats.logs import TableRun, summarize
from clusim.formats.logs.anomalies import find_anomalies
from formats.logs.samples import read

CONFIG = "# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 graph: 0\n"
RANKS = """\
#  Rank  0 Group  0 Pid   1391 on 38dc device  0 [0000:41:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1391 on 38dc device  1 [0000:44:00] NVIDIA H100 80GB HBM3
"""
HEAD = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
INFO = "38dc:1391:1391 [0] NCCL INFO AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n"


def only_run(folder: Path, text: str) -> TableRun:
    (run,) = read(folder, text).runs
    return run


def test_rows_with_log_lines_in_them(tmp_path: Path) -> None:
    """The host's name starts with a digit and is glued to the root, and to the number of wrong values."""
    row = (
        f"          64            16     float     sum      -1{INFO}{INFO}"
        f"    11.50    1.25    1.25       0{INFO}    12.50    1.15    1.15      0\n"
    )
    log = read(tmp_path, CONFIG + RANKS + HEAD + INFO + row)
    (run,) = log.runs
    assert (run.sizes, run.counts, run.types, run.ops, run.roots) == (
        [64], [16], ["float"], ["sum"], [-1],
    )  # fmt: skip
    assert run.values == [(11.5, 1.25, 1.25, 0.0, 12.5, 1.15, 1.15, 0.0)]
    assert run.broken == 0
    assert {process.host for process in log.facts.processes if process.lines} == {"38dc"}
    assert len(log.facts.tunings) == 4
    assert run.devices[1].bus == "0000:44:00"


def test_tags_in_the_middle_of_a_row(tmp_path: Path) -> None:
    tag = "[1,0]<stdout>:"
    text = (
        f"{tag}{CONFIG}{tag}"
        + f"\n{tag}".join((RANKS + HEAD).splitlines())
        + f"\n{tag}          16             4     float     sum      -1{tag}    63.44    0.00    0.00      0"
        f"{tag}    63.31    0.00    0.01      0\n{tag}# Out of bounds values : 0 OK\n{tag}# Avg bus bandwidth : 1.5\n"
    )
    run = only_run(tmp_path, text)
    assert run.values == [(63.44, 0.0, 0.0, 0.0, 63.31, 0.0, 0.01, 0.0)]
    assert (run.average_busbw, run.wrong, run.n_ranks) == (1.5, 0, 2)


@pytest.mark.parametrize(
    ("header", "row", "values"),
    [
        ("size count type time algbw busbw error time algbw busbw error",
         "  2147483648  67108864  float  117651  18.25  15.97  N/A", (117651.0, 18.25, 15.97)),
        ("size count type redop time algbw busbw error time algbw busbw error",
         "  8  2  float  sum  146.7  0.00  0.00  2e-07  159.1  0.00  0.00  1e-07", (146.7, 0.0, 0.0)),
        ("size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
         "  0  0  double  none  -1  0.09  0.00  0.00  0  1.6e+07  0.00  0.00  N/A", (0.09, 0.0, 0.0)),
    ],
)  # fmt: skip
def test_columns_of_all_times(
    header: str, row: str, values: tuple[float, ...], tmp_path: Path
) -> None:
    run = only_run(tmp_path, f"{CONFIG}#   {header}\n{row}\n# Out of bounds values : 0 OK\n")
    assert run.values[0][:3] == values
    assert run.broken == 0
    assert len(run.values) == 1


def test_missing_in_place(tmp_path: Path) -> None:
    text = f"{CONFIG}{HEAD}  1048576  262144  float  sum  -1  10.0  104.86  104.86  0\n"
    text += "  2097152  524288  float  sum  -1  20.0  104.86  104.86  0\n# Avg bus bandwidth : 9\n"
    run = only_run(tmp_path, text)
    assert run.sizes == [1048576, 2097152]
    assert all(math.isnan(v) for v in run.values[0][4:])


def test_a_broken_row_is_counted_not_invented(tmp_path: Path) -> None:
    text = f"{CONFIG}{HEAD}  64  16  float  sum  -1  10.0  1.0\n  128  32  float  sum  -1\n# Avg bus bandwidth : 9\n"
    run = only_run(tmp_path, text)
    assert run.sizes == []
    assert run.broken == 2


def test_several_runs_and_failures(tmp_path: Path) -> None:
    one = "# Collective test starting: alltoall_perf\n" + CONFIG + RANKS + HEAD
    text = (
        f"{one}38dc: Test NCCL failure common.cu:401 'remote process exited'\n"
        f"{one.replace('alltoall', 'sendrecv')}"
        "  33554432  4194304  double  sum  -1  3809.85  8.81  8.81  0  3875.27  8.66  8.66  N/A\n"
        "  67108864  8388608  double  sum  -1  7561.16  8.88  8.88  0  7983.39  8.41  8.41  N/A\n"
        " 134217728  16777216  double  sum  -1  151932  0.88  0.88  0  142830  0.94  0.94  N/A\n"
        "# Reducing maxBytes to 33554432 due to memory limitation\n"
    )
    log = read(tmp_path, text)
    assert [run.collective() for run in log.runs] == ["alltoall", "sendrecv"]
    anomalies = {a["kind"]: a["text"] for a in summarize(log)["anomalies"]}
    assert "remote process exited" in anomalies["failure"]
    assert "busbw falls from 8.88 to 0.88 GB/s" in anomalies["bandwidth falls"]
    assert "Reducing maxBytes" in anomalies["memory"]


@pytest.mark.parametrize(
    ("algbw", "busbw", "name"),
    [
        (100.0, 175.0, "all_reduce"),
        (100.0, 87.5, "all_gather, reduce_scatter or alltoall"),
        (100.0, 100.0, "broadcast, reduce or sendrecv"),
        (100.0, 33.0, ""),
    ],
)
def test_the_collective_is_concluded(algbw: float, busbw: float, name: str) -> None:
    from clusim.formats.logs import TableDevice

    run = TableRun("x", 1, devices=[TableDevice(r, 0, 1, "h", r, "", "") for r in range(8)])
    run.sizes, run.values = [1 << 20], [(10.0, algbw, busbw, 0.0, *[math.nan] * 4)]
    assert run.collective() == name


def test_rows_that_are_none_are_told_and_tabs_are_blanks(tmp_path: Path) -> None:
    head = (
        "# nThread 1 nGpus 2 minBytes 8 maxBytes 8\n"
        "#  Rank  0 Group  0 Pid  10 on    box device  0 [0x1b] NVIDIA H100 80GB HBM3\n"
        "#  Rank  1 Group  0 Pid  10 on    box device  1 [0x43] NVIDIA H100 80GB HBM3\n"
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    )
    good = "8388608 2097152 float sum -1 62.1 135.1 135.1 0 61.9 135.5 135.5 0\n"
    odd = good.replace("62.1", "0.1ms"), good.replace("62.1", "1,99.5")
    log = read(tmp_path, head + good + "".join(odd) + good)
    (run,) = log.runs
    assert (len(run.sizes), run.broken) == (2, 2)
    assert any("2 rows of the table are incomplete" in odd.text for odd in find_anomalies(log))
    tabbed = read(tmp_path, (head + good).replace(" ", "\t"))
    assert tabbed.runs[0].column("time").tolist() == [62.1]


def test_releases_before_2_1_print_milliseconds(tmp_path: Path) -> None:
    """Sizes and times give the bandwidths beside them: 1 MiB in 0.158 ms is 6.64 GB/s."""
    text = """\
# nThread 1 nGpus 2 minBytes 1 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# NCCL Tests compiled with NCCL 2.4
#   Rank  0 on       ncrh device  0 [0x05] GeForce RTX 2080 Ti
#   Rank  1 on       ncrh device  1 [0x06] GeForce RTX 2080 Ti
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
     1048576        262144   float     sum    0.158   6.64   6.64    0e+00    0.157   6.68   6.68    0e+00
"""
    run = only_run(tmp_path, text)
    assert (run.collective(), run.n_ranks) == ("all_reduce", 2)
    assert run.values == [(158.0, 6.64, 6.64, 0.0, 157.0, 6.68, 6.68, 0.0)]
    assert 1048576 / run.values[0][0] / 1000 == pytest.approx(6.64, abs=0.005)
    odd = find_anomalies(read(tmp_path, text.replace("bytes             N", " size         count")))
    assert any("times are in another unit than us" in anomaly.text for anomaly in odd)


@pytest.mark.parametrize("number", ["1,048,576", "1.048.576"])
def test_numbers_of_other_countries_are_told_with_their_line(number: str, tmp_path: Path) -> None:
    row = "     1048576 262144 float sum -1 62.1 16.9 16.9 0 61.9 16.9 16.9 0\n"
    log = read(tmp_path, CONFIG + RANKS + HEAD + row + row.replace("1048576", number))
    (told,) = (odd.text for odd in find_anomalies(log) if odd.kind == "rows")
    assert log.runs[0].sizes == [1048576]
    assert told.startswith("all_reduce: 1 rows")
    assert told.endswith("log0.txt:8")
