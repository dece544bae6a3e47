"""Law of the verdict on drawn runs: the bottleneck's change saves nearly as much as the best of all what-ifs.

The what-ifs are simulated apart from the verdict: faster links are a changed topology with the same schedule.
``python tests/support/verdict_law.py docs/accuracy-bottleneck.md`` draws 200 runs, prints a line for each, and writes
the counts and the ten worst into the page.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap

from clusim.base.errors import ClusimError
from clusim.base.files import write_text
from clusim.base.units import format_size
from clusim.results.result import Result
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.plan import Plan, plan
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.simulation.speed import speed_of

NODE = ("dgx-a100", "dgx-h100", "hgx-b200", "dgx-1v", "a100x4-mesh", "a100-pcie-x8", "mi300x")
CLUSTER = ("dgx-a100", "a100x4-mesh", "aws-p4d", "dgx-h100", "azure-ndv2")
OPERATIONS = ("allreduce", "allreduce", "allgather", "reducescatter", "broadcast", "alltoall")
THINGS = ("latency", "step", "launch", "proxy", "cta", "hbm")
PLAIN = RunOptions(bins=2, histories=False)
MOST_HOPS = 800_000

ALL_DRAWS = 200

HELD = 0.7
"""Least part of the best saving that the bottleneck's change has."""

SMALL = 0.02
"""Part of the run below which savings are not compared."""

WORST = 10
"""Draws in the table of the page."""

BEGIN, END = "<!-- law of the verdict: begin -->", "<!-- law of the verdict: end -->"


@dataclass(frozen=True)
class LawRow:
    """A drawn run: the change of its bottleneck and the best what-if, with their savings as parts of the run."""

    seed: int
    run: str
    nodes: int
    fault: str
    told: str
    told_part: float
    best: str
    best_part: float
    again_part: float
    """Saving of the bottleneck's change, simulated apart from the verdict."""

    @property
    def compared(self) -> bool:
        return self.best_part >= SMALL

    @property
    def share(self) -> float:
        """Part of the best saving that the bottleneck's change has."""
        return self.told_part / self.best_part if self.compared else 1.0

    def words(self) -> str:
        return (
            f"{self.seed}: {self.run} {self.fault}: {self.told} {self.told_part:.3f}"
            f" ({self.again_part:.3f}), best {self.best} {self.best_part:.3f}"
        )


def over_nodes(seed: int) -> bool:
    """Return True for every third draw."""
    return seed % 3 == 0


def fault_kind(seed: int) -> str:
    """Return the kind of fault: a slow link in every fourth draw, a slow rank in every eighth."""
    return "link" if seed % 4 == 1 else "rank" if seed % 8 == 2 else ""


def drawn(seed: int) -> Plan:
    """Return a run of at most `MOST_HOPS` packet-hops."""
    draw = random.Random(seed)
    while True:
        system = draw.choice(CLUSTER if over_nodes(seed) else NODE)
        operation, size = draw.choice(OPERATIONS), 1 << draw.randrange(12, 25)
        algorithm = draw.choice(["nccl", "nccl", "ring", "tree", "nvls"])
        protocol = draw.choice(["", "simple", "ll"]) if algorithm == "ring" else ""
        try:
            setup = Setup(system, 2 if over_nodes(seed) else None)
            asked = Request(setup, operation, size, algorithm=algorithm, protocol=protocol)
            job = job_of(plan(asked), PLAIN)
            if job.grain.packet_hops > MOST_HOPS:
                continue
            fault = _fault(draw, fault_kind(seed), setup, run_job(job, PLAIN))
            return plan(replace(asked, setup=replace(setup, faults=fault)))
        except ClusimError:
            continue


def _fault(draw: random.Random, kind: str, setup: Setup, result: Result) -> tuple[str, ...]:
    """Return a slow rank, or a slow link among those with traffic."""
    if kind == "rank":
        return (f"rank {draw.randrange(4)} slow x3",)
    if kind != "link":
        return ()
    names = zip(result.wires.names, result.wires.counters["packets"].tolist(), strict=True)
    used = {name.partition(".")[0] for name, packets in names if packets}
    links = [
        link
        for link in setup.fabric.links
        if used & {f"{link.a}->{link.b}".partition(".")[0], f"{link.b}->{link.a}".partition(".")[0]}
    ]
    link = draw.choice(links)
    return (f"lanes {link.a}-{link.b} 1/4 at 1ns",)


