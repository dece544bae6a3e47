"""``clusim what-if``: a run, and the same with changes."""

from __future__ import annotations

import json
import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand
from clusim_cli.progress import counted_progress

if TYPE_CHECKING:
    from clusim.multijob.api import JobsRequest
    from clusim.studies.whatif.api import AnyAsked, AnyChange

BASES = ("run", "nccl-tests", "replay", "train", "serve", "jobs")
"""Commands accepted as baselines."""


@click.command(
    "what-if",
    cls=GuardedCommand,
    short_help="Compare a run with changes to it.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("baseline")
@click.argument("changes", nargs=-1, required=True, metavar="CHANGE...")
@options.html(
    more="Bottlenecks side by side, times and bandwidths on one axis, busy wires."
)
@options.as_json("clusim.studies.whatif.table:WhatIf")
@options.no_progress()
def command(
    baseline: str,
    changes: tuple[str, ...],
    html: Path | None,
    as_json: bool,
    no_progress: bool,
) -> int:
    """Run BASELINE, words of a run, nccl-tests, replay, train, serve or jobs command in quotes, and again with each
    CHANGE.

    CHANGE, in quotes, is options of that command ("--fault 'nic n0/nic0 down'", "--algorithm tree", "--ranks 0-3",
    "--nccl-version 2.19", "--env NCCL_ALGO=Ring"), another system ("dgx-h100"), a factor of speed ("nvlink x2" is twice
    as fast; "gpu0-nvswitch0 x0.5", "hbm x2", "latency x2"; a link class or two ends), a disabled transport
    ("p2p off", "gpudirect off", "pxn off", "shm off"), a repair ("rank 3 repaired", "gpu0-nvswitch0.0 repaired": the
    baseline without this fault), or, of train, serve and jobs, keys of the file ("parallel.tensor=4", "beside=null",
    "jobs.storage.class=1"), or, of train and serve, faster kernels or hosts ("compute x2", "host x2").

    Each change is simulated twice: with the baseline's plan, and re-planned by NCCL. A change that cannot run has the
    reason in its row; the exit code is then 2.
    """
    from clusim.base.files import write_bytes

    kind, words = _base(baseline)
    base = _asked(kind, words, "")
    named = [(text, _change(kind, words, text, base)) for text in changes]
    compare: Any = import_module("clusim.studies.whatif").what_if
    if kind == "jobs":
        compare = import_module("clusim.studies.whatif.jobs").what_if_of_jobs
    with counted_progress(not no_progress, "changes") as progress:
        result = compare(
            base, named, title=f"clusim {kind} {shlex.join(words)}", counted=progress
        )
    if html is not None:
        write_bytes(html, result.page().encode())
    click.echo(
        json.dumps(result.to_json()) if as_json else "\n".join(result.lines())
    )
    refused = [row for row in result.rows if row.planned.error]
    for row in refused:
        click.echo(f"clusim: {row.change}: {row.planned.error}", err=True)
    return 2 if refused else 0


def _base(text: str) -> tuple[str, list[str]]:
    words = _split(text)
    if words[:1] == ["clusim"]:
        words = words[1:]
    if not words or words[0] not in BASES:
        raise click.UsageError(
            f"{text!r}: must begin with one of {', '.join(BASES)}"
        )
    return words[0], words[1:]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise click.UsageError(f"{text!r}: {error}") from None


def _change(
    kind: str, words: list[str], text: str, base: AnyAsked | JobsRequest
) -> AnyAsked | AnyChange | JobsRequest:
    """Return the request of a change."""
    from clusim.simulation.speed import speed_of
    from clusim.studies.whatif.changed_system import repair_fault, switch_of

    change = speed_of(text) or switch_of(text) or repair_fault(base, text)
    return _asked(kind, words, text) if change is None else change


def _asked(kind: str, words: list[str], text: str) -> AnyAsked | JobsRequest:
    """Return the request of a command's words and a change."""
    module = import_module(f"clusim_cli.commands.{kind.replace('-', '_')}")
    more: dict[str, Any] = {}
    added: list[str] = []
    machine = None
    for word in _split(text):
        if not added and "=" in word and not word.startswith("-"):
            more.setdefault("changes", {}).update([_key(kind, word)])
        elif not added and not word.startswith("-"):
            machine = word
        else:
            added.append(word)
    if kind == "nccl-tests":
        added, more["faults"] = _without_faults([*added])
        words, faults = _without_faults(words)
        more["faults"] = (*faults, *more["faults"])
    params = module.command.make_context(f"clusim {kind}", [*words, *added]).params
    if machine is not None:
        params = _moved(kind, params, machine)
    result: AnyAsked | JobsRequest = module.asked(**params, **more)
    return result


def _key(kind: str, word: str) -> tuple[str, Any]:
    import yaml

    if kind not in ("train", "serve", "jobs"):
        raise click.UsageError(
            f"{word!r}: keys of a file are for train, serve and jobs only"
        )
    name, _, value = word.partition("=")
    return name, yaml.safe_load(value)


def _without_faults(words: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return words without --fault, which nccl-tests lacks, and the faults."""
    left, faults = [], []
    parts = iter(words)
    for word in parts:
        if word == "--fault":
            faults.append(next(parts, ""))
        else:
            left.append(word)
    return left, tuple(faults)


def _moved(kind: str, params: dict[str, Any], machine: str) -> dict[str, Any]:
    """Return the options with another machine."""
    if kind == "replay":
        from clusim.topology.loading import names_machine

        files = params["recording"]
        if len(files) > 1 and names_machine(files[-1]):
            files = files[:-1]
        return {**params, "recording": files, "topology": machine, "xml": None}
    return {**params, "topology": machine}
