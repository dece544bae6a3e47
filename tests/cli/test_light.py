"""Installations without what may be left out: the same results, or one line that says what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import clusim
from clusim.base import kept as base_kept
from clusim.base import resources
from clusim.base.kept import PLACE, model_digest
from clusim.hardware import SWITCHES
from clusim.hardware.figures import scaled_figures
from clusim.nccl import communicator
from clusim.nccl.constants import LATEST
from clusim.nccl.env import Settings
from clusim.topology import shelf, to_yaml
from clusim.topology.loading import rows

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("matplotlib", "google.protobuf", "numba", "rich")

PROGRAM = f"""
import sys
for name in {HEAVY}:
    sys.modules[name] = None
from clusim_cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def light(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command where the heavy libraries cannot be imported."""
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the trace of a run without the heavy libraries."""
    found = tmp_path_factory.mktemp("light")
    done = light("run", "a100x4-mesh", "--size", "64KiB", "--trace-out", "run.h5", folder=found)
    assert done.returncode == 0, done.stderr
    return found


def test_a_report_is_written_without_them(folder: Path) -> None:
    assert light("report", "run.h5", "-o", "run.html", folder=folder).returncode == 0
    assert "<html" in (folder / "run.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("plot", "run.h5", "heatmap"),
            "pictures: needs matplotlib; pip install 'clusim-net[plot]'",
        ),
        (
            ("topo", "show", "dgx-1v", "--png", "a.png"),
            "pictures: needs matplotlib; pip install 'clusim-net[plot]'",
        ),
        (
            ("traffic", "hgx-h20", "--nodes", "2", "--message", "4KiB", "--policy", "sender=swift"),
            "policy swift (without --engine reference): needs numba; pip install 'clusim-net[policies]'",
        ),
        (
            ("replay", ROOT / "traces" / "chakra-4ranks", "dgx-a100"),
            "Chakra traces in protobuf: needs protobuf; pip install 'clusim-net[chakra]'",
        ),
    ],
)
def test_what_needs_them_says_so(words: tuple[object, ...], line: str, folder: Path) -> None:
    done = light(*words, folder=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"clusim: {line}"]


IMPORTED = """
import sys
from clusim_cli.main import main
try:
    main()
finally:
    names = {name.partition(".")[0] for name in sys.modules} | set(sys.modules)
    print(*sorted(names), file=sys.stderr)
"""

SLOW = {
    *("pydantic", "networkx", "rich", "h5py", "multiprocessing", "http", "matplotlib", "yaml"),
    *(
        "clusim.topology.schema",
        "clusim.topology.validate",
        "clusim.training",
        "clusim.formats.logs",
    ),
}
"""Libraries and modules that neither a list nor a small run needs."""


def imported(*words: str, cache: Path, code: str = IMPORTED) -> set[str]:
    """Return the modules that a command imports once its topologies are cached."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**os.environ, "CLUSIM_CACHE": str(cache)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_a_list_of_topologies_imports_few_modules(tmp_path: Path) -> None:
    names = imported("topo", "list", cache=tmp_path)
    assert not names & {*SLOW, "numpy", "cffi", "clusim.hardware", "clusim.simulation"}
    ours = {name for name in names if name.startswith("clusim.")}
    assert ours == {
        *("clusim.base", "clusim.base.display", "clusim.base.errors", "clusim.base.files"),
        *("clusim.base.importer_hook", "clusim.base.kept", "clusim.base.limits"),
        *(
            "clusim.base.records",
            "clusim.base.resources",
            "clusim.base.tables",
            "clusim.base.terms",
        ),
        *("clusim.base.terms.dtypes", "clusim.base.terms.operations", "clusim.base.units"),
        *("clusim.topology", "clusim.topology.loading", "clusim.topology.shelf"),
    }


@pytest.mark.parametrize("words", [("star:8",), ("dgx-h100", "--algorithm", "ring")])
def test_a_small_run_imports_no_slow_library(words: tuple[str, ...], tmp_path: Path) -> None:
    names = imported("run", *words, "--size", "64KiB", cache=tmp_path)
    assert not names & SLOW
    assert "clusim.simulation" in names


FIRST = """
import sys
import click
from clusim_cli.main import main

def printed(text, *more, echo=click.echo, **how):
    if "  time " in text:
        print(*sorted(sys.modules), file=sys.stderr)
    echo(text, *more, **how)

