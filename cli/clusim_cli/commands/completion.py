"""``clusim completion``: shell completion scripts."""

from __future__ import annotations

import click

from clusim_cli.outputs import GuardedCommand
from clusim_cli.params import one_of

PROGRAM = "clusim"


@click.command(
    "completion",
    cls=GuardedCommand,
    raw=True,
    short_help="Print a script for completion of commands and names in a shell.",
)
@click.argument("shell", type=one_of("bash", "zsh", "fish"))
def command(shell: str) -> int:
    """Print a script for SHELL that completes commands, options, presets, operations, algorithms and types.

    \b
    bash  eval "$(clusim completion bash)" in ~/.bashrc
    zsh   the same with zsh in ~/.zshrc, after compinit
    fish  clusim completion fish | source, in config.fish
    """
    from click.shell_completion import get_completion_class

    result = get_completion_class(shell)
    assert result is not None
    variables = {
        "complete_func": f"_{PROGRAM}_completion",
        "complete_var": f"_{PROGRAM.upper()}_COMPLETE",
        "prog_name": PROGRAM,
    }
    # Not `source()`, which starts a bash process to detect its version.
    click.echo(result.source_template % variables)
    return 0
