"""The page in a real browser: drawn without errors, and what is clicked is shown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusim.report.html import page as report
from clusim.report.page_data import Feed
from clusim.report.server import PageServer
from clusim.training import train
from support.browser import chromium, until, watched
from support.workloads import tiny

READY = "document.documentElement.dataset.ready === 'true'"

COLOURS = """() => {
  const canvas = document.getElementById("heat");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
  return seen.size;
}"""

STROKES = "[...document.querySelectorAll('#machine .seen')].map((line) => line.style.stroke)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture(scope="module")
def file(training: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report(Feed.open(training)), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Any]:
    """The report, opened from disk; a test that leaves errors on the console fails."""
    page, troubles = watched(browser, viewport={"width": 1280, "height": 900})
    page.goto(file.as_uri())
    until(page, READY)
    yield page
    assert troubles == []
    page.close()


def frame(page: Any) -> None:
    """Wait until what has changed is drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.covering
@pytest.mark.parametrize("name", ["collective", "training", "traffic", "cluster", "controlled"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_kind_of_run_is_drawn_without_errors(
    name: str, scheme: str, browser: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(report(Feed.open(request.getfixturevalue(name))), encoding="utf-8")
    page, troubles = watched(browser, color_scheme=scheme)
    page.goto(path.as_uri())
    until(page, READY)
    assert troubles == []
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate(COLOURS) > 8
    page.close()


def test_the_page_asks_no_server_for_anything(browser: Any, file: Path) -> None:
    page, troubles = watched(browser)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    until(page, READY)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert troubles == []
    page.close()


def test_the_slider_changes_the_colours_of_the_machine(opened: Any) -> None:
    whole = opened.evaluate(STROKES)
    assert len(whole) == 64
    shown = set()
    for place in (100, 500, 950):
        opened.locator("#slider").fill(str(place))
        frame(opened)
        shown.add(tuple(opened.evaluate(STROKES)))
        assert opened.locator("#moment").inner_text().startswith("at ")
    assert len(shown) > 1
    opened.locator("#whole").click()
    frame(opened)
    assert opened.evaluate(STROKES) == whole
    assert opened.locator("#moment").inner_text() == "whole run"


def test_a_click_into_the_heatmap_shows_the_numbers_of_that_wire(opened: Any) -> None:
    row = 5
    opened.locator("#heat").scroll_into_view_if_needed()
    tall = opened.evaluate("clusim.heat.tall")
    label = opened.evaluate(f"clusim.overview.rows.labels[clusim.heat.order[{row}]]")
    opened.locator("#heat").click(position={"x": 700, "y": (row + 0.5) * tall})
    frame(opened)
    assert opened.locator("#wire-name").inner_text() == label.replace("->", " → ")
    text = opened.locator("#wire-numbers").inner_text()
    assert "25 GB/s" in text
    assert "Longest queue" in text
    assert opened.locator("#said").inner_text().startswith(label)


def test_a_click_on_a_line_of_the_machine_shows_its_wires(opened: Any) -> None:
    opened.evaluate(
        "document.querySelectorAll('#machine .hit')[3].dispatchEvent(new Event('click'))"
    )
    frame(opened)
    label = opened.evaluate("clusim.overview.lines.labels[3]")
    assert opened.locator("#wire-name").inner_text() == label.replace("->", " → ")


def test_a_bar_of_a_machine_shows_the_links_inside_it(
    browser: Any, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusim.base.drawing.layout.MOST_PANELS", 1)
    path = tmp_path / "report.html"
    path.write_text(report(Feed.open(cluster)), encoding="utf-8")
    page, troubles = watched(browser, viewport={"width": 1280, "height": 900})
    page.goto(path.as_uri())
    until(page, READY)
    assert page.locator("#machine .seen.bar").count() == 4
    page.locator("#machine").scroll_into_view_if_needed()
    place = page.evaluate(
        "(({ x, y, width }) => [x + width / 2, y])"
        "([...document.querySelectorAll('#machine .hit')].at(-2).getBoundingClientRect())"
    )
    page.mouse.click(*place)
    frame(page)
    assert page.locator("#wire-name").inner_text() == "n1: nvlink"
    assert "192 wires" in page.locator("#wire-class").inner_text()
    assert page.locator("#machine .bar.chosen").count() == 1
    page.locator("#class").select_option("pcie")
    shown = page.evaluate("clusim.heat.order.map((row) => clusim.overview.rows.classes[row])")
    assert len(set(shown)) > 2
    assert all(name.startswith("pcie ") for name in shown)
    assert troubles == []
    page.close()


def test_hovering_names_wire_and_time(opened: Any) -> None:
    opened.locator("#heat").hover(position={"x": 600, "y": 40})
    tip = opened.locator("#tip")
    assert tip.evaluate("(e) => e.style.visibility") == "visible"
    assert "Load: " in tip.inner_text()


def test_dragging_zooms_both_plots_and_a_double_click_shows_everything(opened: Any) -> None:
    opened.locator("#heat").scroll_into_view_if_needed()
    box = opened.locator("#heat").bounding_box()
    opened.mouse.move(box["x"] + 400, box["y"] + 50)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 600, box["y"] + 60, steps=4)
    opened.mouse.up()
    low, high, whole = opened.evaluate("[clusim.from, clusim.until, clusim.time]")
    assert 0 < low < high < whole
    opened.locator("#heat").dblclick(position={"x": 500, "y": 40})
    assert opened.evaluate("[clusim.from, clusim.until]") == [0, whole]


def test_the_keyboard_moves_zooms_and_chooses(opened: Any) -> None:
    opened.locator("#heat").focus()
    before = opened.locator("#wire-name").inner_text()
    for key in ("ArrowDown", "ArrowDown", "+", "ArrowRight"):
        opened.keyboard.press(key)
    frame(opened)
    assert opened.locator("#wire-name").inner_text() != before
    assert opened.evaluate("clusim.until - clusim.from < clusim.time / 1.9")
    assert opened.evaluate("clusim.cursor !== null")
    opened.keyboard.press("0")
    opened.keyboard.press("Escape")
    assert opened.evaluate("[clusim.from, clusim.cursor]") == [0, None]


def test_rows_can_be_chosen_by_class_and_sorted_by_load(opened: Any) -> None:
    every = opened.evaluate("clusim.heat.order.length")
    opened.locator("#class").select_option("nvlink gpu->switch")
    assert opened.evaluate("clusim.heat.order.length") == every // 2
    opened.locator("#order").select_option("load")
    loads = opened.evaluate("clusim.heat.order.map((row) => clusim.overview.rows.busiest[row])")
    assert loads == sorted(loads, reverse=True)


def test_other_measures_are_drawn_in_other_colours(opened: Any) -> None:
    before = opened.evaluate(STROKES)
    opened.locator("#measure").select_option("queue")
    frame(opened)
    assert opened.evaluate(STROKES) != before
    assert "B" in opened.locator(".legend .most").first.inner_text()


def test_the_theme_can_be_switched(opened: Any) -> None:
    first = opened.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    opened.locator("#theme").click()
    assert opened.evaluate("getComputedStyle(document.documentElement).backgroundColor") != first


def test_a_printed_page_is_light_and_has_every_section(opened: Any, tmp_path: Path) -> None:
    opened.locator("#theme").click()
    opened.pdf(path=str(tmp_path / "report.pdf"))
    assert (tmp_path / "report.pdf").stat().st_size > 20_000


PIXELS = "(id) => document.getElementById(id).toDataURL()"


def test_the_critical_path_is_drawn_over_ranks_and_channels_and_can_be_left_out(
    opened: Any,
) -> None:
    shown = [opened.evaluate(PIXELS, name) for name in ("steps", "timeline")]
    opened.locator("#path-on").uncheck()
    frame(opened)
    hidden = [opened.evaluate(PIXELS, name) for name in ("steps", "timeline")]
    assert all(one != two for one, two in zip(shown, hidden, strict=True))
    opened.locator("#path-on").check()
    frame(opened)
    assert [opened.evaluate(PIXELS, name) for name in ("steps", "timeline")] == shown


def test_the_keyboard_goes_from_step_to_step_of_the_path_and_says_each(opened: Any) -> None:
    opened.locator("#steps").focus()
    said = []
    for _ in range(3):
        opened.keyboard.press("ArrowDown")
        frame(opened)
        said.append((opened.locator("#said").inner_text(), opened.evaluate("clusim.cursor")))
    times = [cursor for _, cursor in said]
    assert times == sorted(times)
    assert times[0] < times[-1]
    rows = opened.evaluate("clusim.overview.path.rows")
    for text, _ in said:
        assert any(text.startswith(f"{row}, ") for row in rows)
        assert "critical path" in text
    opened.keyboard.press("ArrowUp")
    assert opened.evaluate("clusim.cursor") == times[1]


def test_the_keyboard_goes_from_lane_to_lane_and_says_what_is_under_way(opened: Any) -> None:
    opened.locator("#timeline").focus()
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowDown")
    frame(opened)
    rank, stream = opened.evaluate(
        "[clusim.overview.lanes.ranks[1], clusim.overview.lanes.streams[1]]"
    )
    assert opened.locator("#said").inner_text().startswith(f"rank {rank}, stream {stream}: ")
    assert opened.evaluate("clusim.timeline.marked") == 1


def test_the_keyboard_goes_from_line_to_line_of_the_machine_and_says_each(opened: Any) -> None:
    opened.locator("#machine").focus()
    labels = opened.evaluate("clusim.overview.lines.labels")
    lines = opened.evaluate("[...document.querySelectorAll('#machine .seen')].length")
    assert len(labels) == lines
    for key, line in (("Home", 0), ("ArrowRight", 1), ("ArrowDown", 2), ("ArrowUp", 1)):
        opened.keyboard.press(key)
        frame(opened)
        assert opened.evaluate(
            "[...document.querySelectorAll('#machine .seen')].flatMap((e, i) => e.matches('.chosen') ? [i] : [])"
        ) == [line]
        shown = labels[line].replace("->", " → ")
        assert opened.locator("#said").inner_text().startswith(f"{labels[line]}: Rate")
        tip = opened.locator("#tip")
        assert tip.evaluate("(e) => e.style.visibility") == "visible"
        assert tip.inner_text().splitlines()[0] == opened.locator("#wire-name").inner_text()
        assert opened.locator("#wire-name").inner_text() == shown
    focus = opened.evaluate(
        "(() => { const own = getComputedStyle(document.activeElement);"
        " return [document.activeElement.id, own.outlineStyle, own.outlineWidth]; })()"
    )
    assert focus == ["machine", "solid", "2px"]
    coloured = "getComputedStyle(document.querySelector('#machine .chosen')).stroke"
    reached = opened.evaluate(coloured)
    opened.locator("#heat").focus()
    assert opened.evaluate(coloured) != reached
    opened.locator("#machine").focus()
    opened.keyboard.press("End")
    opened.keyboard.press("ArrowRight")
    frame(opened)
    assert opened.evaluate("clusim.chosenLine") == lines - 1
    opened.keyboard.press("Tab")
    assert opened.locator("#tip").evaluate("(e) => e.style.visibility") == "hidden"


@pytest.mark.parametrize("zoomed", [False, True])
def test_the_keyboard_goes_from_bar_to_bar_of_a_lane_and_says_each(
    zoomed: bool, browser: Any, tmp_path: Path
) -> None:
    """Every bar of the lane is reached in its order, also those out of the window."""
    trace, path = tmp_path / "step.h5", tmp_path / "report.html"
    work = tiny("parallel: {tensor: 2, data: 1}", batch="{global: 1, micro: 1}")
    train(
        work, "dgx-a100", steps=1, granularity="coarse", fold="none", trace_out=trace, confirm=False
    )
    path.write_text(report(Feed.open(trace)), encoding="utf-8")
    opened, troubles = watched(browser, viewport={"width": 1280, "height": 900})
    opened.goto(path.as_uri())
    until(opened, READY)
    opened.locator("#timeline").focus()
    for _ in range(6 * zoomed):
        opened.keyboard.press("+")
    lane, starts = max(
        enumerate(
            opened.evaluate(
                "clusim.overview.lanes.ranks.map((_, lane) =>"
                " [...clusim.tasks.start].filter((_, i) => clusim.tasks.lane[i] === lane))"
            )
        ),
        key=lambda item: len(item[1]),
    )
    assert len(set(starts)) == len(starts) > 3
    for _ in range(lane + 1):
        opened.keyboard.press("ArrowDown")
    opened.evaluate("clusim.moveCursor(0)")
    frame(opened)
    first, marked = (1 if min(starts) == 0 else 0), opened.evaluate(PIXELS, "timeline")
    for start in sorted(starts)[first:]:
        opened.keyboard.press(".")
        frame(opened)
        low, cursor, high = opened.evaluate("[clusim.from, clusim.cursor, clusim.until]")
        assert low <= cursor == start <= high
        tip = opened.locator("#tip").inner_text()
        assert opened.locator("#said").inner_text() == ", ".join(tip.splitlines())
        assert f"rank {opened.evaluate(f'clusim.overview.lanes.ranks[{lane}]')}, stream " in tip
    assert opened.evaluate(PIXELS, "timeline") != marked
    opened.keyboard.press(".")
    assert opened.evaluate("clusim.cursor") == max(starts)
    opened.keyboard.press(",")
    assert opened.evaluate("clusim.cursor") == sorted(starts)[-2]
    assert troubles == []
    opened.close()


def test_what_is_searched_is_chosen_one_after_the_other(opened: Any) -> None:
    opened.locator("#class").select_option("nvlink gpu->switch")
    opened.locator("#find").fill("GPU7 nvswitch1 ->gpu")
    opened.locator("#find").press("Enter")
    frame(opened)
    found = opened.evaluate(
        "clusim.overview.rows.labels.filter((name) => /^nvswitch1.*gpu7/.test(name))"
    )
    assert opened.locator("#found").inner_text().endswith(f": {found[0]}")
    assert opened.locator("#wire-name").inner_text() == found[0].replace("->", " → ")
    assert opened.evaluate("clusim.heat.order.includes(clusim.chosen.row)")
    opened.locator("#find").press("ArrowDown")
    frame(opened)
    assert opened.locator("#wire-name").inner_text() == found[1 % len(found)].replace("->", " → ")
    opened.locator("#find").fill("rank 3")
    opened.locator("#find").press("Enter")
    lanes = opened.evaluate("clusim.overview.lanes.ranks")
    assert lanes[opened.evaluate("clusim.timeline.marked")] == 3
    opened.locator("#find").fill("no such thing")
    opened.locator("#find").press("Enter")
    assert opened.locator("#found").inner_text() == "nothing of that name"


def test_everything_can_be_reached_and_is_named(opened: Any) -> None:
    """Every control has a name for a screen reader, and the plots are reached with the tabulator."""
    unnamed = opened.evaluate(
        """[...document.querySelectorAll("button, select, input, canvas[tabindex], svg")].filter((e) =>
          !(e.getAttribute("aria-label") || e.labels?.[0]?.textContent.trim() || e.textContent.trim())).length"""
    )
    assert unnamed == 0
    reached = set()
    opened.locator("#find").focus()
    for _ in range(40):
        reached.add(opened.evaluate("document.activeElement.id"))
        opened.keyboard.press("Tab")
    assert {
        "find",
        "theme",
        "measure",
        "slider",
        "machine",
        "heat",
        "timeline",
        "path-on",
        "steps",
    } <= reached


def test_a_narrow_window_has_no_sideways_scroll(browser: Any, file: Path) -> None:
    page, troubles = watched(browser, viewport={"width": 390, "height": 800})
    page.goto(file.as_uri())
    until(page, READY)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert troubles == []
    page.close()


def test_a_narrow_window_shows_the_line_that_the_keyboard_reaches(browser: Any, file: Path) -> None:
    page, troubles = watched(browser, viewport={"width": 390, "height": 800})
    page.goto(file.as_uri())
    until(page, READY)
    page.locator("#machine").focus()
    page.keyboard.press("Home")
    for _ in range(page.evaluate("clusim.overview.lines.labels.length")):
        frame(page)
        low, high = page.evaluate(
            "(() => { const { left, right } = document.querySelector('#machine .chosen').getBoundingClientRect();"
            " return [left, right]; })()"
        )
        assert high > 0
        assert low < 390
        page.keyboard.press("ArrowRight")
    assert troubles == []
    page.close()


def test_the_served_page_loads_finer_data_when_zoomed(browser: Any, training: Path) -> None:
    with PageServer(Feed.open(training)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page, troubles = watched(browser)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.url)
        until(page, READY)
        first = len(asked)
        page.locator("#zoom-in").click()
        until(page, "clusim.data.edges[0] > 0")
        assert any("data/wires?from=" in url for url in asked[first:])
        assert page.evaluate(COLOURS) > 8
        assert troubles == []
        page.close()
        server.shutdown()
