"""Validation: reading measurements, thinning, statistics, what is left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusim.base import resources
from clusim.base.errors import InputError
from clusim.nccltests.jobs import batches_of
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.validation.collectives.accuracypage import report_lines, write_page
from clusim.validation.collectives.breakdown import Point
from clusim.validation.collectives.classtables import class_tables
from clusim.validation.collectives.measurements import CurveGroup, Row, groups, read_measurements
from clusim.validation.collectives.narrowing import thin_rows
from clusim.validation.collectives.standing import INDEPENDENT, LAUNCH, standings
from clusim.validation.collectives.systems import setup_of
from clusim.validation.collectives.validate import (
    CollectiveReport,
    by_campaign,
    validate,
)
from clusim.validation.measured import FAILED, UNKNOWN
from clusim_cli.main import run

MIB = 1 << 20
HEADER = "system,n_nodes,n_gpus,collective,algorithm,protocol,channels,nccl_version,gpus_per_process,cuda_graph,size_bytes,time_us"  # noqa: E501
GROUP = CurveGroup("dgx-h100", 1, 8, "all_reduce")


def point(size: int, measured: float, predicted: float) -> Point:
    return Point(Row(GROUP, size, measured), predicted, "Ring", "LL", ())


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return path


def test_worst_counts_factors_up_and_down_alike() -> None:
    points = [point(8, 10.0, 30.0), point(16, 10.0, 2.0), point(32, 10.0, 11.0)]
    report = CollectiveReport(points)
    assert [p.row.size_bytes for p in report.worst(2)] == [16, 8]


def test_thinning_keeps_all_regimes_and_the_largest() -> None:
    rows = [Row(GROUP, 8 << power, 1.0) for power in range(31)]
    kept = thin_rows(rows, 6)
    sizes = [row.size_bytes for row in kept]
    assert len(kept) == 6
    assert sizes == sorted(sizes)
    assert sum(size < MIB for size in sizes) == 2
    assert sum(size >= 64 * MIB for size in sizes) == 2
    assert sizes[-1] == 8 << 30
    assert thin_rows(rows[:3], 6) == rows[:3]
    assert len(thin_rows(rows[:10], 6)) == 6


def campaign_row(nodes: int, size_bytes: int, source: str = "mine", **group: Any) -> Row:
    curve = CurveGroup("aws-p5en", nodes, 8 * nodes, **{"collective": "all_reduce", **group})
    return Row(curve, size_bytes, 1.0, source)


def test_a_campaign_is_a_source_on_a_number_of_nodes_of_a_system() -> None:
    sizes = [1 << power for power in range(10, 30)]
    rows = [campaign_row(nodes, size) for nodes in (2, 4, 16) for size in sizes]
    rows += [campaign_row(2, size, collective="alltoall") for size in sizes]
    rows += [campaign_row(2, size, "other") for size in sizes]
    kept = by_campaign(rows, 3, gpus=32)
    counts = Counter((row.source, row.group.n_nodes, row.group.collective) for row in kept)
    assert set(counts.values()) == {3}
    assert len(counts) == 4
    assert max(row.group.n_nodes for row in kept) == 4
    assert by_campaign(rows, len(sizes)) == rows


def test_rows_that_calibrated_a_parameter_are_left_out_of_a_campaign_with_others() -> None:
    some = {"algorithm": "tree", "protocol": "ll"}
    fitted = [campaign_row(4, 1 << 20, "ncclgauge", channels=1, **some)]
    others = [campaign_row(4, 1 << 20, "ncclgauge", channels=2, **some)]
    assert fitted[0].row_sets
    assert not others[0].row_sets
    assert by_campaign(fitted + others, 5) == others
    assert by_campaign(fitted, 5) == fitted


def test_rows_of_a_csv(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.csv",
        "dgx-h100,1,4,all_reduce,ring,ll128,2,2.21.5,4,1,1024,20.5",
        "gh200x4-mesh,1,2,AllGather,auto,auto,,,,,8,5.6",
    )
    first, second = read_measurements([path])
    group = first.group
    assert (group.n_gpus, group.launch.gpus_per_thread, group.launch.graph) == (4, 4, True)
    assert dict(group.env()) == {
        "NCCL_ALGO": "ring",
        "NCCL_PROTO": "ll128",
        "NCCL_MIN_NCHANNELS": "2",
        "NCCL_MAX_NCHANNELS": "2",
        "NCCL_MIN_CTAS": "2",
        "NCCL_MAX_CTAS": "2",
    }
    assert second.group.collective == "all_gather"
    assert second.group.launch.gpus_per_thread == 1
    assert len(read_measurements([path], system="gh200x4-mesh")) == 1
    with pytest.raises(InputError, match="no rows of system 'x'; it has dgx-h100, gh200x4-mesh"):
        read_measurements([path], system="x")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("dgx-h100,1,8,all_reduce,,,,,,,big,1", "size_bytes 'big': must be an integer"),
        ("dgx-h100,1,8,all_reduce,,,,,,,8,fast", "time_us 'fast': must be a time above 0"),
        ("dgx-h100,1,1,all_reduce,,,,,,,8,1", "n_gpus '1': must be an integer from 2"),
        ("dgx-h100,1,8,all_reduce", "columns in the header"),
    ],
)
def test_bad_rows_name_their_line(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path / "m.csv", row)
    with pytest.raises(InputError) as caught:
        read_measurements([path])
    assert message in str(caught.value)


def test_rows_say_what_measured_them(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    head = "system,n_gpus,collective,threads_per_process,iters,harness,size_bytes,time_us\n"
    path.write_text(
        f"{head}dgx-h100,8,all_reduce,8,5,Torch,8,9\ndgx-h100,8,all_reduce,,,,8,9\n",
        encoding="utf-8",
    )
    known, blank = (row.harness for row in read_measurements([path]))
    assert (known.kind, known.iterations, known.launch.threads) == ("torch", 5, 8)
    assert (blank.kind, blank.iterations, blank.launch.threads) == ("", 20, 1)
    path.write_text(f"{head}dgx-h100,8,all_reduce,8,5,tourch,8,9\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"m.csv:2: harness 'tourch'.*did you mean 'torch'"):
        read_measurements([path])


def test_columns_without_effect_are_said(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(
        "system,n_gpus,collective,size_bytes,time_us,runs,rack,pod\n"
        "gh200x4-mesh,2,all_gather,8,6,3,left,\ngh200x4-mesh,2,all_gather,8,6,3,,\n",
        encoding="utf-8",
    )
    said, none = (point.notes for point in validate(read_measurements([path]), jobs=1).points)
    assert [note for note in said if note not in none] == ["columns without effect: rack"]


def test_software_of_a_run_is_an_input(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    head = "system,n_nodes,n_gpus,collective,size_bytes,time_us,plugin,environment,release\n"
    row = "aws-p5en,2,16,all_reduce,1048576,100"
    path.write_text(
        f"{head}{row},aws-ofi-nccl <1.16 (inferred),,2.27.3 to 2.28.9 (inferred)\n"
        f"{row},aws-ofi-nccl 1.16,NCCL_BUFFSIZE=1048576 NCCL_CROSS_NIC=0,\n{row},,,\n",
        encoding="utf-8",
    )
    old, given, blank = (row.group for row in read_measurements([path]))
    # Release 1.16 of the plugin is the first that enlarges buffers; the user's value has priority.
    buffers = [setup_of(group).comm.settings.buffsize for group in (old, given, blank)]
    assert buffers == [None, 1 << 20, 8 << 20]
    assert setup_of(given).comm.settings.cross_nic == 0
    assert setup_of(old).version == "2.28.9"
    assert old.assumptions[:2] == (
        "release of NCCL only known as 2.27.3 to 2.28.9: 2.28.9 assumed",
        "release of aws-ofi-nccl <1.16 not given: the newest below assumed",
    )


@pytest.mark.parametrize(
    ("bound", "enlarges"), [("<1.16", False), ("<1.17", True), ("<2.0", True), ("<2", True)]
)
def test_a_bound_is_the_newest_release_below_it(bound: str, *, enlarges: bool) -> None:
    group = CurveGroup("aws-p5en", 2, 16, "all_reduce", plugin=f"aws-ofi-nccl {bound}")
    assert (setup_of(group).comm.settings.buffsize == 8 << 20) == enlarges


@pytest.mark.parametrize(
    ("software", "message"),
    [
        ("aws-ofi-nccl new,,", "plugin: plugin release 'new': must be numbers"),
        (",NCCL_BUFSIZE=1,", "environment: NCCL_BUFSIZE: unknown NCCL variable; did you mean"),
        (",,2.28 to 2.23", "release: '2.28 to 2.23': the first release is newer"),
    ],
)
def test_bad_software_names_its_line(tmp_path: Path, software: str, message: str) -> None:
    path = tmp_path / "m.csv"
    head = "system,n_gpus,collective,size_bytes,time_us,plugin,environment,release\n"
    path.write_text(f"{head}dgx-h100,8,all_reduce,8,9,{software}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_measurements([path])
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)


def test_a_plugin_of_other_nics_is_refused() -> None:
    group = CurveGroup("dgx-h100", 2, 16, "all_reduce", plugin="aws-ofi-nccl 1.16")
    with pytest.raises(InputError, match="not a transport of dgx-h100"):
        setup_of(group)


def test_what_nobody_knows_is_a_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.csv",
        "gh200x4-mesh,1,2,all_redcue,,,,,,,8,1",
        "dgx-z9,1,2,all_reduce,,,,,,,8,1",
        "gh200x4-mesh,1,2,all_reduce,rign,,,,,,8,1",
        "gh200x4-mesh,1,2,all_reduce,,ll3,,,,,8,1",
        "gh200x4-mesh,1,2,all_reduce,,,,9.9,,,8,1",
        "gh200x4-mesh,1,2,all_reduce,,,,,,,8,6",
    )
    report = validate(read_measurements([path]), jobs=1)
    assert [point.row.where for point in report.points] == [f"{path}:7"]
    assert [item.row.where for item in report.unpredicted] == [
        f"{path}:{line}" for line in range(2, 7)
    ]
    assert {item.why for item in report.unpredicted} == {UNKNOWN}
    reasons = [item.reason for item in report.unpredicted]
    for reason, words in zip(
        reasons,
        (
            "did you mean 'all_reduce_perf'",
            "system 'dgx-z9'",
            "algorithm 'rign': not one of NCCL's",
            "protocol 'll3': not one of NCCL's",
            "NCCL version '9.9'",
        ),
        strict=True,
    ):
        assert words in reason
    lines = report_lines(report)
    assert sum("rows of an unknown word" in line for line in lines) == 5
    assert report.to_json()["unknown"][0] == {"where": f"{path}:2", "reason": reasons[0]}


def test_a_launch_that_is_not_given_is_bounded() -> None:
    known = CurveGroup("gh200x4-mesh", 1, 4, "all_reduce", nccl_version="2.27", gpus_per_process=1)
    rows = [Row(known, 8, 12.0), Row(replace(known, gpus_per_process=0), 8, 12.0)]
    given, blank = validate(rows, jobs=1).points
    assert given.span is None
    assert blank.span is not None
    assert blank.span.low_us <= given.predicted_us <= blank.span.high_us
    assert blank.within_launches
    assert not given.within_launches
    assert CollectiveReport([given, blank]).independent == [given]
    assert standings([given, blank]) == {given: INDEPENDENT, blank: LAUNCH}
    (table,) = [item for item in class_tables([given, blank]) if "unknown launch" in item.title]
    assert [line.points[0].predicted_us for line in table.lines] == [
        blank.predicted_us,
        blank.span.low_us,
        blank.span.high_us,
    ]
    assert "1 measured times are in the span" in table.lines[0].remark


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("system,time_us\na,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="no column n_gpus, collective, size_bytes"):
        read_measurements([path])


def test_a_file_that_is_no_table_has_an_error_of_measurements(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("all-reduce was slow\n", encoding="utf-8")
    with pytest.raises(InputError, match="neither a CSV table with the columns system, n_gpus"):
        read_measurements([path])


def test_systems_become_machines() -> None:
    assert setup_of(GROUP).nodes is None
    assert setup_of(GROUP).per_node is None
    part = setup_of(CurveGroup("hgx-h100-ndr", 2, 4, "alltoall"))
    assert (part.nodes, part.per_node, part.num_ranks) == (2, 2, 4)
    racks = setup_of(CurveGroup("gb200-nvl72", 36, 144, "all_reduce"))
    assert (racks.nodes, racks.per_node) == (2, None)
    with pytest.raises(InputError, match="not a preset or topology file"):
        setup_of(CurveGroup("dgx-z9", 1, 8, "all_reduce"))
    with pytest.raises(InputError, match="each has 8"):
        setup_of(CurveGroup("dgx-h100", 1, 16, "all_reduce"))


def test_domains_are_racks_that_share_the_ranks() -> None:
    """Two trays of four GPUs are one NVLink domain, or one each; without a number it is the least."""

    def placed(domains: int, system: str = "gb300-nvl72") -> tuple[int | None, int | None]:
        group = CurveGroup(system, n_nodes=2, n_gpus=8, collective="allreduce", domains=domains)
        setup = setup_of(group)
        return setup.nodes, setup.per_node

    assert placed(0) == placed(1) == (None, 8)
    assert placed(2) == (2, 4)
    assert placed(2, "dgx-h100") == (2, 4)
    with pytest.raises(InputError, match="domains 1 of 2 nodes; each node is one NVLink domain"):
        placed(1, "dgx-h100")
    with pytest.raises(InputError, match="8 GPUs on 3 nodes"):
        placed(3)


def test_a_small_validation() -> None:
    sizes = (8, 65536)
    rows = [
        Row(CurveGroup("gh200x4-mesh", 1, 2, "all_gather"), size, 6.0, where="w") for size in sizes
    ]
    rows += [Row(rows[0].group, 0, 1.0), Row(rows[0].group, 16, float("nan"))]
    report = validate(rows, jobs=1)
    assert [p.row.size_bytes for p in report.points] == [8, 65536]
    assert all(5 < p.predicted_us < 8 for p in report.points)
    assert [item.reason for item in report.unpredicted] == ["size 0", "time nan"]
    data = report.to_json()
    assert data["overall"]["small"]["n"] == 2
    assert data["groups"][0]["points"] == 2
    assert [point["size_bytes"] for point in data["points"]] == [8, 65536]
    # As measured, and as executed.
    (row, *_), point = data["points"], report.points[0]
    assert (row["algorithm"], row["protocol"], row["harness"]) == ("auto", "auto", None)
    assert row["ran"] == f"{point.algorithm} {point.protocol}"
    assert {"system", "n_nodes", "n_gpus", "collective", "algorithm", "protocol"} <= set(
        data["groups"][0]
    )


def test_what_cannot_run_is_reported_not_dropped() -> None:
    group = CurveGroup("gh200x4-mesh", 1, 2, "all_reduce", algorithm="nvls")
    report = validate([Row(group, 8, 6.0, where="file:2")], jobs=1)
    assert not report.points
    assert [item.why for item in report.unpredicted] == [FAILED]
    assert report.to_json()["failed"][0]["where"] == "file:2"


def test_rows_of_the_tool_itself(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "nccltests" / "all_reduce_golden.txt"
    text = golden.read_text(encoding="utf-8")
    path = tmp_path / "out.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="--system"):
        read_measurements([path])
    rows = read_measurements([path], system="dgx-h100")
    (group,) = groups(rows)
    assert group == CurveGroup(
        *("dgx-h100", 1, 2, "all_reduce"),
        nccl_version="2.27.3",
        gpus_per_process=2,
        threads_per_process=1,
        harness="nccl-tests",
    )
    assert {row.iters for row in rows} == {20}
    assert [row.time_us for row in rows] == [28.2, 31750.2]


def test_names_of_tables_are_text_in_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "a|b <img src=x onerror=hit()> [c](javascript:hit()) `d`.yaml"
    monkeypatch.chdir(tmp_path)
    preset = resources.find_topology("dgx-h100")
    assert preset is not None
    Path(evil).write_bytes(preset.read_bytes())
    group = replace(GROUP, system=evil)
    report = CollectiveReport([Point(Row(group, 1024, 1.0), 1.5, "Ring", "LL", (evil,))])
    write_page(report, tmp_path / "page.md", "clusim validate", [(evil, tmp_path / "a b).svg")])
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "<img" not in text
    assert "a\\|b &lt;img src=x onerror=hit()&gt; \\[c\\](javascript:hit()) \\`d\\`.yaml" in text
    assert "(a%20b%29.svg)" in text


def test_runs_on_fewer_and_more_machines_are_one_workers() -> None:
    sizes = range(1, 17)
    cases = [
        Request(Setup(name, nodes), "allreduce", size)
        for size in sizes
        for name in ("aws-p5en", "polaris")
        for nodes in (2, 4)
    ]
    batches = batches_of(cases, 8)
    assert [len(batch) for batch in batches] == [8] * 8
    for batch in batches:
        assert len({case.setup.name for case in batch}) == 1
        assert {case.setup.nodes for case in batch} == {2, 4}


def test_a_limit_of_gpus_belongs_to_campaigns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write(tmp_path / "m.csv", "dgx-h100,1,8,all_reduce,ring,simple,,2.18,8,0,8,10.0")
    assert run(["validate", str(table), "--max-gpus", "8"]) == 2
    assert "--max-gpus limits the rows of --campaign" in capsys.readouterr().err
