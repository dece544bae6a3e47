"""How long the server of a program that calls NCCL waits for a thread that may issue a call that overlaps."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from clusim.shim import server
from clusim.shim.server import MOST_TICKS, Server, Waiting, threads_of

COMMS = {number: SimpleNamespace(alone=False) for number in range(2)}


def server_of_two() -> Server:
    """Return a server with a thread that waits and one that does not."""
    world: Any = SimpleNamespace(comms=COMMS)
    links: Any = [SimpleNamespace(process=1, waiting=None), SimpleNamespace(process=1, waiting=1)]
    return Server(world, links)


@pytest.mark.parametrize(
    ("threads", "holds"),
    [
        ([(True, 7), (True, 7)], True),
        ([(True, 7), (True, 6 + MOST_TICKS)], True),
        ([(True, 7), (True, 7 + MOST_TICKS)], False),
        ([(True, 7), (False, 7)], False),
    ],
)
def test_the_clock_waits_for_processor_time_of_threads(
    monkeypatch: pytest.MonkeyPatch, threads: list[tuple[bool, int]], holds: bool
) -> None:
    """A thread without a processor, which uses no time, is waited for; one that computes is not for ever."""
    answers = iter(threads)
    monkeypatch.setattr(server, "threads_of", lambda processes: next(answers))
    of_two = server_of_two()
    assert of_two._holds()
    assert of_two._holds() is holds


def test_the_clock_waits_for_no_thread_if_all_wait() -> None:
    of_two = server_of_two()
    for link in of_two.links:
        link.waiting = Waiting(lambda: False, lambda: "")
    assert not of_two._holds()


def test_processor_time_of_all_threads_counts() -> None:
    """This thread runs; the other one sleeps, having used a few ticks."""
    done, end = threading.Event(), threading.Event()

    def work() -> None:
        number = 0
        while threads_of([os.getpid()])[1] < before + 3:
            number += 1
        done.set()
        end.wait()

    before = threads_of([os.getpid()])[1]
    thread = threading.Thread(target=work)
    thread.start()
    done.wait()
    assert threads_of([os.getpid()]) >= (True, before + 3)
    end.set()
    thread.join()


def test_a_process_that_has_ended_runs_no_thread() -> None:
    assert threads_of([2**22 + 1]) == (False, 0)


def test_a_request_that_arrives_is_read_before_the_clock_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other thread sleeps as it waits for the reply to a request that is not yet read."""
    monkeypatch.setattr(server, "threads_of", lambda processes: (False, 7))
    played: list[str] = []

    def play() -> bool:
        played.append("once")
        return False

    of_two = server_of_two()
    monkeypatch.setattr(of_two, "_wake", lambda: None)
    monkeypatch.setattr(of_two, "_play", play)
    of_two._continue(lambda: True)
    assert not played
    of_two._continue(lambda: False)
    assert played == ["once"]
