"""Figures: the right size, every format, nothing cut off."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clusim.base.errors import InputError
from clusim.report.page_data import Feed
from clusim.report.plot_style import Look
from clusim.report.plots import FIGURES, save_figure
from clusim.results.trace.reader import read_result


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])  # type: ignore[return-value]


@pytest.mark.parametrize("what", FIGURES)
def test_a_figure_has_the_width_of_a_column_and_white_margins(
    what: str, feed: Feed, controlled: Path, tmp_path: Path
) -> None:
    from matplotlib import image

    path = tmp_path / "figure.png"
    drawn = Feed.open(controlled, findings=False) if what == "flows" else feed
    save_figure(drawn, what, path, Look(dpi=200))
    assert png_size(path)[0] == 680
    pixels = image.imread(path)[:, :, :3]
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (edge > 0.99).all(), "something touches the edge"
    assert len(np.unique((pixels * 255).astype(int).reshape(-1, 3), axis=0)) > 10


@pytest.mark.parametrize(
    ("name", "start"), [("f.svg", b"<?xml"), ("f.pdf", b"%PDF"), ("f.PNG", b"\x89PNG")]
)
def test_the_ending_says_the_format(name: str, start: bytes, feed: Feed, tmp_path: Path) -> None:
    save_figure(feed, "heatmap", tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_the_same_trace_gives_the_same_file(feed: Feed, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save_figure(feed, "timeline", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_letters_grow_with_the_width(feed: Feed, tmp_path: Path) -> None:
    save_figure(feed, "overlap", tmp_path / "slide.png", Look(width_in=10, dpi=100))
    assert png_size(tmp_path / "slide.png")[0] == 1000


@pytest.mark.parametrize("measure", ["peak", "credit", "contended", "queue"])
def test_every_measure_can_be_shown(measure: str, feed: Feed, tmp_path: Path) -> None:
    for what in ("heatmap", "topology"):
        save_figure(feed, what, tmp_path / f"{what}.png", Look(measure=measure, dpi=60))


def test_what_cannot_be_drawn_is_said(traffic: Path, feed: Feed, tmp_path: Path) -> None:
    without = Feed.open(traffic)
    with pytest.raises(InputError, match="timeline: no tasks of ranks"):
        save_figure(without, "timeline", tmp_path / "f.png")
    with pytest.raises(InputError, match="overlap: no tasks of ranks"):
        save_figure(without, "overlap", tmp_path / "f.png")
    with pytest.raises(InputError, match="flows: no flow with rate control"):
        save_figure(without, "flows", tmp_path / "f.png")
    with pytest.raises(InputError, match=r"f.gif: pictures are .png, .svg or .pdf"):
        save_figure(feed, "heatmap", tmp_path / "f.gif")
    with pytest.raises(InputError, match="measure 'heat': unknown"):
        save_figure(feed, "heatmap", tmp_path / "f.png", Look(measure="heat"))


def test_few_flows_have_a_line_each_and_many_a_row(controlled: Path) -> None:
    from matplotlib.figure import Figure

    from clusim.report.plots import SCREEN_IN, plot_result

    result = read_result(controlled)
    many: Figure = plot_result(result, "flows")
    assert many.axes[0].get_ylabel() == "16 flows"
    few = replace(result, bins=replace(result.bins, flows=result.bins.flows.spread_over(3)))
    lines = plot_result(few, "flows", width_in=SCREEN_IN).axes[0].get_lines()
    assert [line.get_label() for line in lines] == result.bins.flows.spread_over(3).names
