"""One figure of a preset is changed: what must change changes by the derived amount, what must not does not.

The amounts are derived by hand from what a collective does, not from an earlier run:

- **Steps.** A ring all-reduce over N ranks takes 2 (N - 1) steps, one after the other. A step in which the receiver
  pulls crosses the way between two GPUs three times (flag, request, data), one in which the sender pushes twice (data,
  flag). NVLS crosses a link ten times: flag up and down, request up, fetch down, data up, result down, store up and
  down, flag up and down.
- **Bytes.** A wire that is never idle moves its bytes in bytes over rate; what is on a wire does not depend on rates.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import clusim
from clusim.analysis.limits import class_traffic
from clusim.collectives import ScheduleBuilder
from clusim.results.result import Result
from clusim.topology import check
from support import variants
from support.variants import (
    busiest_ps,
    fabric_of,
    machines_of,
    reordered,
    run,
    with_chip,
    with_links,
)

SMALL, LARGE = 1 << 10, 256 << 20
BURST = 32 << 10
PULLED, PUSHED = 3, 2
RINGS = {
    # preset: ranks, hops between two GPUs, crossings of a step, latency [ns] and rate [GB/s] of its links
    "dgx-a100": (8, 2, PULLED, 150, 25),
    "dgx-h100": (8, 2, PUSHED, 150, 25),
    "hgx-b200": (8, 2, PUSHED, 150, 50),
    "a100x4-mesh": (4, 1, PULLED, 275, 25),
    "mi300x": (8, 1, PUSHED, 275, 64),
}
SWITCHED = ("dgx-a100", "dgx-h100")


def data_of(preset: str) -> dict[str, Any]:
    """Return a preset's file, of CTAs as fast together as alone: crowding has laws of its own (`test_crowd`)."""
    data = variants.data_of(preset)
    alone = {**data.get("protocols", {}), "simple": {"crowding": 0.0}}
    return {**data, "protocols": alone}


@pytest.fixture(scope="module")
def large() -> dict[str, Result]:
    """A large ring all-reduce on every machine of `RINGS`."""
    return {name: run(data_of(name), "ring", LARGE, granularity=BURST) for name in RINGS}


def _payload(result: Result) -> dict[str, int]:
    return {row.wire_class: row.payload_bytes for row in class_traffic(result)}


# ---- latency ---------------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("added_ns", [1, 100, 10_000])
@pytest.mark.parametrize("preset", RINGS)
def test_latency_is_paid_once_per_step_crossing_and_hop_of_a_ring(
    preset: str, added_ns: int
) -> None:
    ranks, hops, crossings, latency_ns, _ = RINGS[preset]
    data = data_of(preset)
    slower = with_links(data, latency=f"{latency_ns + added_ns}ns")
    added_ps = run(slower, "ring", SMALL).time_ps - run(data, "ring", SMALL).time_ps
    assert added_ps == 2 * (ranks - 1) * hops * crossings * added_ns * 1000


@pytest.mark.parametrize("preset", ["dgx-h100", "hgx-b200"])
def test_latency_is_paid_ten_times_by_reduction_in_the_switches(preset: str) -> None:
    data = data_of(preset)
    slower = with_links(data, latency="250ns")
    added_ps = run(slower, "nvls", SMALL).time_ps - run(data, "nvls", SMALL).time_ps
    assert added_ps == 10 * 100_000


@pytest.mark.parametrize("preset", SWITCHED)
def test_a_longer_cable_is_paid_once_for_every_time_a_ring_leaves_a_machine(
    preset: str, tmp_path: Path
) -> None:
    """A chunk goes 2 (16 - 1) = 30 hops round a ring of 16 that changes machine at two of them, so at most 4 times.

    Each time it crosses two cables, from a NIC to its leaf and from there to a NIC: 100 m more are 2 x 500 ns. Eight
    messages of LL128 are under way: with Simple there are two, and a ring waits for their slots.
    """
    data = data_of(preset)
    times = []
    for metres in (10, 110, 210):
        data["network"]["lengths"]["nic"] = f"{metres} m"
        fabric = machines_of(data, tmp_path)
        times.append(run(fabric, "ring", SMALL, channels=1, protocol="ll128").time_ps)
    assert np.diff(times).tolist() == [4 * 2 * 500_000] * 2


# ---- rates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", RINGS)
def test_halved_links_cost_a_large_ring_what_its_busiest_wire_carried(
    preset: str, large: dict[str, Result]
) -> None:
    """At half the rate a wire is busy twice as long; start and end of the pipe, 3% of the run, overlap with it."""
    whole = large[preset]
    data = with_links(data_of(preset), rate=f"{RINGS[preset][4] / 2} GB/s")
    half = run(data, "ring", LARGE, granularity=BURST)
    assert busiest_ps(half) == pytest.approx(2 * busiest_ps(whole), rel=0.01)
    assert half.time_ps - whole.time_ps == pytest.approx(busiest_ps(whole), rel=0.04)
    assert _payload(half) == _payload(whole)


