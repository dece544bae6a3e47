"""What `clusim view` answers, over a real connection."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clusim.base.errors import EnvironmentFailure
from clusim.report.page_data import Feed, unpack
from clusim.report.server import PageServer


@pytest.fixture(scope="module")
def server(training: Path) -> Iterator[PageServer]:
    with PageServer(Feed.open(training)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(
    server: PageServer, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """Ask for a whole path."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def get(server: PageServer, path: str, **headers: str) -> tuple[int, bytes]:
    """Ask for a path below the token."""
    answer, body = ask(server, f"/{server.token}{path}", **headers)
    return answer.status, body


def test_it_listens_on_this_machine_only(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/{server.token}/"


def test_the_page_and_the_overview_are_served(server: PageServer) -> None:
    status, body = get(server, "/")
    assert (status, body[:15]) == (200, b"<!DOCTYPE html>")
    status, body = get(server, "/data/overview")
    assert status == 200
    assert unpack(body)[0]["live"] is True


def test_a_window_has_what_lies_in_it(server: PageServer) -> None:
    time_ps = server.feed.result.time_ps
    low, high = time_ps // 4, time_ps // 2
    status, body = get(server, f"/data/wires?from={low}&until={high}&columns=16")
    assert status == 200
    edges = unpack(body)[1]["edges"]
    assert edges[0] <= low < high <= edges[-1]
    assert len(edges) <= 17
    status, body = get(server, f"/data/tasks?from=0&until={low}&columns=16")
    tasks = unpack(body)[1]
    assert np.all(tasks["start"] < low)
    started = sum((own.start_ps < low).sum() for own in server.feed.lanes.tasks)
    assert tasks["count"].sum() == started


@pytest.mark.parametrize(
    ("path", "status"),
    [("/other", 404), ("/data/other?from=0&until=1&columns=1", 404), ("/data/wires", 400),
     ("/data/wires?from=x&until=1&columns=1", 400), ("/data/wires?from=9&until=1&columns=1", 400),
     ("/data/wires?from=0&until=9&columns=0", 400), ("/../secret", 404)],
)  # fmt: skip
def test_bad_requests_are_refused(server: PageServer, path: str, status: int) -> None:
    assert get(server, path)[0] == status


@pytest.mark.parametrize(
    "host", ["evil.example:80", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:PORT", "[::1]:PORT", "",
             "evil.example@127.0.0.1:PORT", "127.0.0.1:PORT.evil.example"]
)  # fmt: skip
def test_other_sites_names_for_this_machine_are_refused(server: PageServer, host: str) -> None:
    port = str(server.server_address[1])
    assert get(server, "/", Host=host.replace("PORT", port))[0] == 403
    assert get(server, "/", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/data/overview", "/x/", "/TOKE/", "/TOKENx/", "/TOKEN", "/token/TOKEN/", "/%00/", "/?TOKEN"]
)  # fmt: skip
def test_nobody_gets_in_without_the_token(server: PageServer, path: str) -> None:
    path = path.replace("TOKEN", server.token).replace("TOKE", server.token[:-1])
    answer, body = ask(server, path)
    assert answer.status == 403
    assert b"clusim view printed" in body
    assert server.token.encode() not in body


def test_every_server_has_a_token_of_its_own(server: PageServer) -> None:
    with PageServer(server.feed) as other:
        assert other.token != server.token
        assert len(other.token) >= 24


@pytest.mark.parametrize("path", ["/", "/data/overview", "/other"])
def test_head_says_what_get_would_without_the_body(server: PageServer, path: str) -> None:
    whole, body = ask(server, f"/{server.token}{path}")
    head, nothing = ask(server, f"/{server.token}{path}", "HEAD")
    assert nothing == b""
    assert (head.status, head.headers["Content-Length"]) == (whole.status, str(len(body)))
    assert head.headers["Content-Type"] == whole.headers["Content-Type"]


SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/TOKEN/"), ("GET", "/"), ("GET", "/TOKEN/other"), ("POST", "/TOKEN/"), ("<b>", "/")],
)
def test_every_answer_forbids_what_is_not_needed(
    server: PageServer, method: str, path: str
) -> None:
    answer, body = ask(server, path.replace("TOKEN", server.token), method)
    assert {name: answer.headers[name] for name in SAFE} == SAFE
    rules = answer.headers["Content-Security-Policy"]
    assert rules.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in rules
    assert "frame-ancestors 'none'" in rules
    assert "unsafe" not in rules
    if answer.status != 200:
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert b"<html" not in body


def test_a_port_in_use_is_one_clear_error(server: PageServer) -> None:
    port = server.server_address[1]
    with pytest.raises(
        EnvironmentFailure, match=f"port {port}: cannot serve: Address already in use"
    ):
        PageServer(server.feed, port)


def test_ctrl_c_ends_it_quietly(training: Path) -> None:
    command = [sys.executable, "-m", "clusim", "view", str(training), "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.match(r"http://127\.0\.0\.1:\d+/[\w-]{24}/ ", line)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert err.strip() == ""
