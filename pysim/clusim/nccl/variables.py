"""Environment variables of NCCL: effect in clusim, and releases that read them.

The table in ``variables.yaml`` is the single list of names: `clusim.nccl.env` reads values by it, notes and errors
quote its reasons, and ``docs/nccl-environment.md`` is `page`. Releases are from the sources of the tags 2.4 to 2.30
and the libraries of 2.31.2 and 2.32.3; patch releases of one minor count as one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from clusim.base.datafiles import read
from clusim.base.records import dataclass
from clusim.nccl.constants import Version, release_of

Effect = Literal["obeyed", "no effect", "refused"]


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable of NCCL.

    Attributes
    ----------
    effect : str
        ``obeyed``, ``no effect`` (accepted; results name it) or ``refused`` (an error, except for `harmless` values).
    reason : str
        Effect, or reason for no effect or refusal.
    since, until : tuple of int, or None
        First and last release that reads it; None is unknown, or later than 2.32.
    harmless : tuple of str
        Values that are NCCL's default, which a refused variable may have.
    """

    name: str
    effect: Effect
    reason: str
    since: tuple[int, int] | None
    until: tuple[int, int] | None
    harmless: tuple[str, ...] = ()

    def read_by(self, version: Version) -> bool:
        """Return True if a release reads it, or if that is unknown."""
        release = version[:2]
        return (self.since or release) <= release <= (self.until or release)

    @property
    def releases(self) -> str:
        """Return the releases that read it, for people."""
        first = ".".join(map(str, self.since)) if self.since else "-"
        last = ".".join(map(str, self.until)) if self.until else ""
        return (
            first
            if not self.since or first == last
            else f"{first} to {last}"
            if last
            else f"{first} on"
        )


def _variables() -> dict[str, Variable]:
    result = {}
    table = read(Path(__file__).with_name("variables.yaml"))
    rows = [
        (effect, *row)
        for effect, reasons in table.items()
        for row in reasons.items()
    ]
    for effect, reason, names in rows:
        for word in names.split():
            head, _, harmless = word.partition("=")
            name, _, releases = head.partition("@")
            first, _, last = releases.partition("-")
            since, until = (
                release_of(text) if "." in text else None for text in (first, last)
            )
            values = tuple(harmless.split(",")) if harmless else ()
            full = name if name.startswith("RCCL_") else f"NCCL_{name}"
            result[full] = Variable(full, effect, reason, since, until, values)
    return dict(sorted(result.items()))


VARIABLES = _variables()
"""Every variable by its name."""

_HEADS: dict[Effect, str] = {
    "obeyed": "controls",
    "no effect": "reason",
    "refused": "reason",
}


def page() -> str:
    """Return the page of the documentation."""
    counts = [
        sum(v.effect == effect for v in VARIABLES.values()) for effect in _HEADS
    ]
    lines = [
        "# Environment variables of NCCL",
        "",
        "Look up the effect of `--env NAME=VALUE` in `run`, `explain`, `nccl-tests`, `sweep` and `what-if`, and of the",
        "environment in a replayed log. [nccl.md](nccl.md#environment) has the syntax.",
        "This page is generated from `pysim/clusim/nccl/variables.py`.",
        "",
        f"The table has {len(VARIABLES)} variables: all of NCCL 2.18 to 2.32, some older ones, some of RCCL.",
        f"{counts[0]} are obeyed; {counts[1]} are accepted without effect, and results list them; {counts[2]} are",
        "refused, except for NCCL's default (in brackets). Other names are errors. Notes of a run name the obeyed",
        "variables without which its program and topology would be the same.",
    ]
    for effect, head in _HEADS.items():
        lines += [
            "",
            f"## {effect.capitalize()}",
            "",
            f"| variable | releases | {head} |",
            "|---|---|---|",
        ]
        for variable in VARIABLES.values():
            if variable.effect == effect:
                default = (
                    f" ({' or '.join(variable.harmless)})"
                    if variable.harmless
                    else ""
                )
                lines.append(
                    f"| `{variable.name}`{default} | {variable.releases} | {variable.reason} |"
                )
    return "\n".join(lines) + "\n"
