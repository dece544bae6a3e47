"""Generator of the command-line reference, ``docs/cli.md``, from the help of the commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from clusim.base.files import write_text
from clusim_cli.main import cli

HEAD = """# Command line

Written by `make docs` from the commands' own help. Exit codes: 0 success; 1 the surroundings failed
(unwritable output, full disk), the run deadlocked, or data came out wrong; 2 bad input; 70 a bug of
ours; 130 interrupted. Errors are one line on stderr, results go to stdout.
"""


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Context]]:
    context = click.Context(command, info_name=path, terminal_width=88, max_content_width=88)
    context.help_option_names = ["-h", "--help"]
    yield path, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from _commands(child, f"{path} {name}")


def page() -> str:
    """Return the reference as Markdown."""
    parts = [HEAD]
    for path, context in _commands(cli, "clusim"):
        parts.append(f"## {path}\n\n```\n{context.get_help().rstrip()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    write_text(sys.argv[1], page())