def saving_ps(planned: Plan, result: Result, words: str) -> int:
    """Return the saving of the same schedule with a faster component, or without its faults."""
    base = planned.options
    assert isinstance(base, Request)
    if words.endswith(" repaired"):
        sound = replace(base.of(planned.schedule), setup=replace(base.setup, faults=()))
        return result.time_ps - run_job(job_of(sound, PLAIN), PLAIN).time_ps
    speed = speed_of(words)
    assert speed is not None
    if not speed.of_links:
        return result.time_ps - run_job(speed.job(job_of(planned, PLAIN)), PLAIN).time_ps
    setup = replace(base.setup, topology=speed.machine(base.setup.fabric), nodes=None)
    held = replace(base.of(planned.schedule), setup=setup)
    return result.time_ps - run_job(job_of(held, PLAIN), PLAIN).time_ps


def law_row(seed: int) -> LawRow:
    """Draw a run, prove its bottleneck, and simulate the what-ifs."""
    planned = drawn(seed)
    result = result_of(planned, RunOptions(confirm=True))
    first = result.diagnose().headline
    assert first is not None
    assert first.saving_ps is not None
    wires = zip(result.wires.classes, result.wires.counters["packets"].tolist(), strict=True)
    links = sorted({name.partition(" ")[0] for name, packets in wires if packets})
    things = [f"{name} x2" for name in (*links, *THINGS)]
    found = {words: saving_ps(planned, result, words) for words in things}
    best = max(found, key=lambda words: found[words])
    again_ps = found.get(first.remedy) or saving_ps(planned, result, first.remedy)
    asked = planned.options
    assert isinstance(asked, Request)
    run = f"{result.provenance.fabric} {asked.operation} {format_size(asked.size_bytes)}"
    call = result.call
    run += f" {call.algorithm} {call.protocol}" if call is not None else ""
    parts = (ps / result.time_ps for ps in (first.saving_ps, found[best], again_ps))
    told_part, best_part, again_part = parts
    fault = "".join(asked.setup.faults)
    return LawRow(
        *(seed, run, 2 if over_nodes(seed) else 1, fault),
        *(first.remedy, told_part, best, best_part, again_part),
    )


def table(rows: Sequence[LawRow]) -> str:
    """Return the counts and the worst rows as Markdown."""
    nodes, links = sum(row.nodes > 1 for row in rows), sum("lanes" in row.fault for row in rows)
    slow = sum("slow" in row.fault for row in rows)
    compared = [row for row in rows if row.compared]
    held = sum(row.share >= HELD for row in compared)
    full = sum(row.share >= 0.99 for row in compared)
    counts = (
        f"Of {len(rows)} random runs ({nodes} over two nodes, {links} with a slow link, {slow} with a slow rank),"
        f" {len(compared)} have a what-if that saves {SMALL:.0%}. In {full} of these the bottleneck's change saves at"
        f" least 0.99 times as much as the best of the what-ifs, in {held} at least {HELD:g} times. The {WORST} worst:"
    )
    lines = [
        *wrap(counts, 120),
        "",
        "| run | fault | bottleneck's change | best what-if |",
        "|---|---|---|---|",
    ]
    for row in sorted(compared, key=lambda row: (row.share, row.seed))[:WORST]:
        fault = row.fault.removesuffix(" at 1ns") or "none"
        lines.append(
            f"| {row.run} | {fault} | {row.told} {-row.told_part:.1%} | {row.best} {-row.best_part:.1%} |"
        )
    return "\n".join(lines)


def with_table(page: str, rows: Sequence[LawRow]) -> str:
    """Return a page with the table of these rows between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}"


def main() -> None:
    rows = []
    for seed in range(ALL_DRAWS):
        rows.append(law_row(seed))
        print(rows[-1].words(), flush=True)
    page = Path(sys.argv[1])
    write_text(page, with_table(page.read_text(encoding="utf-8"), rows))


if __name__ == "__main__":
    main()
