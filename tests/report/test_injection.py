"""Names that are attacks on the page that shows them, in a real browser: of everything that writes HTML or SVG."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.report.html import page as report
from clusim.report.page_data import Feed
from clusim.report.plots import FIGURES, save_figure
from clusim.report.server import PageServer
from clusim.schedule.builder import ProgramBuilder
from clusim.validation.collectives.breakdown import Point
from clusim.validation.collectives.measurements import CurveGroup, Row
from clusim.validation.collectives.validate import save_accuracy
from clusim_cli.main import run
from support.browser import chromium, until, watched
from support.doctored import EVIL, SHORT, doctored, topology

READY = "document.documentElement.dataset.ready === 'true'"
HIT = "window.hit === undefined"
FOREIGN = "document.querySelectorAll('[onload], [onerror], img, a, iframe, object, embed, foreignObject').length"
"""What no page of ours has, and the attack would bring."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture(scope="module")
def evil(training: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evil") / "run.h5"
    places = doctored(training, path, lambda trial: report(Feed.open(trial)))
    # What a page shows as it is can hold anything.
    assert {
        ("meta", "command"),
        ("meta", "fabric"),
        ("meta/fabric_text", ""),
        ("fabric/node", ""),
        ("tasks/name", ""),
    } <= set(places)
    return path


@pytest.fixture(scope="module")
def evil_flows(controlled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trace whose flows have names of a stranger."""
    path = tmp_path_factory.mktemp("evil") / "flows.h5"
    doctored(controlled, path, lambda trial: report(Feed.open(trial)))
    return path


def opened(browser: Any, address: str) -> tuple[Any, list[str]]:
    page, troubles = watched(browser, viewport={"width": 1280, "height": 900})
    page.on("dialog", lambda dialog: troubles.append(dialog.message))
    page.goto(address)
    return page, troubles


def unharmed(page: Any, troubles: list[str]) -> None:
    """Check that nothing ran, that nothing had to be kept from running, and that no element came in."""
    page.wait_for_timeout(200)
    assert page.evaluate(HIT)
    assert page.evaluate(FOREIGN) == 0
    assert troubles == []
    page.close()


def use(page: Any) -> None:
    """Look at everything that shows names only when it is touched."""
    until(page, READY)
    for selector in ("#heat", "#timeline"):
        canvas = page.locator(selector)
        canvas.scroll_into_view_if_needed()
        for x in (20, 400, 700):
            canvas.hover(position={"x": x, "y": 30})
            canvas.click(position={"x": x, "y": 30})
    page.locator("#machine").scroll_into_view_if_needed()
    for number in (0, 3):
        for event in ("click", "pointermove"):
            page.evaluate(
                f"document.querySelectorAll('#machine .hit')[{number}].dispatchEvent(new PointerEvent('{event}'))"
            )
    for name in page.evaluate(
        "[...document.querySelectorAll('#class option')].map((o) => o.value)"
    ):
        page.locator("#class").select_option(name)
    for summary in page.locator("details").all():
        summary.locator("summary").click()


def test_a_report_of_a_doctored_trace(browser: Any, evil: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report(Feed.open(evil)), encoding="utf-8")
    page, troubles = opened(browser, path.as_uri())
    use(page)
    assert "<img src=x" in page.locator("h1").inner_text()
    assert "<img src=x" in page.locator("#wire-name").inner_text()
    assert "<img src=x" in page.locator("details").first.inner_text()
    unharmed(page, troubles)


def test_a_view_of_a_doctored_trace(browser: Any, evil: Path) -> None:
    with PageServer(Feed.open(evil)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page, troubles = opened(browser, server.url)
        use(page)
        assert "<img src=x" in page.locator("h1").inner_text()
        assert "<img src=x" in page.locator("#wire-name").inner_text()
        unharmed(page, troubles)
        server.shutdown()


def test_a_report_of_traffic_on_a_doctored_trace(
    browser: Any, traffic: Path, tmp_path: Path
) -> None:
    doctored(traffic, tmp_path / "run.h5", lambda trial: report(Feed.open(trial)))
    path = tmp_path / "report.html"
    path.write_text(report(Feed.open(tmp_path / "run.h5")), encoding="utf-8")
    page, troubles = opened(browser, path.as_uri())
    until(page, READY)
    unharmed(page, troubles)


def test_a_run_in_which_everything_has_an_evil_name(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topology, chips, classes of links that stay idle, jobs, kernels, streams, faults, files and folders."""
    monkeypatch.chdir(tmp_path)
    folder = Path(SHORT.replace("/", "-"))
    folder.mkdir()
    (folder / "t.yaml").write_text(topology(), encoding="utf-8")
    fabric = clusim.load(folder / "t.yaml")
    builder = ProgramBuilder(4, EVIL)
    for rank in range(4):
        builder.kernel(rank, compute_ps=10**6, name=EVIL, stream=EVIL)
    trace = folder / "run.h5"
    fault = "rank 1 slow x1.3"
    command = f"clusim run --fault '{fault} {EVIL}'"
    clusim.simulate(fabric, builder.build(), trace_out=trace, faults=[fault], command=command)
    assert run(["report", str(trace)]) == 0
    page, troubles = opened(browser, trace.with_suffix(".html").absolute().as_uri())
    until(page, READY)
    unharmed(page, troubles)
    assert (
        run(
            [
                "run",
                str(folder / "t.yaml"),
                "--size",
                "64K",
                "--ranks",
                "1-3",
                "--trace-out",
                str(trace),
            ]
        )
        == 0
    )
    assert run(["report", str(trace)]) == 0
    page, troubles = opened(browser, trace.with_suffix(".html").absolute().as_uri())
    use_less = "document.querySelectorAll('#class option').length"
    until(page, READY)
    assert page.evaluate(use_less) > 1
    unharmed(page, troubles)


NO_ROOM = pytest.mark.filterwarnings("ignore:Glyph", "ignore:constrained_layout")
"""Of names so long nothing is left of a figure."""


@NO_ROOM
@pytest.mark.parametrize("figure", FIGURES)
def test_figures_of_a_doctored_trace(
    figure: str, browser: Any, evil: Path, evil_flows: Path, tmp_path: Path
) -> None:
    path = tmp_path / "figure.svg"
    trace = evil_flows if figure == "flows" else evil
    save_figure(Feed.open(trace, findings=False), figure, path)
    page, troubles = opened(browser, path.as_uri())
    assert page.evaluate("document.documentElement.tagName") == "svg"
    unharmed(page, troubles)


def test_a_picture_of_an_evil_topology(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(topology(), encoding="utf-8")
    path = tmp_path / "t.svg"
    assert run(["topo", "show", str(tmp_path / "t.yaml"), "--svg", str(path)]) == 0
    assert "&lt;svg onload" in path.read_text(encoding="utf-8")
    page, troubles = opened(browser, path.as_uri())
    assert page.evaluate("document.documentElement.tagName") == "svg"
    unharmed(page, troubles)


@NO_ROOM
def test_a_figure_of_measurements_with_evil_names(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "accuracy.svg"
    group = CurveGroup(SHORT, 1, 8, SHORT)
    points = [Point(Row(group, size, 1.0), 1.5, "Ring", "LL", ()) for size in (1024, 2048)]
    save_accuracy([points], path)
    page, troubles = opened(browser, path.as_uri())
    assert page.evaluate("document.documentElement.tagName") == "svg"
    unharmed(page, troubles)


ATTACKS = (
    "<script>window.hit = 1</script>",
    '<img src="x" onerror="window.hit = 1">',
    '<svg onload="window.hit = 1"></svg>',
    '<style>body { background: url("http://127.0.0.1:9/leak") }</style>',
    '<iframe srcdoc="<script>parent.hit = 1</script>"></iframe>',
    '<a id="link" href="javascript:window.hit = 1">x</a>',
    '<base href="http://127.0.0.1:9/">',
)


@pytest.mark.parametrize("served", [False, True])
def test_the_policy_stops_what_would_have_come_in(
    served: bool, browser: Any, feed: Feed, tmp_path: Path
) -> None:
    """The second wall, with a hole made into the first one."""

    def holed(text: str) -> str:
        return text.replace("<main>", f"<main>{''.join(ATTACKS)}")

    asked: list[str] = []
    with PageServer(feed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.page = holed(server.page.decode()).encode()
        path = tmp_path / "report.html"
        path.write_text(holed(report(feed)), encoding="utf-8")
        page, troubles = watched(browser)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.url if served else path.as_uri())
        until(page, READY)
        page.locator("#link").click()
        page.evaluate(
            "(() => { try { document.body.innerHTML = '<b>'; } catch { window.stopped = 1; } })()"
        )
        page.wait_for_timeout(200)
        assert page.evaluate(HIT)
        assert page.evaluate("window.stopped") == 1
        assert len([text for text in troubles if "Content Security Policy" in text]) >= 5
        assert not [url for url in asked if ":9/" in url]
        page.close()
        server.shutdown()


def test_another_site_cannot_read_or_frame_a_view(browser: Any, feed: Feed) -> None:
    with PageServer(feed) as server, PageServer(feed) as other:
        for each in (server, other):
            threading.Thread(target=each.serve_forever, daemon=True).start()
        other.page = b"<!DOCTYPE html><title>other</title><body>"
        page, _ = watched(browser, bypass_csp=True)
        page.goto(other.url)
        read = "(url) => fetch(url).then((a) => a.text(), () => 'refused')"
        assert page.evaluate(read, f"{other.url}data/overview") != "refused"
        assert page.evaluate(read, f"{server.url}data/overview") == "refused"
        page.close()
        for each in (server, other):
            each.shutdown()
