"""Faults in words, what planning makes of them, and what a run says that cannot go on."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

import clusim
from clusim.base.errors import DeadlockError, InputError
from clusim.collectives import build
from clusim.lowering import Fault, known_at_start, lower, parse_faults
from clusim.results.result import Result
from clusim.topology import Fabric, load, loads
from clusim.topology.arrays import arrays_of
from support.machines import pcie_machine

MIB = 1 << 20
US = 1_000_000


@cache
def a100() -> Fabric:
    """Return a machine of eight GPUs, six switches and eight NICs."""
    return load("dgx-a100")


@cache
def two() -> Fabric:
    """Return two machines with eight rails."""
    return load("dgx-h100", nodes=2)


def wires(text: str, fabric: Fabric | None = None) -> list[str]:
    """Return the names of the wires a text stops or slows."""
    fabric = fabric or a100()
    names = arrays_of(fabric).wire_names
    return [
        names[int(fault.wire)] for fault in parse_faults(fabric, [text]) if fault.wire is not None
    ]


def ring(fabric: Fabric, *faults: str, size: int = 4 * MIB, **options: Any) -> Result:
    """Plan a ring around what is known and run it."""
    known = known_at_start(arrays_of(fabric), parse_faults(fabric, faults))
    schedule = build(known, "allreduce", "ring", size, **options)
    return clusim.simulate(fabric, schedule, faults=faults, granularity=4096, verify=True)


def test_links_are_named_by_ends_or_by_port() -> None:
    one = ["gpu3->nvswitch2.0", "nvswitch2->gpu3.0"]
    assert wires("link gpu3:nvl5 down at 2ms") == one
    assert wires("link gpu3-nvswitch2.0 down") == one
    assert wires("link nvswitch2-gpu3.0 down") == one
    assert wires("link gpu3->nvswitch2.0 down") == one[:1]
    assert len(wires("link gpu3-nvswitch2 down")) == 4
    assert wires("lanes gpu0:pcie1 1/2") == ["gpu0->pcie0.0", "pcie0->gpu0.0"]
    assert wires("link n1/nic3:net1 down", two()) == ["n1/nic3->leaf0.3.0", "leaf0.3->n1/nic3.0"]
    assert wires("link n1/nic3-leaf0.3 down", two()) == ["n1/nic3->leaf0.3.0", "leaf0.3->n1/nic3.0"]


def test_nodes_planes_and_nics_lose_all_their_links() -> None:
    assert len(wires("plane nvswitch2 down at 1ms")) == 32
    assert wires("node nvswitch2 down") == wires("plane nvswitch2 down")
    assert len(wires("node gpu0 down")) == 2 * 13
    faults = parse_faults(two(), ["nic n0/nic2 flap at 1ms for 500us"])
    assert [(f.time_ps, f.factor) for f in faults[:2]] == [(1000 * US, 0), (1500 * US, 1)]
    assert len(faults) == 2 * 4


def test_times_factors_and_durations() -> None:
    (slow, fine) = parse_faults(a100(), ["rank 3 slow x1.3 at 0 for 10ms"])
    assert (slow.rank, slow.factor, slow.time_ps) == (3, Fraction(13, 10), 0)
    assert (fine.rank, fine.factor, fine.time_ps) == (3, 1, 10_000 * US)
    assert parse_faults(a100(), ["rank gpu5 slow x2"])[0].rank == 5
    (half, _) = parse_faults(a100(), ["lanes gpu3-nvswitch0.1 1/4 at 3 us"])
    assert (half.factor, half.time_ps) == (Fraction(1, 4), 3 * US)
    assert parse_faults(a100(), ["link gpu0-nvswitch1.1 down at 0"])[0].time_ps == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lnk gpu0-nvswitch0 down", "unknown kind 'lnk'; did you mean 'link'?"),
        ("link gpu0-nvswtch1 down", "no node 'nvswtch1'; did you mean 'nvswitch1'?"),
        ("link gpu9:nvl5 down", "no node 'gpu9'; did you mean"),
        ("link gpu0:nvl13 down", "gpu0 has 12 nvl links, nvl1 to nvl12"),
        ("link gpu0:nvl0 down", "gpu0 has 12 nvl links, nvl1 to nvl12"),
        ("link gpu0:ib1 down", "gpu0 has no ib links; it has nvlink, pcie"),
        ("link gpu0-gpu1 down", "no link from gpu0 to gpu1; gpu0 is linked to nvswitch0"),
        ("link gpu0-nvswitch1.2 down", "gpu0 and nvswitch1 have 2 links, numbers 0..1"),
        ("link gpu0 down", "is not a link; write A-B, A-B.0, A->B.0 or NODE:nvl1"),
        ("link gpu0-nvswitch1 up", "write 'link LINK down [at TIME] [for TIME]'"),
        ("link", "write 'link LINK down"),
        ("", "unknown kind ''"),
        ("link gpu0-nvswitch0 down at 5", "a time needs a unit"),
        ("link gpu0-nvswitch0 down at soon", "soon"),
        ("link gpu0-nvswitch0 down for 0", "a duration must be longer than 0"),
        ("lanes gpu0-nvswitch0 3/0", "'3/0' is not a part such as 1/2"),
        ("lanes gpu0-nvswitch0 2", "must be from 0 to 1"),
        ("plane gpu0 down", "gpu0 is a gpu, a plane is a switch; write 'node gpu0 down'"),
        ("node gpu77 down", "no node 'gpu77'; did you mean 'gpu7'?"),
        ("errors gpu0-nvswitch0 2", "must be from 1e-18 to 0.01"),
        ("errors gpu0-nvswitch0 nan", "is not a bit error rate"),
        ("errors gpu0-nvswitch0 1e-7 at 5ms", "errors last for the complete run"),
        ("rank 8 slow x2", "no rank 8; dgx-a100 has 0..7"),
        ("rank gpu1x slow x2", "no rank 'gpu1x'; did you mean 'gpu1'?"),
        ("rank 0 slow x0", "must be from x0.001"),
        ("rank 0 slow x1e999", "is not a factor such as x1.3"),
        ("rank 0 fast x2", "write 'rank RANK slow x1.3"),
        ("nic nic0 flap at 1ms", "for how long? write 'nic nic0 flap at 1ms for 500us'"),
        ("nic gpu0 flap for 1us", "gpu0 is a gpu and no NIC"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_that_says_what_is_right(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        parse_faults(a100(), [text])
    assert "\n" not in str(caught.value)


def test_names_with_dashes_and_dots_are_found() -> None:
    text = pcie_machine().replace("gpu0..1", "gpu-a.1..2")
    fabric = loads(text, "m")
    names = wires("link gpu-a.1-pcie0.0 down", fabric)
    assert names == ["gpu-a.1->pcie0.0", "pcie0->gpu-a.1.0"]
    assert wires("link gpu-a.2->pcie0 down", fabric) == ["gpu-a.2->pcie0.0"]


def test_what_is_down_from_the_start_is_planned_around() -> None:
    fabric = load("dgx-1v")
    base = ring(fabric)
    hurt = ring(fabric, "link gpu0-gpu3.1 down")
    assert hurt.verified
    names = {name: i for i, name in enumerate(hurt.wires.names)}
    dead = [names["gpu0->gpu3.1"], names["gpu3->gpu0.1"]]
    assert not hurt.wires.counters["packets"][dead].any()
    assert base.time_ps < hurt.time_ps < 3 * base.time_ps
    known = known_at_start(arrays_of(fabric), parse_faults(fabric, ["link gpu0-gpu3 down"]))
    schedule = build(known, "allreduce", "ring", MIB)
    assert not any({c.src, c.dst} == {0, 3} for c in schedule.connections)


def test_routes_avoid_a_dead_plane() -> None:
    hurt = ring(a100(), "plane nvswitch2 down")
    on = [i for i, name in enumerate(hurt.wires.names) if "nvswitch2" in name]
    assert hurt.verified
    assert not hurt.wires.counters["packets"][on].any()
    image = lower(
        a100(),
        build(a100(), "allreduce", "ring", MIB),
        faults=parse_faults(a100(), ["plane nvswitch2 down"]),
    ).image
    assert not set(image.group_wires.tolist()) & set(on)


def test_a_dead_nic_is_left_out_by_all_machines() -> None:
    hurt = ring(two(), "nic n0/nic2 down", channels=7)
    carried = hurt.wires.counters["packets"]
    by_nic = {
        rail: sum(
            int(carried[i]) for i, name in enumerate(hurt.wires.names) if f"/nic{rail}" in name
        )
        for rail in range(8)
    }
    assert hurt.verified
    assert by_nic.pop(2) == 0
    assert min(by_nic.values()) > 0


def test_a_gpu_without_nvlink_goes_over_pcie() -> None:
    texts = [f"link gpu2-nvswitch{switch} down" for switch in range(6)]
    hurt = ring(a100(), *texts, size=MIB)
    pcie = [i for i, name in enumerate(hurt.wires.names) if name.startswith("gpu2->pcie")]
    assert hurt.verified
    assert hurt.wires.counters["packets"][pcie].all()


def test_a_rank_that_is_down_is_named() -> None:
    with pytest.raises(InputError, match=r"rank 3 \(gpu3\) is down from the start; leave it out"):
        ring(a100(), "node gpu3 down")
    assert ring(a100(), "node gpu3 down", ranks=(0, 1, 2, 4, 5)).verified


def test_a_flap_is_survived() -> None:
    base = ring(two(), channels=8)
    hurt = ring(two(), "nic n0/nic2 flap at 40us for 300us", channels=8)
    assert hurt.verified
    assert hurt.time_ps > base.time_ps + 150 * US


def test_a_late_fault_stalls_with_an_explanation() -> None:
    with pytest.raises(DeadlockError) as caught:
        ring(a100(), "link gpu3:nvl5 down at 20us")
    text = str(caught.value)
    assert re.match(r"stalled at \S+ us: \S+ is down since 20 us with \d+ B waiting for it", text)
    assert "gpu3" in text.split(";")[0]
    assert re.search(r"data of .* cannot move; \d+ of \d+ programs are stuck", text)
    assert "needs slot" in text


def test_a_stall_between_machines_names_the_proxy() -> None:
    with pytest.raises(DeadlockError) as caught:
        ring(two(), "link n0/nic3-leaf0.3 down at 40us", channels=8, size=16 * MIB)
    assert "is down since 40 us" in str(caught.value)
    assert re.search(r"data of rank \d+ channel 3 \(at its NIC\).* cannot move", str(caught.value))
    assert len(str(caught.value).splitlines()) == 1


def test_slow_ranks_and_lost_lanes_cost_time() -> None:
    base = ring(a100()).time_ps
    assert ring(a100(), "rank 3 slow x1.5").time_ps > 1.05 * base
    assert ring(a100(), "lanes gpu3-nvswitch0 1/16").time_ps > 1.2 * base


def test_bit_errors_are_replayed() -> None:
    result = ring(a100(), "errors gpu0->nvswitch1.0 1e-5")
    wire = result.wires.names.index("gpu0->nvswitch1.0")
    replays = result.wires.counters["replays"]
    assert replays[wire] > 0
    assert replays.sum() == replays[wire]
    image = lower(
        a100(),
        build(a100(), "allreduce", "ring", MIB),
        faults=parse_faults(a100(), ["errors gpu0->nvswitch1.0 1e-6"]),
    ).image
    bits = 8 * (16 + 256)
    assert image.wires["error_threshold"][wire] == pytest.approx(2**32 * bits * 1e-6, rel=0.01)
    assert image.wires["replay_ps"][wire] > 0
    assert not len(image.faults)


def test_faults_of_a_file_and_of_the_caller_are_added() -> None:
    text = pcie_machine(extra='faults: ["rank 1 slow x2"]')
    fabric = loads(text, "m")
    schedule = build(fabric, "send", None, MIB, ranks=(0, 1))
    plain = clusim.simulate(loads(pcie_machine(), "m"), schedule)
    own = clusim.simulate(fabric, schedule)
    both = clusim.simulate(fabric, schedule, faults=["lanes gpu0-pcie0 1/4"])
    assert plain.time_ps < own.time_ps < both.time_ps
    direct = clusim.simulate(
        fabric, schedule, faults=[Fault(0, Fraction(1, 4), wire="gpu0->pcie0.0")]
    )
    assert direct.time_ps > own.time_ps


def test_where_faults_overlap_the_worst_counts_until_it_ends() -> None:
    fabric = clusim.load("dgx-a100")
    texts = [
        "lanes gpu0:nvl1 1/2 at 10us for 100us",
        "link gpu0:nvl1 down at 20us for 20us",
        "lanes gpu0:nvl1 1/2 at 30us for 20us",
        "rank 3 slow x1.5 at 0 for 1ms",
        "rank 3 slow x2 at 100us for 100us",
    ]
    found = parse_faults(fabric, texts)
    wires = {fault.wire for fault in found if fault.wire is not None}
    assert len(wires) == 2
    for wire in wires:
        own = [(fault.time_ps // 10**6, fault.factor) for fault in found if fault.wire == wire]
        assert own == [(10, Fraction(1, 2)), (20, 0), (40, Fraction(1, 2)), (110, 1)]
    slow = [(fault.time_ps // 10**6, fault.factor) for fault in found if fault.rank == 3]
    assert slow == [(0, Fraction(3, 2)), (100, 2), (200, Fraction(3, 2)), (1000, 1)]


def test_a_class_without_number_names_all_links_of_a_node() -> None:
    fabric = clusim.load("dgx-a100")
    assert len(parse_faults(fabric, ["link gpu0:nvl down at 0"])) == 2 * 12