@pytest.mark.parametrize("preset", RINGS)
def test_halved_links_add_to_a_small_ring_no_more_than_its_packets_take(preset: str) -> None:
    """128 bytes with a header occupy a wire of 25 GB/s for less than 7 ns; a step has three in a row at most."""
    ranks, hops, crossings, _, rate = RINGS[preset]
    data = data_of(preset)
    half = with_links(data, rate=f"{rate / 2} GB/s")
    added_ps = run(half, "ring", SMALL).time_ps - run(data, "ring", SMALL).time_ps
    assert 0 < added_ps <= 2 * (ranks - 1) * hops * crossings * 7_000


@pytest.mark.parametrize("preset", RINGS)
def test_twice_as_many_links_change_nothing_for_one_packet_per_step(preset: str) -> None:
    data = data_of(preset)
    doubled = with_links(data, count=lambda old: np.multiply(old, 2).tolist())
    assert run(doubled, "ring", SMALL).time_ps == run(data, "ring", SMALL).time_ps


@pytest.mark.parametrize("preset", RINGS)
def test_twice_as_many_links_halve_what_each_of_them_carries(preset: str) -> None:
    """And the run gets faster, but not by more than a half.

    Seven links to a GPU of the MI300X are three cycles, both ways six rings, on some of which there are 5 of the 28
    channels; 14 links are seven cycles with two channels each way: what the fullest link carries falls to 2/5.
    """
    data = data_of(preset)
    data.pop("rings", None)  # prescribed rings would go on using the links they name
    doubled = with_links(data, count=lambda old: np.multiply(old, 2).tolist())
    before, after = (run(each, "ring", LARGE, granularity=BURST) for each in (data, doubled))
    assert _payload(after) == _payload(before)
    most = [result.wires.counters["payload"].max() for result in (before, after)]
    part = 2 / 5 if preset == "mi300x" else 1 / 2
    assert most[1] == pytest.approx(most[0] * part, rel=0.03)
    assert before.time_ps * part <= after.time_ps < before.time_ps


@pytest.mark.parametrize("preset", ["a100x4-mesh", "mi300x"])
def test_links_that_prescribed_rings_leave_unused_are_told(preset: str) -> None:
    data = data_of(preset)
    doubled = with_links(data, count=lambda old: np.multiply(old, 2).tolist())
    assert run(doubled, "ring", 1 << 20).time_ps == run(data, "ring", 1 << 20).time_ps
    ends = sum(2 * link.count for link in fabric_of(data).links if link.cls in ("nvlink", "xgmi"))
    told = [each.what for each in check(fabric_of(doubled)) if each.what.startswith("rings:")]
    assert len(told) == 1
    assert f"leave {ends} of {2 * ends} directions of links between GPUs unused" in told[0]
    assert not [each for each in check(fabric_of(data)) if each.what.startswith("rings:")]


@pytest.mark.parametrize("preset", SWITCHED)
def test_without_a_switch_the_others_carry_its_share(preset: str, large: dict[str, Result]) -> None:
    """A DGX A100 keeps 10 of 12 links a GPU, a DGX H100 without the fourth switch 13 of 18."""
    data = data_of(preset)
    last = max(int(re.findall(r"\d+", key)[-1]) for key in data["nodes"] if "nvswitch" in key)
    kind = data["nodes"].pop(f"nvswitch0..{last}")
    data["nodes"][f"nvswitch0..{last - 1}"] = kind
    links = data["links"][0]
    counts = links["count"] if isinstance(links["count"], list) else [links["count"]] * (last + 1)
    links |= {"to": f"nvswitch0..{last - 1}", "count": counts[:-1]}
    left = sum(counts[:-1]) / sum(counts)
    reduced, whole = run(data, "ring", LARGE, granularity=BURST), large[preset]
    assert _payload(reduced) == _payload(whole)
    assert busiest_ps(reduced) == pytest.approx(busiest_ps(whole) / left, rel=0.02)
    added_ps = busiest_ps(reduced) - busiest_ps(whole)
    assert reduced.time_ps - whole.time_ps == pytest.approx(added_ps, rel=0.1)
    assert run(data, "ring", SMALL).time_ps == run(data_of(preset), "ring", SMALL).time_ps


@pytest.mark.parametrize("preset", SWITCHED)
def test_a_network_at_a_quarter_of_its_rate_is_busy_four_times_as_long(
    preset: str, tmp_path: Path
) -> None:
    """Then the cables are the limit, busy 90% of the run; inside the machines nothing else is moved."""
    data = data_of(preset)
    link = data["network"]["link"]
    whole = run(machines_of(data, tmp_path), "ring", LARGE, granularity=BURST)
    rate = "12.5 GB/s" if preset == "dgx-h100" else "6.25 GB/s"
    data["link_types"] = {"slow": {"base": link, "rate": rate}}
    data["network"]["link"] = "slow"
    slow = run(machines_of(data, tmp_path), "ring", LARGE, granularity=BURST)
    assert _payload(slow) == _payload(whole)
    cables = [i for i, name in enumerate(slow.wires.classes) if "->leaf" in name]
    busy = slow.wires.counters["busy_ps"][cables]
    assert busy == pytest.approx(4 * whole.wires.counters["busy_ps"][cables], rel=0.02)
    assert busy.max() > 0.9 * slow.time_ps


