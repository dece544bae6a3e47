"""The tuner's constants against those of NCCL's source, release by release.

``tuning.json`` has the numbers of src/graph/tuning.cc of github.com/NVIDIA/nccl at the tags ``v2.7.8-1`` to
``v2.30.4-1``, extracted by a pattern: rows by algorithm (base and hardware latencies, of NVLink, PCIe and network), by
architecture (ceilings of bandwidth) and by protocol (corrections of trees).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusim.base.terms.operations import ALGORITHMS, PROTOCOLS
from clusim.nccl import parse_version
from clusim.nccl.tables import tables_for

SOURCE = json.loads(Path(__file__).with_name("tuning.json").read_text(encoding="utf-8"))
HARDWARE = ("nvlink_us", "pcie_us", "network_us")
CEILINGS = ("ll_GBps", "ring_ll128_GBps", "tree_ll128_GBps", "tree_GBps", "nvls_tree_GBps")
CORRECTED = 23
"""Sizes with a correction; longer tables are of other algorithms."""

COLLNET = ("CollNetDirect", "CollNetChain")
NO_NVLS = {("nvls_tree_GBps", "0"): "", ("nvls_tree_GBps", "1"): ""}

# Known differences: the release whose numbers stand there; none where GPUs have no NVLS and the number is 0.
KNOWN: dict[str, dict[tuple[str, str], str]] = {
    "2.8.4": {
        ("nvlink_us", "Tree"): "2.7.8",
        ("network_us", "Tree"): "2.7.8",
        **{("tree_correction", protocol.value): "2.7.8" for protocol in PROTOCOLS},
        ("tree_GBps", "1"): "2.18.5",
        # 2.7 had no ceiling.
        ("ll_GBps", "0"): "none",
        ("ll_GBps", "1"): "none",
    },
    "2.12.12": {(name, "CollNetDirect"): "2.8.4" for name in HARDWARE[:2]},
    "2.14.3": {
        **{(name, "Tree"): "2.18.5" for name in ("base_us", *HARDWARE)},
        **{(name, "Ring"): "2.18.5" for name in ("base_us", "nvlink_us", "network_us")},
        **{(name, each): "2.20.5" for name in ("base_us", *HARDWARE) for each in COLLNET},
    },
    "2.18.5": {(name, each): "2.20.5" for name in ("base_us", *HARDWARE) for each in COLLNET},
    "2.20.5": {("nvlink_us", "NVLS"): "2.21.5", ("nvlink_us", "NVLSTree"): "2.21.5"},
    "2.27.7": {("tree_ll128_GBps", "3"): "2.28.9", ("tree_GBps", "3"): "2.28.9"},
    "2.28.9": {**NO_NVLS, ("ring_ll128_GBps", "3"): "2.30.4", ("nvls_tree_GBps", "3"): "2.30.4"},
    "2.30.4": NO_NVLS,
}


def rows(release: str) -> Iterator[tuple[tuple[str, str], list[float], list[float]]]:
    """Yield table and row, NCCL's numbers and clusim's."""
    source: dict[str, Any] = SOURCE[release]
    tables = tables_for(parse_version(release))
    latencies = {"base_us": source["base_us"], **dict(zip(HARDWARE, source["hw_us"], strict=True))}
    for name, values in latencies.items():
        # Up to 2.12 there is one CollNet, the third.
        for algorithm, right in zip(ALGORITHMS, values, strict=False):
            yield (name, algorithm.value), right, list(getattr(tables, name)[algorithm])
    for name in CEILINGS:
        for row, right in enumerate(source.get(name, [])):
            yield (name, str(row)), right, list(getattr(tables, name)[row])
    for protocol, right in zip(PROTOCOLS, source["tree_correction"], strict=True):
        found = list(tables.tree_correction[protocol][:CORRECTED])
        yield ("tree_correction", protocol.value), right[:CORRECTED], found
    if "nvls_efficiency" in source:
        yield ("nvls_efficiency", ""), source["nvls_efficiency"], list(tables.nvls_efficiency)
    if "ll128_GBps" in source:
        flat = [source["ll128_GBps"]] * 3
        for name in ("ring_ll128_GBps", "tree_ll128_GBps"):
            for row in (0, 1):
                yield (name, str(row)), flat, list(getattr(tables, name)[row])


def read_as(release: str, key: tuple[str, str]) -> list[float]:
    """Return the numbers that a known difference has instead."""
    if release in ("", "none"):
        return [1e9 if release else 0.0] * 3
    return next(right for each, right, _ in rows(release) if each == key)


@pytest.mark.parametrize("release", [each for each in SOURCE if each != "2.7.8"])
def test_constants_are_those_of_the_release(release: str) -> None:
    known = KNOWN.get(release, {})
    different = {key: found for key, right, found in rows(release) if right != found}
    assert different == {key: read_as(other, key) for key, other in known.items()}
