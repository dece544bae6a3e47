"""Chips as objects: one file each, every figure with unit, mark and source, found without a list of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clusim import hardware, topology
from clusim.base.errors import InputError
from clusim.hardware import FAMILIES, GPUS, MARKS, all_figures, count_marks, gpu
from clusim.hardware.catalog import _read_gpus
from clusim.hardware.figures import Figure, assumed
from clusim.hardware.gpu import FIGURES, gpu_of
from clusim.hardware.product_names import gpu_by_product, gpu_by_words

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "pysim" / "clusim" / "hardware" / "gpus"
PAGE = (ROOT / "docs" / "add-a-chip.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def clusim(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the chips of a directory."""
    return subprocess.run(
        [sys.executable, "-m", "clusim", *words],
        cwd=directory,
        env={**os.environ, "CLUSIM_GPUS": str(directory)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_file_is_one_gpu_of_its_name() -> None:
    assert {path.stem for path in FILES.glob("*.yaml")} == set(GPUS)


def test_the_page_adds_a_chip_in_one_file(tmp_path: Path) -> None:
    chip, system = blocks("yaml")
    (tmp_path / "a100-sxm-64gb.yaml").write_text(chip, encoding="utf-8")
    (tmp_path / "leonardo.yml").write_text(system, encoding="utf-8")
    shown = clusim(tmp_path, "topo", "show", "leonardo.yml", "--figures")
    assert shown.returncode == 0, shown.stderr
    chip = "chip a100-sxm-64gb: "
    assert re.search(chip + r"memory_rate\W+1640 GB/s \(published: ", shown.stdout)
    assert re.search(chip + r"gemm_fraction\W+0.87 \(assumed: ", shown.stdout)
    assert clusim(tmp_path, "run", "leonardo.yml", "--size", "64KiB").returncode == 0
    assert clusim(tmp_path, "explain", "leonardo.yml", "--size", "64KiB").returncode == 0


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("links:", "linkz:", "no figure is called 'linkz'; did you mean 'links'?"),
        ("  peer_access:", "#", "figure 'peer_access' [true or false] is missing"),
        ("value: 15360MiB", "value: '16'", "memory: '16' is without unit"),
        (
            "value: 15360MiB, mark: published, source: '{driver}'",
            "value: 16GiB, mark: published",
            "is without source",
        ),
        (
            "'{driver}'",
            "'{drivers}'",
            "memory: no source is called 'drivers'; did you mean 'driver'?",
        ),
        (
            "mark: published",
            "mark: public",
            "mark is 'public'; it must be one of published, calibrated, assumed",
        ),
        (
            "mark: published",
            "marked: published",
            "is not a figure; write {value: ..., mark: published",
        ),
        ("products:", "produkts:", "no key is called 'produkts'; did you mean 'products'?"),
        ("products:", "names: [a]\n#", "key 'products' is missing"),
        ("form: card", "form: 7", "form is 7; it must be one of sxm, superchip, card, oam, apu"),
        ("pcie: 3", "pcie: three", "pcie is 'three'; it must be a generation, 1 to 6"),
        (
            "architecture: volta",
            "architecture: volt",
            "architecture is 'volt'; it must be one of ada, ",
        ),
        (
            "architecture: volta",
            "base: t9",
            "base is 't9', which is not another GPU",
        ),
        ("architecture: volta", "form: card", "duplicate key 'form'"),
        ("10de:1eb9", "10de:1eb8", "PCI id 10de:1eb8 is taken by t4.yaml"),
        ("10de:1eb9", "1eb9", "'1eb9' is not a PCI identity; write vendor:device"),
        ("figures:", "figures: [", "while parsing a flow"),
        ("{value: 40,", "{value: forty,", "sms: 'forty' must be an integer number"),
        ("{value: 40,", "{value: [1],", "sms: value is [1]; it must be a number"),
        ("links: {value: 0,", "links: {value: 0.5,", "links: 0.5 must be an integer"),
        ("sources: {", "sources: 3 #{", "sources is 3; it must be a mapping"),
        ("pci_ids: [", "pci_ids: 7 #[", "pci_ids is 7; it must be a list"),
        ("pcie: 3", "planes: [a]", "planes is ['a']; it must be a list of integers"),
        (
            "mark: published, source: '{cuda}'",
            "mark: calibrated, source: mine, rows: 5",
            "rows is 5; it must be a list of names",
        ),
    ],
)
def test_a_wrong_file_is_one_line_that_names_file_and_key(
    tmp_path: Path, old: str, new: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (FILES / "t4.yaml").read_text(encoding="utf-8")
    text = text.replace("10de:1eb8", "10de:1eb9").replace("usual: true\n", "")
    assert old in text
    (tmp_path / "t9.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setenv("CLUSIM_GPUS", str(tmp_path))
    with pytest.raises(InputError) as caught:
        _read_gpus()
    (line,) = str(caught.value).splitlines()
    assert "t9.yaml: " in line
    assert error in line


def test_the_directory_of_chips_runs_no_code(tmp_path: Path) -> None:
    (tmp_path / "t9.py").write_text("raise SystemExit(7)", encoding="utf-8")
    done = clusim(tmp_path, "topo", "list")
    assert (done.returncode, done.stderr) == (
        2,
        "clusim: t9.py: GPUs are YAML files; write t9.yaml\n",
    )
    (tmp_path / "t9.py").rename(tmp_path / "h100-sxm5.yaml")
    assert "there is a GPU 'h100-sxm5' already" in clusim(tmp_path, "topo", "list").stderr


def test_what_identifies_a_chip_is_not_inherited() -> None:
    for item in GPUS.values():
        other = gpu_of("other", {"products": ["Other"]}, FAMILIES, item)
        assert (other.pci_ids, other.gfx, other.stands_for) == ((), (), ())
        assert (other.names, other.machines, other.usual) == ((), (), False)
        assert other.figures == item.figures


def test_another_pcie_generation_than_the_base_sets_the_rate() -> None:
    given = {"products": ["Other"], "pcie": 5}
    assert (
        gpu_of("other", given, FAMILIES, GPUS["a10"]).figures["pcie_rate"].source == "PCIe Gen5 x16"
    )
    with pytest.raises(InputError, match="pcie is 'gen4-x8'; it must be a generation, 1 to 6"):
        gpu_of("other", given | {"pcie": "gen4-x8"}, FAMILIES, GPUS["a10"])


def test_links_and_their_type_go_together() -> None:
    with pytest.raises(InputError, match="link is '', but the figure 'links' is 4"):
        replace(gpu("p100-sxm2"), link="")


def test_every_figure_has_a_mark_and_a_source() -> None:
    for figure in all_figures():
        assert isinstance(figure, Figure)
        assert figure.mark in MARKS
        assert len(figure.source) > 8, figure


@pytest.mark.parametrize("mark", ["published", "calibrated"])
def test_only_assumed_figures_say_that_nobody_measured_them(mark: str) -> None:
    unsure = re.compile(r"not measured|^as |not published|nobody", re.IGNORECASE)
    for figure in all_figures():
        if figure.mark == mark:
            assert not unsure.search(figure.source), figure


def test_calibrated_figures_of_chips_name_their_measurement() -> None:
    """A figure copied from another chip is assumed: no two chips are calibrated on the same memory or matrix rows."""
    for key in ("memory_efficiency", "gemm_fraction"):
        sources = [
            item.figures[key].source
            for item in GPUS.values()
            if item.figures[key].mark == "calibrated"
        ]
        assert len(set(sources)) == len(sources) >= 3


def test_the_readme_counts_the_marks() -> None:
    rows = re.findall(
        r"^\| (\w+) \| ([\d,]+) \| (\d+) \|", (ROOT / "README.md").read_text("utf-8"), re.M
    )
    shown = topology.describe(topology.load("dgx-h100"))
    marks = count_marks(all_figures())
    assert rows == [
        (mark, f"{marks[mark]:,}", str(len(re.findall(rf"\({mark}[:,] ", shown)))) for mark in MARKS
    ]


def test_every_chip_is_found_by_its_product_names() -> None:
    for item in GPUS.values():
        for product in item.products:
            assert gpu_by_product(product) is item, product


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100", "h100-sxm5"),
        ("A100 40GB", "a100-sxm4-40gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("h100_pcie", "h100-pcie"),
        ("L40S", "l40s"),
        ("NVIDIA H800", "h800-sxm5"),
        ("HGX H100", "h100-sxm5"),
        ("RTX 4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("A100 80 GB", "a100-sxm4-80gb"),
        ("B200 180GB HBM3e", "b200-sxm"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("GB200 NVL72", "gb200"),
        ("Vera Rubin NVL72", "vr200"),
    ],
)
def test_names_that_people_write_find_the_chip(text: str, name: str) -> None:
    assert gpu_by_product(text) is gpu(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("p4d-24xl-topo.xml", "a100-sxm4-40gb"),
        ("p4d with A100", "a100-sxm4-40gb"),
        ("p5en", "h200-sxm5"),
        ("p6e-gb200", "gb200"),
        ("8xh100-ndr.xml", "h100-sxm5"),
        ("h100x8-400g.txt", "h100-sxm5"),
        ("rtx4090x8-pcie.yaml", "rtx-4090"),
        ("box-a800-80gb-pcie.txt", "a800-pcie-80gb"),
        ("v100s.txt", "v100s-pcie"),
    ],
)
def test_file_names_name_systems_and_chips(text: str, name: str) -> None:
    found = gpu_by_words(text)
    assert found is not None
    assert found[0] is gpu(name)


@pytest.mark.parametrize("text", ["rtx-4090-d.txt", "a100 64gb", "rtx-3090-d.xml", "mi300x-pcie"])
def test_a_known_model_with_another_qualifier_in_a_file_name_is_no_chip(text: str) -> None:
    found = gpu_by_words(text)
    assert found is not None
    assert found[0] is None


def test_amd_numbers_shared_by_two_chips_are_told_apart_by_their_units() -> None:
    assert hardware.gpu_by_gfx("gfx906", 60) is gpu("mi50")
    assert hardware.gpu_by_gfx("gfx906", 64) is gpu("mi60")
    assert hardware.gpu_by_gfx("gfx906") is gpu("mi60")
    assert hardware.gpu_by_gfx("gfx942:sramecc+") is gpu("mi300x")


def test_a_unit_that_does_not_fit_its_key_is_an_error() -> None:
    wrong = {**gpu("t4").figures, "memory_rate": assumed("16GiB", "a size for a rate")}
    with pytest.raises(InputError, match="memory_rate: "):
        replace(gpu("t4"), figures=wrong)
    assert set(gpu("t4").figures) <= set(FIGURES)
