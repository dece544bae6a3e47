"""Colours that stand beside each other on pages are told apart by people who see few of them."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from clusim.report.markup import read_page_file

SEEN = {
    "all": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
"""Linear RGB as people without a kind of cone see it: Machado, Oliveira and Fernandes (2009), severity 1."""

TOGETHER = [
    ("compute", "communication", "pause"),
    ("compute", "pause", "exposed", "step"),
    ("compute", "both", "exposed", "idle"),
]
"""What pages show side by side: lanes of ranks, the critical path over its channels, computation and communication."""

LEAST = 20.0
"""Least difference in CIELAB; 2.3 is just noticeable."""

XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.95047, 1.0, 1.08883])


def themes() -> list[dict[str, str]]:
    blocks = re.findall(r":root[^{]*\{(.*?)\}", read_page_file("style.css"), re.DOTALL)
    return [dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block)) for block in blocks[:2]]


def lab(colour: str, seen: object) -> np.ndarray:
    """Return a colour in CIELAB as it is seen."""
    part = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    own = XYZ @ np.clip(np.asarray(seen) @ linear, 0, 1) / WHITE
    x, y, z = np.where(own > 0.008856, np.cbrt(own), 7.787 * own + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("group", TOGETHER, ids=lambda group: group[-1])
def test_colours_side_by_side_are_told_apart(theme: int, seen: str, group: tuple[str, ...]) -> None:
    colours = themes()[theme]
    for one, two in combinations(group, 2):
        apart = np.linalg.norm(lab(colours[one], SEEN[seen]) - lab(colours[two], SEEN[seen]))
        assert apart >= LEAST, (one, two)
