"""``clusim policy``: checks of policies written in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from clusim.base.tables import text_table
from clusim.base.units import format_time
from clusim_cli import options
from clusim_cli.outputs import GuardedGroup

if TYPE_CHECKING:
    from clusim.studies.policy_check import PolicyCheck, PolicyLaw


@click.group(
    "policy",
    cls=GuardedGroup,
    short_help="Check congestion control written in Python.",
)
def command() -> None:
    """Check congestion control written in Python."""


@command.command("check")
@click.argument("policy", metavar="POLICY")
@options.topology(default="hgx-h20")
@click.option("--incast", "senders", type=click.IntRange(2, 256), default=8, show_default=True,
              help="Flows of the incast, from different nodes.")  # fmt: skip
@click.option("--fabrics", "networks", type=click.IntRange(0, 100_000), default=200, show_default=True,
              help="Random networks on which both engines run.")  # fmt: skip
@options.as_json("clusim.studies.policy_check:PolicyCheck")
@options.no_progress()
def check(
    policy: str,
    topology: str,
    senders: int,
    networks: int,
    as_json: bool,
    no_progress: bool,
) -> int:
    """Check the laws of POLICY: a shipped policy, such as swift, or FILE.py:Class, a file that is run.

    An uncontended flow has the line rate; two flows converge to fair rates and fill the link; no flow of an incast
    starves; both engines, and any number of threads, have equal results. The exit code is 1 if a law fails.
    """
    from clusim.simulation.setup import Setup
    from clusim.studies.policy_check import check_policy
    from clusim_cli.progress import shown_progress

    with shown_progress(not no_progress, None) as shown:
        system = Setup(topology, senders + 1).fabric
        done = check_policy(policy, system, senders, networks, shown.begins)
    click.echo(json.dumps(done.to_json()) if as_json else "\n".join(_lines(done)))
    return 0 if done.passed else 1


def _lines(check: PolicyCheck) -> Iterator[str]:
    """Yield the lines of a check."""
    yield f"policy {check.policy} ({', '.join(check.functions)}) on {check.system}"
    yield ""
    head = ("law", "result", "limit", "")
    yield from text_table(
        "  {:<28} {:>10} {:>16}  {}", [head, *map(_cells, check.laws)]
    )


def _cells(law: PolicyLaw) -> tuple[str, ...]:
    """Return name, result, limit and outcome of a law, with units."""
    if law.unit:
        value, limit = (
            format_time(int(law.value)),
            f"at most {format_time(int(law.limit))}",
        )
    elif isinstance(law.limit, int):
        value, limit = str(law.value), str(law.limit)
    else:
        value, limit = f"{law.value:.3f}", f"at least {law.limit}"
    return (
        law.law,
        value,
        limit,
        f"{'ok' if law.passed else 'FAILED'} {law.note}".rstrip(),
    )
