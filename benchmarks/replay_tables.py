"""Tables of docs/accuracy-logs.md from a directory of real logs.

``python benchmarks/replay_tables.py DIR`` writes them. DIR has ``index.csv`` (columns file, source,
path) and the logs in ``nccl_logs``. Without ``--write`` the tables are only printed.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from clusim.base.errors import InputError
from clusim.base.files import write_text
from clusim.base.units import format_size
from clusim.replays import Replay, replay
from clusim.replays.placing import ReplayRequest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy-logs.md"
H100 = "wayne_h100_scaling_attributed_"
"""Prefix of the logs with errors listed by size."""

LARGE = 256 << 20
"""Smallest message of the last column [bytes]."""


def logs(folder: Path) -> dict[str, list[Path]]:
    """Return the logs of every repository."""
    source = {}
    with (folder / "index.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            repository = row["source"].removeprefix("github:")
            public = row["source"].startswith("github:")
            source[row["file"].rpartition("/")[2]] = (
                repository if public else "excerpts"
            )
    result: dict[str, list[Path]] = {}
    for path in sorted((folder / "nccl_logs").glob("*")):
        result.setdefault(source.get(path.name, path.name), []).append(path)
    return result


def _replays(paths: list[Path]) -> dict[str, list[Replay]]:
    """Return the replays of logs with measurements by system."""
    result: dict[str, list[Replay]] = {}
    for path in paths:
        try:
            one = replay(ReplayRequest((str(path),)))
        except InputError:
            continue
        if any(call.error is not None for call in one.calls):
            result.setdefault(one.fabric, []).append(one)
    return result


def measured_table(folder: Path) -> list[str]:
    """Return the errors of predictions for every repository with measurements."""
    lines = [
        f"| source | system | rows | mean error | largest | mean from {format_size(LARGE)} |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for source, paths in logs(folder).items():
        for system, result in _replays(paths).items():
            errors = [
                (c.bytes, abs(c.error))
                for r in result
                for c in r.calls
                if c.error is not None
            ]
            every, large = (
                [e for _, e in errors],
                [e for size, e in errors if size >= LARGE],
            )
            shown = f"{sum(large) / len(large):.1%}" if large else "-"
            lines.append(
                f"| {source} | `{system}` | {len(every)} | {sum(every) / len(every):.1%} "
                f"| {max(every):.1%} | {shown} |"
            )
    return lines


def size_table(folder: Path) -> list[str]:
    """Return the error at every size of the logs of a node with H100."""
    lines: list[str] = []
    for path in sorted((folder / "nccl_logs").glob(f"{H100}*")):
        ranks, _, name = (
            path.stem.removeprefix(H100).removeprefix("g").partition("_")
        )
        if name == "auto":
            continue
        calls = [
            c
            for c in replay(ReplayRequest((str(path),))).calls
            if c.error is not None
        ]
        if not lines:
            sizes = [format_size(call.bytes) for call in calls]
            lines = [
                f"| GPUs | algorithm | {' | '.join(sizes)} |",
                f"|---:|---|{'---:|' * len(sizes)}",
            ]
        plan = (
            f"{calls[0].algorithm} {calls[0].protocol}, {calls[0].channels} channels"
        )
        lines.append(
            f"| {ranks} | {plan} | {' | '.join(f'{c.error:+.1%}' for c in calls)} |"
        )
    return lines


def main(arguments: list[str]) -> None:
    """Print the tables, or put them into the page."""
    folder = Path(arguments[0])
    text = PAGE.read_text(encoding="utf-8") if "--write" in arguments else ""
    for name, table in (("measured", measured_table), ("sizes", size_table)):
        lines = "\n".join(table(folder))
        print(f"{lines}\n", flush=True)
        if text:
            head, begin, rest = text.partition(f"<!-- {name} -->\n")
            _, end, tail = rest.partition("<!-- end -->")
            text = f"{head}{begin}{lines}\n{end}{tail}"
    if text:
        write_text(PAGE, text)


if __name__ == "__main__":
    main(sys.argv[1:])
