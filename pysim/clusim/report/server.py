"""Local web server for the page of a trace, with data for the visible window.

All paths have an unguessable prefix, so that neither other users of the computer nor other pages in the
browser can read a trace; answers may not be stored, framed or interpreted as another type.
"""

from __future__ import annotations

import gzip
import hmac
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from clusim.base.errors import EnvironmentFailure
from clusim.report.html import policy, served_page
from clusim.report.page_data import Feed

MOST_COLUMNS = 4096
"""Maximum number of columns of an answer; larger requests are reduced to it."""

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
"""Accepted host names; any other may be another site's name for this address."""

TOKEN_BYTES = 18
"""Random bytes in the path: 144 bits."""


class PageServer(ThreadingHTTPServer):
    """HTTP server of one trace on the loopback interface; `port` 0 selects a free port."""

    daemon_threads = True

    def __init__(self, feed: Feed, port: int = 0) -> None:
        self.feed = feed
        self.page = served_page(feed).encode()
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise EnvironmentFailure(
                f"port {port}: cannot serve: {reason}"
            ) from None

    @property
    def url(self) -> str:
        """Address of the page, with the token that lets one in."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def below_token(self, path: str) -> str | None:
        """Return the rest of a path after the token, None if it is another one."""
        token, slash, subpath = path.removeprefix("/").partition("/")
        is_valid = hmac.compare_digest(
            token.encode("utf-8", "replace"), self.token.encode()
        )
        return f"/{subpath}" if is_valid and slash else None

    def answer(self, path: str, query: dict[str, list[str]]) -> bytes | None:
        """Return the requested message; None if its name is unknown.

        Raises `ValueError` for an invalid query.
        """
        feed = self.feed
        if path == "/data/overview":
            return feed.overview(live=True)
        windows: dict[str, Callable[[int, int, int], bytes]] = {
            "/data/wires": feed.wires,
            "/data/lines": feed.lines,
            "/data/tasks": feed.tasks,
        }
        if feed.path is not None:
            windows["/data/steps"] = feed.steps
        if path not in windows:
            return None
        low, high, columns = (
            int(query[name][0]) for name in ("from", "until", "columns")
        )
        low, high = max(0, low), min(feed.result.time_ps, high)
        if columns < 1 or high < low:
            raise ValueError("an empty window")
        return windows[path](low, high, min(columns, MOST_COLUMNS))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Suppress errors of browsers that close their connection early."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "clusim"
    sys_version = ""
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain; charset=utf-8"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        """Answer as `do_GET`, without the body."""
        self._answer()

    def _answer(self) -> None:
        server = self.server
        assert isinstance(server, PageServer)
        try:
            url = urlsplit(self.path)
            path = (
                server.below_token(url.path) if self._is_for_here(server) else None
            )
        except ValueError:
            path = None
        if path is None:
            words = b"not from here: open the whole address that clusim view printed"
            self._send(HTTPStatus.FORBIDDEN, words, "text/plain")
            return
        if path == "/":
            self._send(HTTPStatus.OK, server.page, "text/html; charset=utf-8")
            return
        try:
            data = server.answer(path, parse_qs(url.query))
        except (KeyError, ValueError):
            self._send(HTTPStatus.BAD_REQUEST, b"bad window", "text/plain")
            return
        if data is None:
            self._send(HTTPStatus.NOT_FOUND, b"no such page", "text/plain")
            return
        self._send(HTTPStatus.OK, data, "application/octet-stream")

    def _is_for_here(self, server: PageServer) -> bool:
        """Return True if the request's only Host header names this server."""
        hosts = self.headers.get_all("Host") or []
        port = server.server_address[1]
        return len(hosts) == 1 and hosts[0].lower() in {
            f"{name}:{port}" for name in NAMES
        }

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        packed = len(body) > 16384 and "gzip" in self.headers.get(
            "Accept-Encoding", ""
        )
        if packed:
            body = gzip.compress(body, 1, mtime=0)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        """Add security headers to every answer, including errors."""
        self.send_header(
            "Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'"
        )
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Be quiet."""
