"""Serve the page of a trace to a browser on this machine, with data for what is being looked at."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from clusim.errors import EnvironmentFailure
from clusim.report.feed import Feed
from clusim.report.html import served_page

__all__ = ["PageServer"]

MOST_COLUMNS = 4096
"""Columns of an answer; a browser that asks for more gets these."""

HOST = "127.0.0.1"


class PageServer(ThreadingHTTPServer):
    """Serves one trace on the loopback interface; `port` 0 takes a free one."""

    daemon_threads = True

    def __init__(self, feed: Feed, port: int = 0) -> None:
        self.feed = feed
        self.page = served_page(feed).encode()
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise EnvironmentFailure(f"port {port}: cannot serve: {reason}") from None

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def answer(self, path: str, query: dict[str, list[str]]) -> bytes | None:
        """Return the message asked for, or None if there is none of that name; `ValueError` for a bad query."""
        feed = self.feed
        if path == "/data/overview":
            return feed.overview(live=True)
        windows: dict[str, Callable[[int, int, int], bytes]] = {
            "/data/wires": feed.wires,
            "/data/lines": feed.lines,
            "/data/tasks": feed.tasks,
        }
        if path not in windows:
            return None
        low, high, columns = (int(query[name][0]) for name in ("from", "until", "columns"))
        low, high = max(0, low), min(feed.result.time_ps, high)
        if columns < 1 or high < low:
            raise ValueError("an empty window")
        return windows[path](low, high, min(columns, MOST_COLUMNS))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing when a browser closes its connection early."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, PageServer)
        url = urlsplit(self.path)
        # Only this machine's own pages: a name that another site points at 127.0.0.1 is refused.
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in (HOST, "localhost"):
            self._send(HTTPStatus.FORBIDDEN, b"not from here", "text/plain")
            return
        if url.path == "/":
            self._send(HTTPStatus.OK, server.page, "text/html; charset=utf-8")
            return
        try:
            data = server.answer(url.path, parse_qs(url.query))
        except (KeyError, ValueError):
            self._send(HTTPStatus.BAD_REQUEST, b"bad window", "text/plain")
            return
        if data is None:
            self._send(HTTPStatus.NOT_FOUND, b"no such page", "text/plain")
            return
        self._send(HTTPStatus.OK, data, "application/octet-stream")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        packed = len(body) > 16384 and "gzip" in self.headers.get("Accept-Encoding", "")
        if packed:
            body = gzip.compress(body, 1, mtime=0)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Be quiet."""
