"""What `clusim view` answers, over a real connection."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clusim.errors import EnvironmentFailure
from clusim.report.feed import Feed
from clusim.report.message import unpack
from clusim.report.server import PageServer


@pytest.fixture(scope="module")
def server(training: Path) -> Iterator[PageServer]:
    with PageServer(Feed.open(training)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def get(server: PageServer, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_it_listens_on_this_machine_only(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/"


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
    assert tasks["count"].sum() == (server.feed.lanes.start_ps < low).sum()


@pytest.mark.parametrize(
    ("path", "status"),
    [("/other", 404), ("/data/other?from=0&until=1&columns=1", 404), ("/data/wires", 400),
     ("/data/wires?from=x&until=1&columns=1", 400), ("/data/wires?from=9&until=1&columns=1", 400),
     ("/data/wires?from=0&until=9&columns=0", 400), ("/../secret", 404)],
)  # fmt: skip
def test_bad_requests_are_refused(server: PageServer, path: str, status: int) -> None:
    assert get(server, path)[0] == status


def test_other_sites_names_for_this_machine_are_refused(server: PageServer) -> None:
    assert get(server, "/", Host="evil.example:80")[0] == 403


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
        assert line.startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert err.strip() == ""
