"""The page as text: complete, self-contained, small, and safe whatever things are called."""

from __future__ import annotations

import base64
import gzip
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import clusim
from clusim.report.html import LIMIT_BYTES, page, served_page
from clusim.report.markup import element
from clusim.report.page_data import Feed, unpack
from support import traces

VOID = {"meta", "link", "br", "input"}


class Checker(HTMLParser):
    """Checks that elements are closed in the order in which they were opened, and that ids are unique."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A self-closing element of an SVG opens nothing."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def embedded(text: str, name: str) -> bytes:
    match = re.search(rf'id="data-{name}">([^<]*)<', text)
    assert match is not None
    return gzip.decompress(base64.b64decode(match[1]))


@pytest.mark.parametrize("name", ["collective", "training", "traffic", "cluster"])
def test_a_page_is_one_well_formed_small_file(name: str, request: pytest.FixtureRequest) -> None:
    text = page(Feed.open(request.getfixturevalue(name)))
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert all(link.startswith("data:") for link in checker.links)
    without = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert re.search("https?:", without) is None
    assert "{{" not in text
    assert len(text.encode()) < 400_000


@pytest.mark.proof
def test_a_page_says_what_the_result_says(collective: Path) -> None:
    feed = Feed.open(collective)
    text = page(feed)
    assert "<h1>allreduce 1 MiB on dgx-a100</h1>" in text
    assert f"{feed.result.busbw_GBps:.1f} GB/s" in text
    for line in feed.result.verdict.lines():
        assert str(element("p", line).html)[3:-4].partition(": ")[2] in text, line
    assert f"{feed.result.fingerprint:016x}" in text
    assert "clusim run dgx-a100 --size 1MiB" in text
    assert "nodes:" in text  # the topology, verbatim


def test_a_training_step_has_its_overlap_and_its_own_name(feed: Feed) -> None:
    text = page(feed)
    assert "<h1>small training step on dgx-h100</h1>" in text
    assert "exposed communication" in text
    bars = text[text.index("Overlap of computation and communication") :].count('class="bar"')
    assert bars == 9  # one for each rank, and the mean


def test_the_critical_path_is_divided_up(feed: Feed) -> None:
    assert feed.blame is not None
    text = page(feed)
    assert "Where the time went" in text
    longest = max(feed.blame.rows(), key=lambda row: row["time_ps"])
    assert f"{longest['share']:.1%}, " in text
    assert "compute-bound" in text


def test_a_trace_without_slices_has_no_blame(traffic: Path) -> None:
    feed = Feed.open(traffic)
    assert feed.blame is None
    assert feed.calls is None
    assert "Where the time went" not in page(feed)


def test_traffic_has_latencies_and_no_timeline(traffic: Path) -> None:
    text = page(Feed.open(traffic))
    assert "Latency of messages" in text
    assert 'id="timeline"' not in text
    assert 'class="histogram"' in text


def test_the_embedded_history_is_that_of_the_trace(feed: Feed) -> None:
    text = page(feed)
    _, columns = unpack(embedded(text, "wires"))
    overview, _ = unpack(embedded(text, "overview"))
    assert columns["edges"].tolist() == feed.result.bins.edge_ps.tolist()
    rows = len(overview["rows"]["labels"])
    load = columns["load"].reshape(rows, -1) / 255
    width = np.diff(columns["edges"])
    busy = (load * width).sum(axis=1) / feed.result.time_ps
    assert np.allclose(busy, overview["rows"]["busy"], atol=0.005)


def test_the_same_trace_gives_the_same_page(training: Path) -> None:
    assert page(Feed.open(training)) == page(Feed.open(training))


def test_names_cannot_break_out_of_the_page(feed: Feed) -> None:
    evil = "</script><script>alert(1)</script>{{data}}&\"'"
    origin = replace(
        feed.result.provenance, fabric=evil, command=evil, fabric_text=evil, version=evil
    )
    wires = replace(
        feed.result.wires,
        names=[n.replace("gpu0", f"gpu{evil}") for n in feed.result.wires.names],
        classes=[evil + c for c in feed.result.wires.classes],
    )
    text = page(Feed.of(replace(feed.result, provenance=origin, wires=wires)))
    assert "<script>alert" not in text
    assert text.count("</script>") == 5
    Checker().feed(text)


def test_a_page_says_what_it_does_not_show(cluster: Path) -> None:
    text = page(Feed.open(cluster))
    # In the hint of the picture and in that of the heatmap.
    assert text.count("ot shown, without traffic: ") == 2
    assert "links between CPUs and host memory" in text
    assert '<option value="nvlink">all NVLink</option>' in text
    assert "Nothing crossed links between CPUs or host memory." in text


@pytest.mark.parametrize("name", ["fat-tree:k=8", "gb200-nvl72", "torus:8x8"])
def test_pages_of_big_machines_stay_small(name: str, tmp_path: Path) -> None:
    text = page(Feed.open(traces.write_traffic(tmp_path / "big.h5", name)))
    assert len(text.encode()) < LIMIT_BYTES


def test_a_page_that_would_be_too_big_is_made_coarser(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = len(page(feed).encode())
    limit = whole * 8 // 9
    monkeypatch.setattr("clusim.report.html.LIMIT_BYTES", limit)
    smaller = page(feed)
    assert len(smaller.encode()) < limit
    assert "rows of neighbours" in smaller


def test_an_unfinished_run_says_so(feed: Feed) -> None:
    result = replace(feed.result, complete=False)
    assert "unfinished" in page(Feed.of(result))


def test_a_run_without_any_wire_or_time_has_a_page() -> None:
    fabric = clusim.load("dgx-a100")
    builder = clusim.schedule.ProgramBuilder(8, "nothing but a kernel")
    builder.kernel(0, compute_ps=1000)
    result = clusim.simulate(fabric, builder.build())
    text = page(Feed.of(result))
    assert "Nothing crossed any wire" in text


def test_the_served_page_has_the_same_sections_and_no_data(feed: Feed) -> None:
    text = served_page(feed)
    assert 'data-live="true"' in text
    assert "data-wires" not in text
    assert re.findall("<h2>.*?</h2>", text) == re.findall("<h2>.*?</h2>", page(feed))
