"""JSON Schemas of ``--json`` output.

As a program it writes the schemas of all commands into a folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click

from clusim.base.errors import InputError, suggest
from clusim.base.files import write_text
from clusim.base.json_schema import schema_of
from clusim_cli.main import cli
from clusim_cli.options import JsonOption


@cache
def known() -> dict[str, str]:
    """Return the commands that have ``--json``, each with where its form is."""
    return dict(_forms(cli, ""))


def _forms(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                if child is not None:
                    yield from _forms(child, f"{path} {name}".strip())
    for param in command.params:
        if isinstance(param, JsonOption):
            yield path, param.form


def schema(path: str) -> dict[str, Any]:
    """Return the schema of the ``--json`` output of a command; `path` is its words.

    Raises
    ------
    InputError
        The command has no JSON output.
    """
    if path not in known():
        raise InputError(f"no command {path!r} has --json{suggest(path, known())}")
    return schema_of(resolve_name(known()[path]), f"clusim {path} --json")


def file_name(path: str) -> str:
    """Return the file name of a command's schema."""
    return f"{path.replace(' ', '-')}.json"


def texts() -> dict[str, str]:
    """Return the files of all schemas, by name."""
    return {
        file_name(path): json.dumps(schema(path), indent=1) + "\n"
        for path in known()
    }


if __name__ == "__main__":
    for name, text in texts().items():
        write_text(Path(sys.argv[1]) / name, text)
