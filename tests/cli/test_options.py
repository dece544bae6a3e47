"""Options of one name are one option in all commands, whoever reads their help."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

from clusim.base.terms.operations import PROTOCOL_NAMES, Algorithm, Collective, Protocol
from clusim.nccl import parse_assignments, parse_env
from clusim.nccl.env import allows
from clusim.nccltests.options import FLAGS, parse_flags
from clusim_cli.main import cli

Clusim = Callable[..., Any]


def commands(group: click.Group = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is no group, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, f"{path}{name} ")
        else:
            yield f"{path}{name}", found


def options() -> Iterator[tuple[str, click.Option]]:
    """Yield every option with its command, without the flags of nccl-tests, which are its own."""
    foreign = {f"--{flag.name}" for flag in FLAGS}
    for name, command in commands():
        for option in command.params:
            if isinstance(option, click.Option) and not (
                name == "nccl-tests" and foreign & set(option.opts)
            ):
                yield name, option


def test_an_option_of_one_name_is_the_same_in_every_command() -> None:
    known: dict[str, dict[object, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, option in options():
        first_words = (option.help or "").partition("[default")[0].partition(". ")[0].strip(" .")
        kind = repr(option.type.to_info_dict())
        if "--format" in option.opts:  # each command writes formats of its own
            kind = type(option.type).__name__
        about = (tuple(option.opts), first_words, kind, option.metavar, option.is_flag)
        known[max(option.opts, key=len)][about].append(name)
    for flag, found in known.items():
        assert len(found) == 1, f"{flag} is not the same everywhere: {dict(found)}"


def test_every_option_says_what_it_is() -> None:
    for name, option in options():
        assert option.help, f"{name} {max(option.opts, key=len)}: has no help"


def test_the_machine_is_an_argument_except_where_files_of_jobs_are() -> None:
    named = {
        name: [param for param in command.params if param.name == "topology"]
        for name, command in commands()
    }
    asked = {name for name, found in named.items() if found}
    assert asked == {
        "run",
        "topo export",
        "topo show",
        "traffic",
        "train",
        "serve",
        "jobs",
        "explain",
        "crossover",
        "nccl-tests",
        "replay",
        "plan",
        "calibrate system",
        "expected",
        "shrink",
        "exec",
        "torchrun",
        "capture",
        "policy check",
    }
    flags = {name for name in asked if isinstance(named[name][0], click.Option)}
    assert flags == {"capture", "policy check", "replay", "torchrun"}, (
        "of many logs, only a last argument that no log can be is the machine"
    )


@pytest.mark.parametrize("word", ["LL", "ll", "Simple", "SIMPLE", "simple", "LL128", "ll128"])
def test_protocols_are_known_in_any_case(word: str) -> None:
    found = 0
    for name, option in options():
        if "--protocol" in option.opts:
            found += 1
            value = option.type.convert(word, option, click.Context(cli))
            assert value == word.lower(), name
            assert value in PROTOCOL_NAMES
    assert found


@pytest.mark.parametrize("word", ["all-gather", "AllGather", "ncclAllGather", "all_gather_perf"])
def test_collectives_are_known_in_any_spelling(word: str) -> None:
    found = [option for _, option in options() if "--collective" in option.opts]
    assert len(found) == 5
    for option in found:
        assert option.opts == ["--collective", "-c"]
        assert option.type.convert(word, option, click.Context(cli)) == "all_gather"


def test_words_are_known_in_any_case() -> None:
    """Of every option and argument of every command that takes one of some words."""
    found = set()
    for name, command in commands():
        for param in command.params:
            kind = param.type
            if not isinstance(kind, click.Choice):
                continue
            found.add(max(param.opts, key=len))
            for word in kind.choices:
                for spelling in (word.upper(), word.capitalize()):
                    assert kind.convert(spelling, param, click.Context(command)) == word, name
    assert {"--engine", "--pattern", "--routing", "--fold", "--scaling", "--format"} <= found


@pytest.mark.parametrize(
    ("flag", "word", "meaning"),
    [
        ("--redop", "SUM", "sum"),
        ("--redop", "ncclMax", "max"),
        ("--dtype", "BF16", "bfloat16"),
        ("--dtype", "torch.Float32", "float32"),
        ("--algorithm", "NVLS_TREE", "nvlstree"),
        ("--algorithm", "Plan.XML", "Plan.XML"),
        ("--granularity", "PACKET", "packet"),
        ("--granularity", "Auto", "auto"),
        ("--gap", "LOGGED", "logged"),
    ],
)
def test_a_word_of_an_option_means_the_same_in_any_spelling(
    flag: str, word: str, meaning: object
) -> None:
    found = [option for _, option in options() if flag in option.opts]
    assert found
    for option in found:
        assert option.type.convert(word, option, click.Context(cli)) == meaning


def test_flags_of_nccl_tests_are_known_in_any_case() -> None:
    found = parse_flags({"op": "SUM", "datatype": "Half", "minbytes": "1K", "maxbytes": "1k"})
    assert (found.op, found.datatype) == ("sum", parse_flags({"datatype": "half"}).datatype)
    assert parse_flags({"op": "ALL"}).ops == parse_flags({"op": "all"}).ops


def test_variables_of_nccl_are_known_in_any_case() -> None:
    upper, lower = ("NCCL_ALGO=RING", "NCCL_PROTO=SIMPLE"), ("algo=ring", "nccl_proto=simple")
    one, two = (parse_env(parse_assignments(words)) for words in (upper, lower))
    for collective in Collective:
        for name in (*Algorithm, *Protocol):
            assert allows(one, collective, name) == allows(two, collective, name)