# ---- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "efficiency"), [("dgx-a100", 0.85), ("dgx-h100", 0.87)])
def test_memory_is_the_limit_once_its_bytes_take_longer_than_the_wires(
    preset: str, efficiency: float, large: dict[str, Result]
) -> None:
    """A run takes at least the bytes of one GPU over the rate of its memory, and within 3% no longer if that limits it.

    With 1 TB/s or more it does not, and the time stays within the 1.5% by which a phase of bursts moves it.
    """
    whole = large[preset]
    for rate_GBps in (100, 200, 1000, 4000):
        data = with_chip(data_of(preset), memory_rate=f"{rate_GBps} GB/s")
        result = run(data, "ring", LARGE, granularity=BURST)
        memory_ps = result.bins.hbm_bytes.sum(axis=1).max() / (rate_GBps * efficiency) * 1000
        assert result.time_ps >= memory_ps
        if rate_GBps <= 200:
            assert result.time_ps == pytest.approx(memory_ps, rel=0.03)
        else:
            assert result.time_ps == pytest.approx(whole.time_ps, rel=0.015)


# ---- what is only another way to say the same --------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("delay_ps", [1, 999_999_999_999, 1 << 46, (1 << 47) + 1, 1 << 60])
@pytest.mark.parametrize("preset", ["dgx-a100", "dgx-h100", "a100-pcie-x8", "mi300x"])
def test_a_collective_that_starts_late_takes_as_long(preset: str, delay_ps: int) -> None:
    times = []
    for wait_ps in (0, delay_ps):
        fabric = clusim.load(preset)
        step = ScheduleBuilder(fabric, "late")
        waits = {rank: [step.delay(rank, wait_ps)] for rank in range(fabric.num_ranks)}
        step.collective("allreduce", 256 << 10, algorithm="ring", after=waits)
        times.append(clusim.simulate(fabric, step.build(), granularity="packet").time_ps)
    assert times[1] - times[0] == delay_ps


@pytest.mark.covering
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("preset", ["dgx-a100", "dgx-h100", "a100-pcie-x8", "mi300x", "dgx-1v"])
def test_the_order_of_a_file_does_not_matter(preset: str, seed: int) -> None:
    """Keys of mappings may come in any order, and links of different ends, too."""
    data = data_of(preset)
    assert list(reordered(data, seed)) != list(data)
    before, after = (run(each, "ring", 1 << 20) for each in (data, reordered(data, seed)))
    assert after.time_ps == before.time_ps
    assert _payload(after) == _payload(before)


@pytest.mark.parametrize("first", ["nvswitch", "nic", "pcie", "cpu", "mem"])
def test_any_kind_of_node_may_come_first_in_a_file(first: str) -> None:
    data = data_of("dgx-a100")
    nodes = sorted(data["nodes"], key=lambda key: not key.startswith(first))
    assert nodes[0].startswith(first)
    moved = {**data, "nodes": {key: data["nodes"][key] for key in nodes}}
    for algorithm in ("ring", "tree"):
        before, after = (run(each, algorithm, 256 << 10) for each in (data, moved))
        assert after.time_ps == before.time_ps


@pytest.mark.parametrize("preset", ["dgx-a100", "dgx-h100", "a100-pcie-x8", "mi300x"])
def test_names_mean_nothing(preset: str) -> None:
    data = data_of(preset)
    renamed = yaml.safe_load(re.sub(r"\bgpu(?=\d)", "accelerator", yaml.safe_dump(data)))
    assert "accelerator0..7" in renamed["nodes"]
    before, after = (run(each, "ring", 1 << 20) for each in (data, renamed))
    assert after.fingerprint == before.fingerprint


@pytest.mark.parametrize("algorithm", ["ring", "tree", "oneshot", "butterfly"])
@pytest.mark.parametrize("preset", SWITCHED)
def test_gpus_behind_equal_switches_can_change_places(preset: str, algorithm: str) -> None:
    data = data_of(preset)
    straight = run(data, algorithm, SMALL)
    for order in ([5, 2, 7, 0, 3, 6, 1, 4], [7, 6, 5, 4, 3, 2, 1, 0]):
        mixed = run(data, algorithm, SMALL, ranks=order)
        assert mixed.time_ps == pytest.approx(straight.time_ps, rel=1e-3)
        assert _payload(mixed) == _payload(straight)


def test_the_fabric_of_data_is_that_of_the_file() -> None:
    """So that every other test here speaks of the shipped presets."""
    for preset in RINGS:
        shipped = run(clusim.load(preset), "ring", SMALL)
        assert run(fabric_of(copy.deepcopy(data_of(preset))), "ring", SMALL).fingerprint == (
            shipped.fingerprint
        )
