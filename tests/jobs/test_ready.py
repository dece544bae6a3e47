"""Order of task graphs by hand."""

from __future__ import annotations

from clusim.formats.recordings.model import Event, Recording
from clusim.jobs.ready import sort_by_start

US = 1_000_000


def kernel(name: str, time_us: int, deps: tuple[int, ...] = ()) -> Event:
    return Event("compute", 0, "gpu", name, deps, duration_ps=time_us * US)


def graph(*events: Event) -> Recording:
    return Recording("chakra", "graph", 1, events=list(events), is_graph=True)


def test_a_unit_runs_the_first_ready_event() -> None:
    """At 3 us, when the unit is free, c and d are ready; b becomes ready 2 us later."""
    load = Event("delay", 0, "cpu", "load", duration_ps=5 * US)
    found = sort_by_start(
        graph(load, kernel("b", 1, (0,)), kernel("a", 3), kernel("c", 9), kernel("d", 1))
    )
    assert [event.name for event in found.events] == ["load", "a", "c", "b", "d"]
    assert [found.events[dep].name for dep in found.events[3].deps] == ["load"]


def test_other_recordings_keep_their_order() -> None:
    recording = Recording("kineto", "streams", 1, events=[kernel("a", 3)])
    assert sort_by_start(recording) is recording
