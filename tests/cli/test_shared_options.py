"""Options that every command accepts, and options that a mode of a command obeys or refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from clusim.formats.recordings import chakra_schema
from clusim_cli.main import cli, run
from clusim_cli.outputs import PICTURE, GuardedCommand, GuardedGroup


def commands(group: click.Group, context: click.Context) -> Iterator[click.Command]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, context)
        else:
            yield command


def test_every_command_accepts_no_progress() -> None:
    found = list(commands(cli, click.Context(cli)))
    assert len(found) > 30
    for command in found:
        flags = [flag for param in command.params for flag in param.opts]
        assert flags.count("--no-progress") == 1, command.name


def test_a_command_without_a_bar_ignores_no_progress() -> None:
    @click.group(cls=GuardedGroup)
    def group() -> None:
        pass

    @group.command("own")
    @click.argument("word")
    def own(word: str) -> None:
        assert word == "x"

    assert isinstance(own, GuardedCommand)
    group.main(["own", "--no-progress", "x"], standalone_mode=False)


WORKLOAD = """
topology: {preset: dgx-h100, nodes: 2}
model: gpt3-175b
sequence: 128
batch: {global: 16, micro: 1}
"""


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(WORKLOAD, encoding="utf-8")
    return path


def test_layers_obey_strict_memory(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", str(workload), "--layers"]) == 0
    capsys.readouterr()
    assert run(["train", str(workload), "--layers", "--strict-memory"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "memory: stage 0 needs" in said.err


@pytest.mark.parametrize(
    "option", ["--estimate", "--fold all", "--trace-out t.h5", "--scaling weak", "--replicas 1,2"]
)
def test_layers_refuse_options_of_a_simulation(
    option: str, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", str(workload), "--layers", *option.split()]) == 2
    said = f"--layers does not simulate; not with {option.split()[0]}"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ("{preset: dgx-h100, count: 2}", "expected the name of a preset or a file"),
        ("{preset: dgx-h100, nodes: 2}\nnodes: 3", "expected the name of a preset or a file"),
        ("{nodes: 2}", "(topology: dgx-h100, nodes: 8), or {preset: dgx-h100, nodes: 8}"),
        ("{preset: dgx-h100, nodes: -2}", "nodes: -2: must be greater than or equal to 1"),
    ],
)
def test_a_topology_of_another_form_names_the_right_one(
    topology: str, words: str, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = WORKLOAD.replace("{preset: dgx-h100, nodes: 2}", topology)
    workload.write_text(text, encoding="utf-8")
    assert run(["train", str(workload), "--layers"]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_topology_with_nodes_is_the_same_system_as_two_keys(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for text in (WORKLOAD, WORKLOAD.replace("{preset: dgx-h100, nodes: 2}", "dgx-h100\nnodes: 2")):
        workload.write_text(text, encoding="utf-8")
        assert run(["train", str(workload), "--layers", "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


PICTURES = [
    "traffic no-such-system --plot",
    "nccl-tests all_reduce_perf no-such-system --plot",
    "validate FILE --plot",
    "topo show no-such-system --png",
    "plot FILE heatmap -o",
]


@pytest.mark.parametrize("words", PICTURES)
def test_a_picture_without_matplotlib_is_refused_before_anything_is_read(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "file").write_text("not a file of these commands", encoding="utf-8")
    given = [str(tmp_path / "file") if word == "FILE" else word for word in words.split()]
    assert run([*given, str(tmp_path / "picture.png")]) == 1
    said = capsys.readouterr()
    assert said.err == "clusim: pictures: needs matplotlib; pip install 'clusim-net[plot]'\n"
    assert said.out == ""


def test_options_of_pictures_are_checked_by_their_type() -> None:
    for command in commands(cli, click.Context(cli)):
        for param in command.params:
            if {"--plot", "--png"} & {*param.opts}:
                assert param.type is PICTURE, command.name


@pytest.mark.parametrize("words", ["capture -o {}", "torchrun --record {}"])
@pytest.mark.parametrize("missing", ["protobuf", "folder"])
def test_a_program_does_not_run_if_its_step_cannot_be_written(
    words: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    target = tmp_path / "step.et"
    if missing == "protobuf":
        chakra_schema.message_class.cache_clear()
        monkeypatch.setitem(sys.modules, "google.protobuf", None)
    else:
        target = tmp_path / "absent" / "step.et"
    program = tmp_path / "train.py"
    program.write_text("open('ran', 'w')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run([*words.format(target).split(), str(program)]) in (1, 2)
    said = capsys.readouterr().err
    assert ("needs protobuf; pip install" if missing == "protobuf" else "absent") in said
    assert not (tmp_path / "ran").exists()