click.echo = printed
main()
"""

MOST_MODULES = 204
"""Modules of clusim that a small run imports before it prints its time; a further one lasts about 1 ms."""


def test_the_time_of_a_small_run_is_printed_before_its_diagnosis_is_imported(
    tmp_path: Path,
) -> None:
    names = imported("run", "dgx-h100", "--size", "64KiB", cache=tmp_path, code=FIRST)
    ours = {name for name in names if name.partition(".")[0] in ("clusim", "clusim_cli")}
    assert len(ours) <= MOST_MODULES
    assert not {name for name in ours if name.startswith("clusim.analysis.")}
    assert "clusim.report.runreport" not in ours


def _kept(folder: Path) -> list[Path]:
    """Return the answers for this version."""
    return list(folder.glob(f"parts-{model_digest()}/*"))


def test_a_changed_file_has_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with equal size and time of modification; an unchanged one is not read again."""
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    monkeypatch.setattr(resources, "cached", True)
    monkeypatch.setattr(base_kept, "PACKAGE", tmp_path / "package")
    file = tmp_path / "package" / "figures.yaml"
    file.parent.mkdir()

    def digest() -> str:
        model_digest.cache_clear()
        return model_digest()

    try:
        file.write_text("a: 1")
        first, about = digest(), file.stat()
        with monkeypatch.context() as later:
            later.setattr(base_kept, "file_digest", None)
            assert digest() == first
        file.write_text("a: 2")
        os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
        assert digest() != first
        monkeypatch.setattr(resources, "cached", False)
        assert digest() != first
    finally:
        model_digest.cache_clear()


def test_a_cached_topology_is_the_built_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged, foreign and missing files are built again; a folder that cannot be written is no error."""
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    built = clusim.load("dgx-a100", nodes=2)
    monkeypatch.setattr(resources, "cached", True)
    for _ in range(2):
        found = clusim.load("dgx-a100", nodes=2)
        assert (found, found.source_files) == (built, built.source_files)
    kept = _kept(tmp_path / "cache")
    assert len(kept) == 2  # the node as well
    for damage in (kept[0].read_bytes()[:-9], b""):
        for path in kept:
            path.write_bytes(damage)
        assert clusim.load("dgx-a100", nodes=2) == built
    monkeypatch.setenv(PLACE, "/proc/none")
    assert clusim.load("dgx-a100", nodes=2) == built


def test_cached_graphs_are_those_of_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not searched again; another variable or release is another search."""
    module = sys.modules["clusim.nccl.searched_systems"]
    fabric = clusim.load("dgx-1v")
    expected = communicator(fabric).graphs
    monkeypatch.setenv(PLACE, str(tmp_path))
    monkeypatch.setattr(resources, "cached", True)
    module.search_graphs.cache_clear()
    assert communicator(fabric).graphs == expected
    module.search_graphs.cache_clear()
    with monkeypatch.context() as later:
        later.setattr(module, "search", None)
        assert communicator(fabric).graphs == expected
        for version, settings in (((2, 10), Settings()), (LATEST, Settings(nvb_disable=True))):
            with pytest.raises(TypeError):
                communicator(fabric, version, settings)


def test_a_cached_topology_does_not_hide_scaled_figures_and_does_not_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intervals load a system again with other figures."""
    monkeypatch.setenv(PLACE, str(tmp_path))
    monkeypatch.setattr(resources, "cached", True)
    factors = {str(SWITCHES["nvswitch3"]["latency"]): 2.0}

    def latencies() -> set[int]:
        nodes = clusim.load("dgx-h100").nodes
        return {node.latency_ps for node in nodes if node.model == "nvswitch3"}

    with scaled_figures(factors):
        assert latencies() == {220_000}
    assert latencies() == {110_000}
    with scaled_figures(factors):
        assert latencies() == {220_000}


def test_another_installation_of_the_same_version_has_its_own_topologies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that a topology names are those of the installation that reads them."""
    monkeypatch.setenv(PLACE, str(tmp_path))
    monkeypatch.setattr(resources, "cached", True)
    with monkeypatch.context() as other:
        other.setattr(shelf, "PACKAGE", tmp_path / "other")
        clusim.load("dgx-a100")
    assert len(_kept(tmp_path)) == 1
    clusim.load("dgx-a100")
    assert len(_kept(tmp_path)) == 2


def test_files_of_the_user_are_never_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    (tmp_path / "mine.yaml").write_text(to_yaml(clusim.load("star:4")), encoding="utf-8")
    monkeypatch.setattr(resources, "cached", True)
    assert clusim.load(tmp_path / "mine.yaml").num_ranks == 4
    monkeypatch.setenv("CLUSIM_TOPOLOGIES", str(tmp_path))
    assert clusim.load("mine").num_ranks == 4
    assert len(rows()["presets"]) > 30
    answers = [
        json.loads(path.read_bytes().partition(b"\n")[2]) for path in _kept(tmp_path / "cache")
    ]
    assert all(isinstance(answer, dict) for answer in answers)  # hardware; topologies are text


def test_the_core_is_what_the_rest_is_left_out_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    heavy = {line for name in ("chakra", "plot", "policies", "progress") for line in extras[name]}
    lines = (ROOT / "requirements-core.txt").read_text(encoding="utf-8").splitlines()
    core = {line for line in lines if line and not line.startswith("#")}
    assert core | heavy == set(project["dependencies"])
    assert not core & heavy
