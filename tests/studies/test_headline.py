"""The law of the verdict: its remedy saves nearly as much as the best of all what-ifs, on drawn runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusim.results.cause_kinds import CauseKind
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.simulation.plan import plan
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from support.covering import THOROUGH
from support.verdict_law import (
    ALL_DRAWS,
    BEGIN,
    END,
    HELD,
    LawRow,
    fault_kind,
    law_row,
    over_nodes,
    saving_ps,
    table,
    with_table,
)

COMPARED = ("cta", "latency", "step", "proxy")

DRAWS = range(ALL_DRAWS) if THOROUGH else range(11)

ROWS: list[LawRow] = []
"""Draws of this process."""

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy-bottleneck.md"

RINGS = (
    *(("dgx-a100", 1 << 19, "proxy"), ("dgx-h100", 1 << 20, "proxy"), ("aws-p5", 1 << 18, "proxy")),
    *(("aws-p4d", 1 << 19, "proxy"), ("azure-ndv2", 1 << 19, "proxy")),
    *(("aws-p4d", 1 << 17, "latency"), ("dgx-h100", 1 << 18, "latency")),
)


@pytest.mark.parametrize(("system", "size", "held_by"), RINGS)
def test_rings_of_simple_over_nodes_name_proxy_threads_from_some_size_on(
    system: str, size: int, held_by: str
) -> None:
    """Transfers wait for the threads of hosts, all of them alike; few small messages only wait for each other."""
    asked = Request(Setup(system, 2), "allreduce", size, algorithm="ring", protocol="simple")
    planned = plan(asked)
    result = result_of(planned, RunOptions())
    first = result.diagnose().headline
    assert first is not None
    assert first.remedy == f"{held_by} x2"
    if held_by == "proxy":
        assert first.kind is CauseKind.PROXY
        threads = (
            r"4 of 8" if system == "azure-ndv2" else r"all \d+"
        )  # its one NIC is near to two GPUs
        assert re.fullmatch(rf"proxy threads of the host, {threads} proxy threads", first.words())
    savings = {name: saving_ps(planned, result, f"{name} x2") for name in COMPARED}
    assert max(savings, key=savings.__getitem__) == held_by
    assert first.saving_ps == savings[held_by]


@pytest.mark.parametrize("seed", DRAWS)
def test_the_headline_saves_nearly_as_much_as_the_best_what_if(seed: int) -> None:
    row = law_row(seed)
    ROWS.append(row)
    assert row.share >= HELD, row
    assert row.told_part == row.again_part


@pytest.mark.parametrize("draws", [DRAWS, range(ALL_DRAWS)], ids=["tried", "all"])
def test_a_third_of_the_draws_is_over_nodes_and_some_have_a_slow_link(draws: Sequence[int]) -> None:
    nodes = [seed for seed in draws if over_nodes(seed)]
    links = [seed for seed in draws if fault_kind(seed) == "link"]
    assert 3 * len(nodes) >= len(draws)
    assert 6 * len(links) >= len(draws)
    kinds = {fault_kind(seed) for seed in nodes}
    assert kinds == {"link", "rank", ""} if len(draws) == ALL_DRAWS else kinds >= {"link", ""}


def test_the_table_of_the_law_has_its_counts_and_the_worst_rows() -> None:
    names = ("step x2", "cta x2")
    rows = [
        LawRow(
            *(seed, f"run {seed}", 1 + (seed % 3 == 0), ""),
            *(names[0], 0.3 * seed / 20, names[1], 0.3 if seed else 0.01, 0.3),
        )
        for seed in range(20)
    ]
    page = with_table(f"before {BEGIN} stale {END} after", rows)
    assert page.startswith(f"before {BEGIN}")
    assert page.endswith(f"{END} after")
    assert "Of 20 random runs (7 over two nodes" in page
    assert "19 have a what-if" in page
    assert "in 6 at least 0.7 times" in page
    lines = [line for line in page.splitlines() if line.startswith("| run ")]
    assert len(lines) == 11
    assert lines[1] == "| run 1 | none | step x2 -1.5% | cta x2 -30.0% |"
    assert "stale" not in page


def test_the_page_has_the_table_of_all_draws() -> None:
    """A process that has made all draws prints their counts and the worst, as the page has them."""
    page = PAGE.read_text(encoding="utf-8")
    assert f"Of {ALL_DRAWS} random runs" in page.partition(BEGIN)[2].partition(END)[0]
    if len(ROWS) == ALL_DRAWS:
        print(table(ROWS))
        assert page == with_table(page, ROWS)
