"""Software inferred from the shape of measured curves, against releases that are known.

``known_software.csv`` has rows of public tables: aiconfigurator (8 H100), simllm (2 and 4 A100).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusim.nccl.constants import parse_version
from clusim.validation.collectives.inference import InferredSoftware, infer
from clusim.validation.collectives.measurements import CurveGroup, Row, read_measurements
from clusim_cli.main import cli

KNOWN = Path(__file__).with_name("known_software.csv")


@pytest.fixture(scope="module")
def curves() -> list[tuple[InferredSoftware, str]]:
    """Return what is inferred without the releases, and the releases."""
    rows = read_measurements([KNOWN])
    blank = [replace(row, group=replace(row.group, nccl_version="")) for row in rows]
    truth = {
        (hidden.group, hidden.source): row.group.nccl_version
        for row, hidden in zip(rows, blank, strict=True)
    }
    return [(item, truth[item.group, item.source]) for item in infer(blank, jobs=1)]


def test_the_release_of_a_curve_is_never_excluded(
    curves: list[tuple[InferredSoftware, str]],
) -> None:
    assert len(curves) == 3
    for item, release in curves:
        version = parse_version(release)[:2]
        names = sorted(parse_version(name) for some in item.errors for name in some)
        represented = next(name for name in names if name[:2] >= version)
        assert str(represented) in item.fitting(), item.line()


def test_shapes_exclude_releases_with_other_switch_points(
    curves: list[tuple[InferredSoftware, str]],
) -> None:
    """2.17 to 2.19 choose otherwise on 8 H100 and on two A100."""
    lines = {(item.group.system, item.group.n_gpus): item for item, _ in curves}
    assert {"2.17", "2.18"} <= set(lines["dgx-h100", 8].fitting(fits=False))
    assert {"2.17", "2.18"} <= set(lines["a100x4-mesh", 2].fitting(fits=False))


def test_software_within_a_factor_is_not_told_apart() -> None:
    errors = {("2.30", "2.29"): 0.05, ("2.18",): 0.09}
    item = InferredSoftware(CurveGroup("x"), "y", errors)
    assert item.fitting(fits=False) == []
    assert "cannot be told, all known software fits within 2x of 5.0%" in item.line()
    clear = replace(item, errors={**errors, ("2.18",): 0.1})
    assert clear.fitting() == ["2.29", "2.30"]
    assert clear.line().endswith("excluded: 2.18 (10.0% and more)")
    plugins = {("efa 1.17",): 0.02, ("efa 1.16",): 0.05, ("efa <1.16",): 0.05}
    assert replace(item, errors=plugins).fitting(fits=False) == ["efa <1.16", "efa 1.16"]


def test_a_factor_on_all_times_changes_nothing() -> None:
    group = CurveGroup("a100x4-mesh", 1, 2, "all_reduce", harness="nccl-tests", gpus_per_process=1)
    sizes = [1 << n for n in range(14, 24)]
    rows = [Row(group, size, 10 + size / 20_000, "x", f"x:{size}") for size in sizes]
    slow = [replace(row, time_us=3 * row.time_us) for row in rows]
    one, three = infer(rows, jobs=1), infer(slow, jobs=1)
    for names, error in one[0].errors.items():
        assert three[0].errors[names] == pytest.approx(error)


def test_curves_that_tell_nothing_say_why() -> None:
    group = CurveGroup("dgx-h100", 1, 8, "all_reduce")
    few = [Row(group, 1 << n, 30.0, "x", "x:1") for n in (14, 15, 16)]
    assert infer(few, jobs=1)[0].why_not == "fewer than 6 sizes from 16 KiB on"


def test_the_command_prints_a_line_or_json(tmp_path: Path) -> None:
    table = tmp_path / "curve.csv"
    lines = KNOWN.read_text(encoding="utf-8").replace(",2.31.2,", ",,").splitlines()
    table.write_text("\n".join([lines[0], *(r for r in lines if "mesh,1,2" in r)]), "utf-8")
    words = ["validate", str(table), "--infer", "--jobs", "1", "--no-progress"]
    text = CliRunner().invoke(cli, words)
    assert text.exit_code == 0
    assert "fits 2.7" not in text.stdout
    assert "excluded:" in text.stdout
    (item,) = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)["inferred"]
    assert "2.31" in item["fits"]
    assert "2.18" in item["excluded"]
