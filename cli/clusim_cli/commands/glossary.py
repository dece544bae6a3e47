"""``clusim glossary``: terms of the outputs."""

from __future__ import annotations

import click

from clusim_cli.outputs import GuardedCommand


@click.command(
    "glossary", cls=GuardedCommand, short_help="Explain the terms of the outputs."
)
@click.argument("words", nargs=-1, metavar="[TERM...]")
def command(words: tuple[str, ...]) -> None:
    """Print the meaning of each TERM, such as busbw or "critical path"; without TERM, of all.

    A part of a term is enough.
    """
    from clusim.base.terms.glossary import find_terms, glossary

    groups = [dict(find_terms(word)) for word in words] or list(glossary().values())
    for terms in groups:
        for term, text in terms.items():
            click.echo(f"{term}: {text}")
