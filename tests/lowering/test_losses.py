"""Links that drop, from a topology file to the counters of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import TopologyError

FILE = """
name: lossy
link_types: {lossy: {base: roce-400, LOSS}}
cluster: {node: hgx-h20, nodes: 3, network: {kind: rail, link: lossy, switch: spectrum4}}
"""
DROP = "pfc: none, drop: {queue: 64KiB, alpha: 1}"
MESSAGES = 23


def incast(folder: Path, loss: str, **options: Any) -> Any:
    """Return 64 KiB of each of 23 GPUs to the first."""
    path = folder / "lossy.yaml"
    path.write_text(FILE.replace("LOSS", loss))
    return clusim.traffic(path, "incast", message="64KiB", **options)


def counters(result: Any) -> tuple[int, int, int]:
    """Return packets dropped, packets repeated, and timeouts."""
    nics = result.in_order
    drops = int(result.wires.counters["drops"].sum())
    return drops, sum(nic.repeats for nic in nics), sum(nic.timeouts for nic in nics)


def test_pauses_lose_nothing(tmp_path: Path) -> None:
    assert counters(incast(tmp_path, "ecn: none")) == (0, 0, 0)


def test_go_back_n_repeats_at_least_what_was_dropped_and_all_messages_arrive(
    tmp_path: Path,
) -> None:
    result = incast(tmp_path, DROP)
    drops, repeats, timeouts = counters(result)
    assert 0 < drops < repeats
    assert timeouts > 0
    assert (result.messages.end_ps > 0).sum() == MESSAGES


def test_a_larger_queue_drops_less_and_one_for_all_messages_nothing(tmp_path: Path) -> None:
    drops = [
        counters(incast(tmp_path, f"pfc: none, drop: {{queue: {queue}}}"))[0]
        for queue in ("64KiB", "256KiB", "2MiB")
    ]
    assert drops[0] > drops[1] > drops[2] == 0


def test_a_dynamic_threshold_drops_what_the_queue_would_hold(tmp_path: Path) -> None:
    """Of the 64 MiB of a switch, a thousandth's share is 64 KiB: as a queue of so many bytes."""
    bound = counters(incast(tmp_path, "pfc: none, drop: {queue: 16MiB, alpha: 0.001}"))[0]
    assert bound > 0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("drop: {queue: 1MiB}", "drops packets and pauses; remove one of drop and pfc"),
        ("pfc: none, drop: {queue: 1MiB, alpha: -1}", "must be greater than or equal to 0"),
        ("pfc: none, drop: {queue: 1MiB, beta: 1}", "drop.beta"),
    ],
)  # fmt: skip
def test_mistakes_of_drops_are_named(tmp_path: Path, loss: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        incast(tmp_path, loss)
