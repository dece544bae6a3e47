"""Writes the tables of docs/replay.md from a directory of real logs: ``python benchmarks/replay_tables.py DIR``.

DIR has ``index.csv`` (columns file, source, path) and the logs in ``nccl_logs``. Without ``--write`` the tables are
only printed.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from clusim.base.errors import InputError
from clusim.base.files import write_text
from clusim.formats.logs import read_logs, summarize
from clusim.formats.logs.calls import call_table
from clusim.formats.logs.jobranks import add_runs
from clusim.replays import Replay, replay
from clusim.replays.request import ReplayRequest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "replay.md"
OTHERS = ("dgx-h100", "dgx-a100")


def sources(folder: Path) -> dict[str, str]:
    """Return a name for people of every log."""
    found = {}
    with (folder / "index.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = row["file"].rpartition("/")[2]
            repository = row["source"].removeprefix("github:")
            public = row["source"].startswith("github:")
            short = Path(name).stem.removeprefix("idx_").removesuffix("_excerpt").replace("_", " ")
            found[name] = f"{repository}: {row['path']}" if public else f"excerpt: {short}"
    return found


def _row(path: Path, name: str) -> str:
    log = read_logs([str(path)])
    found = summarize(log)
    comms = found["communicators"]
    sizes = "+".join(str(c["n_ranks"]) for c in comms[:3]) + ("+.." if len(comms) > 3 else "")
    channels = comms[0]["channels"] if comms else {}
    rings = len(comms[0]["rings"]) if comms else 0
    lines = sum(found["calls"]["lines"].values())
    add_runs(log)
    calls = len(call_table(log).call)
    shown = "/".join(str(channels.get(kind, "-")) for kind in ("coll", "nvls", "p2p"))
    version = ", ".join(found["versions"]) or "-"
    measured = sum(len(run["rows"]) for run in found["measurements"])
    return f"| {name} | {version} | {len(comms)} | {sizes} | {shown} | {rings} | {lines} | {calls} | {measured} |"


def log_table(folder: Path) -> list[str]:
    """Return a row for every log."""
    names = sources(folder)
    lines = [
        "| log | version | communicators | ranks | channels coll/nvls/p2p | rings | COLL lines | calls | measured |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [
        _row(p, names.get(p.name, p.name)) for p in sorted((folder / "nccl_logs").glob("*"))
    ]


def measured_table(folder: Path) -> list[str]:
    """Return predictions beside measurements for every log that has some."""
    names = sources(folder)
    lines = [
        "| log | machine | sizes | error: mean, most | from 256 MiB on: mean |",
        "|---|---|---|---|---|",
    ]
    for path in sorted((folder / "nccl_logs").glob("*")):
        try:
            found = replay(ReplayRequest((str(path),)))
        except InputError:
            continue
        errors = [(c.bytes, abs(c.error)) for c in found.calls if c.error is not None]
        if not errors:
            continue
        large = [e for size, e in errors if size >= 256 << 20]
        mean = sum(e for _, e in errors) / len(errors)
        shown = f"{sum(large) / len(large):.1%}" if large else "-"
        lines.append(
            f"| {names.get(path.name, path.name)} | {found.fabric} | {len(errors)} | {mean:.1%}, "
            f"{max(e for _, e in errors):.1%} | {shown} |"
        )
    return lines


def size_table(folder: Path) -> list[str]:
    """Return every size of the logs of the H100 machine."""
    lines = [
        "| run | size | algorithm | protocol, channels | predicted | measured | error | busbw predicted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted((folder / "nccl_logs").glob("wayne_h100*")):
        run = path.stem.removeprefix("wayne_h100_scaling_attributed_")
        found = replay(ReplayRequest((str(path),)))
        lines += [
            f"| {run} | {c.bytes >> 20} MiB | {c.algorithm} | {c.protocol}, {c.channels} | {c.time_ps / 1e6:.1f} us"
            f" | {c.measured_us:.1f} us | {c.error:+.1%} | {c.busbw:.1f} GB/s |"
            for c in found.calls
            if c.measured_us and c.error is not None
        ]
    return lines


def other_table(folder: Path) -> list[str]:
    """Return what other machines change of a job on eight A100."""
    path = folder / "nccl_logs" / "msccltools_ap1_nop.xml.txt"
    found: dict[str, Replay] = {}
    for other in OTHERS:
        found[other] = replay(ReplayRequest((str(path),), other=other))
    base = found[OTHERS[0]]
    lines = [
        f"| call | {base.fabric} | " + " | ".join(f"{o} | ratio" for o in OTHERS) + " |",
        "|---|---|" + "---|---|" * len(OTHERS),
    ]
    for i, call in enumerate(base.calls):
        cells = []
        for other in OTHERS:
            there = found[other].calls[i].other
            assert there is not None
            cells.append(
                f"{there.time_ps / 1e6:.1f} us {there.algorithm} {there.protocol} | {there.time_ps / call.time_ps:.2f}"
            )
        lines.append(
            f"| {call.operation} {call.bytes >> 10 or call.bytes / 1024:g} KiB | {call.time_ps / 1e6:.1f} us"
            f" {call.algorithm} {call.protocol} | {' | '.join(cells)} |"
        )
    return lines


def main(arguments: list[str]) -> None:
    """Print the tables, or put them into the page."""
    folder = Path(arguments[0])
    text = PAGE.read_text(encoding="utf-8") if "--write" in arguments else ""
    for name, table in (
        ("logs", log_table),
        ("measured", measured_table),
        ("sizes", size_table),
        ("others", other_table),
    ):
        lines = "\n".join(table(folder))
        print(f"{lines}\n")
        if text:
            head, begin, rest = text.partition(f"<!-- {name} -->\n")
            _, end, tail = rest.partition("<!-- end -->")
            text = f"{head}{begin}{lines}\n{end}{tail}"
    if text:
        write_text(PAGE, text)


if __name__ == "__main__":
    main(sys.argv[1:])
