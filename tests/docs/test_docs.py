"""What the documentation shows is run: commands, Python blocks, examples, links."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from clusim.nccl.constants import LATEST, OLDEST
from clusim_cli.main import run
from docs.test_console import commands_compared
from support.covering import THOROUGH

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = {
    "custom_topology.py": 15,
    "custom_algorithm.py": 20,
    "training_schedule.py": 30,
    "variables.py": 45,
}


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


MINUTES = {
    "clusim train llama3-405b-16k --estimate",
    "clusim train gpt3-1.3b-ddp --estimate",
}
"""Commands of 20 s of processor time and more, in thorough runs only.

`tests/cli/test_time_limit.py` plans the first step, `tests/training/test_followed_parts.py` extrapolates such parts.
"""


LARGE = re.compile(r"(--(?:size|message)) \d+[MG]iB\b")
REPLAY = re.compile(r"replay traces/nccl-8xh100\.log")


def shortened(line: str) -> str:
    """Return a command with at most 64 KiB, and one call of a log: no page shows what it prints."""
    if THOROUGH:
        return line
    return REPLAY.sub(r"\g<0> --calls 1", LARGE.sub(r"\1 64KiB", line))


def is_run_elsewhere(line: str, page: Path) -> bool:
    """Whether a page before has a command, too, that uses no file of its page, or its output is compared."""
    if re.search(r" -o |\w\.(h5|html|yaml)\b", line):
        return False
    return line in commands_compared() or any(
        line in block.splitlines()
        for other in PAGES[: PAGES.index(page)]
        for block in blocks(other, "sh")
    )


@pytest.mark.usefixtures("without_proof")
@pytest.mark.parametrize("page", with_blocks("sh"), ids=lambda page: page.name)
def test_commands_work(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            assert words[0] == "clusim", line
            if line in MINUTES and not THOROUGH:
                assert (ROOT / "traces" / "clusters" / f"{words[2]}.yaml").exists()
                continue
            if not is_run_elsewhere(line, page):
                words = shlex.split(shortened(line), comments=True)
                assert run(words[1:]) == 0, capsys.readouterr().err


@pytest.mark.usefixtures("without_proof")
@pytest.mark.parametrize("page", with_blocks("python"), ids=lambda page: page.name)
def test_python_blocks_work(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are files: policies are compiled from their source. Derivatives are estimates of the path."""
    if not THOROUGH:
        monkeypatch.setattr("clusim.simulation.diagnose.CHECKED_GRANTS", 0)
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks(page, "python")):
        file = tmp_path / f"block{number}.py"
        file.write_text(block, encoding="utf-8")
        runpy.run_path(str(file), run_name=file.stem)


def test_the_topology_shown_is_a_topology(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(ROOT / "docs" / "topology-format.md", "yaml")
    (tmp_path / "two-planes.yaml").write_text(block, encoding="utf-8")
    assert run(["topo", "check", "two-planes.yaml"]) == 0
    assert run(["run", "two-planes.yaml", "--size", "1MiB"]) == 0
    assert "busbw" in capsys.readouterr().out


def test_every_key_of_topology_files_is_documented() -> None:
    from clusim.topology.schema import Topology

    page = (ROOT / "docs" / "topology-format.md").read_text(encoding="utf-8")
    for key in Topology.model_fields:
        assert f"`{key}`" in page, key


def test_every_group_of_a_trace_is_documented() -> None:
    from clusim.results.trace.layout import RULES

    page = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    for name in RULES:
        assert name.startswith("@") or f"`/{name.split('/')[1]}`" in page, name


def test_every_primitive_is_documented() -> None:
    from clusim.engine.image import OPCODES

    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    for name in OPCODES:
        assert f"`{name}`" in page, name


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_work_and_are_short(name: str, tmp_path: Path) -> None:
    path = ROOT / "docs" / "examples" / name
    done = subprocess.run(
        [sys.executable, path],
        check=True,
        cwd=tmp_path,
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert " us, " in done.stdout
    assert own_lines(path) <= EXAMPLES[name]


def own_lines(path: Path) -> int:
    """Count the lines that make the topology or the algorithm: no docstrings, imports or `main`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    count = 0
    for node in tree.body:
        if isinstance(node, ast.If | ast.Import | ast.ImportFrom):
            continue
        if not (isinstance(node, ast.FunctionDef) and node.name == "main"):
            count += (node.end_lineno or 0) - node.lineno + 1
    return count


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_output_in_the_readme_is_that_of_the_main_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of it in a thorough run; otherwise the names of its lines, by a smaller job."""
    (shown,) = blocks(ROOT / "README.md", "text")
    command = "run dgx-a100 --collective allreduce --algorithm ring --size 64MiB --no-progress"
    if not THOROUGH:
        command = command.replace("64MiB", "2MiB")
    assert run(command.split()) == 0
    mask = re.compile(r"(wall time +).*")
    printed = capsys.readouterr().out
    if THOROUGH:
        assert mask.sub(r"\1...", shown) == mask.sub(r"\1...", printed)
    names = [re.findall(r"^  (\w+(?: \w+)*)  ", text, re.MULTILINE) for text in (shown, printed)]
    assert names[0] == names[1]


def test_the_bottleneck_in_the_readme_accuses_no_single_part_of_a_symmetric_ring() -> None:
    (shown,) = blocks(ROOT / "README.md", "text")
    verdict = shown.partition("bottleneck: ")[2].partition("\n\n")[0]
    assert "all 96 links" in verdict
    assert "all 8 ranks" in verdict
    assert not re.search(r"\b(gpu|rank |nic|nvswitch)\d", verdict), verdict


def test_the_glossary_is_generated_and_has_the_words_of_a_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from clusim.base.terms.glossary import find_terms, page

    assert (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8") == page()
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    for word in ("algbw", "busbw", "bottleneck", "busy", "credit stall", "idle", "contended"):
        assert word in shown
        assert len(find_terms(word)) == 1, word
    for word in ("link class", "granularity", "fingerprint", "per-slice CTA overhead"):
        assert word in shown
        assert find_terms(word), word
    assert run(["glossary", "BUSBW"]) == 0
    assert capsys.readouterr().out.startswith("busbw: algbw times")
    assert run(["glossary", "buswb"]) == 2
    assert "did you mean 'busbw'" in capsys.readouterr().err


def test_pages_name_the_releases_of_nccl_that_are_known() -> None:
    """Whoever raises `LATEST` is told which texts still end at the release before."""
    texts = [*PAGES, ROOT / "pysim" / "clusim" / "nccl" / "constants.py"]
    found = [
        (path.name, last)
        for path in texts
        for last in re.findall(rf"\b{OLDEST} (?:to|-) (\d+\.\d+)", path.read_text("utf-8"))
    ]
    assert {"nccl.md", "constants.py"} <= {name for name, _ in found}
    assert {last for _, last in found} == {str(LATEST)}, found
