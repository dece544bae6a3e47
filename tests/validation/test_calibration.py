"""Figures that are fitted to measured collectives: what moves, by how much, and what it predicts."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path

import numpy as np
import pytest

import clusim
from clusim.base.errors import ClusimError, InputError
from clusim.formats.recordings.inspector import read as read_inspector
from clusim.hardware import FAMILIES
from clusim.hardware.figures import Figure
from clusim.topology import load
from clusim.topology.overlays import figure_at, write_overlay
from clusim.validation.calibration.figures import NORMAL_90, candidates_of
from clusim.validation.calibration.fit import LinearFit, fit, ordered_figures
from clusim.validation.calibration.rows import inspector_rows
from clusim_cli.main import run

pytestmark = pytest.mark.usefixtures("without_proof")

SYSTEM = "gh200x4-mesh"
LL = "protocol hopper.ll: throughput"
OVERHEAD = "architecture hopper: kernel_overhead"
TRACES = Path(__file__).resolve().parents[2] / "traces"


def moved(place: str, factor: float, folder: Path) -> str:
    """Write a system with one figure times a factor; return its file."""
    (found,) = [item for item in candidates_of(load(SYSTEM)) if item.place == place]
    path = folder / "true.yaml"
    write_overlay(path, SYSTEM, {place: found.move(log(factor), source="law")})
    return str(path)


def measured(
    system: str, folder: Path, *programs: str, flags: str = "-b 1K -e 1M -f 4"
) -> list[Path]:
    """Write the simulated tables of a system."""
    files = []
    for program in programs:
        files.append(folder / f"{program}.txt")
        files[-1].write_text(clusim.nccl_tests(program, system, flags).text(), encoding="utf-8")
    return files


@pytest.mark.parametrize(("place", "factor"), [(LL, 0.8), (OVERHEAD, 1.35)])
def test_a_figure_that_generated_the_times_is_recovered_within_its_interval(
    tmp_path: Path, place: str, factor: float
) -> None:
    files = measured(moved(place, factor, tmp_path), tmp_path, "all_reduce", "all_gather")
    found = clusim.calibrate(SYSTEM, files, jobs=1)
    assert [item.place for item in found.figures] == [place]
    (item,) = found.figures
    assert abs(log(item.factor / factor)) <= NORMAL_90 * item.spread + 1e-3
    assert item.spread < item.prior_spread / 10
    assert found.after_pct < 0.1 < found.before_pct
    assert all(part.after_pct < 0.2 for part in found.left_out)


def test_times_of_the_preset_move_nothing(tmp_path: Path) -> None:
    found = clusim.calibrate(SYSTEM, measured(SYSTEM, tmp_path, "all_reduce"), jobs=1)
    assert not found.figures
    assert found.after_pct == found.before_pct == pytest.approx(0, abs=0.1)


def test_an_overlay_of_a_calibration_predicts_other_sizes_and_collectives(tmp_path: Path) -> None:
    true = moved(LL, 0.8, tmp_path)
    three = measured(true, tmp_path, "all_reduce", flags="-b 4K -e 1M -f 16")
    overlay = tmp_path / "mine.yaml"
    clusim.calibrate(SYSTEM, three, jobs=1).write(overlay)

    def times(system: str) -> list[float]:
        table = clusim.nccl_tests("broadcast", system, "-b 16K -e 512K -f 2")
        return [line.halves[0].time_us for line in table.lines]

    truth, before, after = (np.array(times(str(name))) for name in (true, SYSTEM, overlay))
    assert np.abs(after / truth - 1).max() < 0.5 * np.abs(before / truth - 1).max()


def test_figures_without_effect_stay_at_their_priors_and_slopes_are_solved_exactly() -> None:
    # Two figures; the times depend on the first only: t = 0.5 x, of which x is 0.2.
    slopes = np.array([[0.5, 0.0], [0.5, 0.0], [0.25, 0.0]])
    start = LinearFit(0.2 * slopes[:, 0], np.zeros(3), slopes, np.array([1.0, 0.4]), np.zeros(2))
    found = fit(start, lambda at: slopes @ at)
    assert found.at == pytest.approx([0.2, 0.0], abs=1e-4)
    assert found.at[1] == 0
    assert found.deviations(range(3))[1] == pytest.approx(0.4)
    assert ordered_figures(start.residuals, slopes, start.spreads, 4) == [0]


def test_one_wrong_row_of_ten_hardly_moves_a_figure() -> None:
    slopes = np.ones((10, 1))
    logs = np.full(10, 0.1)
    logs[3] = 2.0
    found = fit(
        LinearFit(logs, np.zeros(10), slopes, np.ones(1), np.zeros(1)), lambda at: slopes @ at
    )
    assert found.at[0] == pytest.approx(0.1, abs=0.01)


def test_published_figures_sizes_and_figures_of_kernels_are_no_candidates() -> None:
    found = candidates_of(load("dgx-h100", nodes=2))
    assert {LL, OVERHEAD, "link type nvlink4: latency"} <= {item.place for item in found}
    for item in found:
        assert figure_at(item.place).mark != "published"
        assert not item.place.startswith("kernels"), item.place
        assert exp(NORMAL_90 * item.spread) >= 1.25 - 1e-9


def test_an_overlay_replaces_a_figure_everywhere_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    overhead = Figure("9us", "calibrated", "law")
    latency = Figure("300ns", "calibrated", "law", bounds=(0.9, 1.1))
    write_overlay(path, "dgx-h100", {OVERHEAD: overhead, "link type nvlink4: latency": latency})
    fabric = load(path)
    assert {link.latency_ps for link in fabric.links if link.cls == "nvlink"} == {300_000}
    assert fabric.sources["link type nvlink4: latency"] == str(latency)
    assert fabric.figures[str(FAMILIES["hopper"].kernel_overhead)] == overhead
    # 4.2 us more between kernels, and nothing else of the launch.
    own, base = (clusim.collective(name, "allreduce", 8) for name in (path, "dgx-h100"))
    assert own.launched_ps is not None
    assert base.launched_ps is not None
    more_ps = (own.launched_ps - own.time_ps) - (base.launched_ps - base.time_ps)
    assert more_ps == pytest.approx(4_200_000, abs=1000)
    # On it: the outer overlay holds, and its base's other figures.
    outer = tmp_path / "two.yaml"
    write_overlay(outer, str(path), {OVERHEAD: Figure("10us", "calibrated", "law")})
    assert load(outer, nodes=2).figures[str(FAMILIES["hopper"].kernel_overhead)].value == "10us"
    assert load(outer).sources["link type nvlink4: latency"] == str(latency)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: dgx-1v", "an overlay has a 'base' and its 'figures'"),
        ("base: dgx-1v\nvcs: 3\nfigures: {a: {value: 1us, mark: assumed, source: b}}", "belongs to a complete system"),
        ("base: dgx-1v\nfigures: {'host intel: lunch': {value: 1us, mark: assumed, source: b}}", "mean 'launch'"),
        ("base: dgx-1v\nfigures: {'chip v100-sxm2: sms': {value: 81, mark: assumed, source: b}}", "published figure"),
        ("base: dgx-1v\nfigures: {window: {value: 1us, mark: published, source: b}}", "there are calibrated, assumed"),
        ("base: none\nfigures: {window: {value: 1KiB, mark: assumed, source: b}}", "no such preset or file"),
    ],
)  # fmt: skip
def test_a_wrong_overlay_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(ClusimError) as caught:
        load(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_inspector_times_kernels_by_their_last_rank() -> None:
    rows = inspector_rows(read_inspector([str(TRACES / "inspector-8ranks.jsonl")]), "dgx-h100")
    (row,) = [
        row for row in rows if row.group.collective == "all_reduce" and row.size_bytes == 64 << 20
    ]
    assert row.time_us == 271.5
    assert row.group.n_gpus == 8
    assert row.harness.kind == "kernel"


def test_the_command_writes_an_overlay_or_says_that_nothing_moved(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = "-b 64 -e 64K -f 8"
    files = measured(moved(OVERHEAD, 1.35, tmp_path), tmp_path, "all_reduce", flags=flags)
    out = tmp_path / "mine.yaml"
    words = ["calibrate", SYSTEM, *map(str, files), "--jobs", "1", "-o"]
    assert run([*words, str(out), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [item["place"] for item in data["figures"]] == [OVERHEAD]
    assert load(out).figures
    measured(SYSTEM, tmp_path, "all_reduce", flags=flags)
    assert run([*words, str(tmp_path / "no.yaml")]) == 2
    assert "no.yaml: not written: no figure of gh200x4-mesh fits" in capsys.readouterr().err


def test_steps_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    head = "hardware,framework,model,n_gpus,seq,global_batch,step_s\n"
    path.write_text(head + "h100,nemo,llama3-8b,8,4096,8,1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"steps\.csv: steps, not collectives"):
        clusim.calibrate("dgx-h100", [path])
