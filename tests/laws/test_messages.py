"""Laws of messages between machines: NCCL's eight steps, whose word frees a slot, the thread that serves a rank.

One GPU of each of two machines; a message is a step of LL or LL128 or a slice of Simple. The times follow from
the number of messages by hand: what changes when one figure changes is counted, not measured.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import clusim
from clusim.collectives import build
from clusim.engine.abi import ConnKind
from clusim.hardware.nic import plugin_release
from clusim.lowering import Lowered, lower
from clusim.lowering.rank_paths import Places
from clusim.nccl import programs
from clusim.nccl.env import Settings
from clusim.nccl.transports import restrict_transports
from clusim.schedule.ir import Schedule
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of
from clusim.topology.rails import Rails
from support.machines import cluster_of, pcie_machine

US = 1_000_000
STEP = {"simple": 512 << 10, "ll": 32 << 10, "ll128": 576_000 // 16 * 15 // 16 * 16}


def pair(folder: Path, *, nic: str = "", host: str = "", network: str = "") -> Fabric:
    """Return two machines with a GPU each, whose NIC, processor and network switch differ from the presets in this."""
    extra = f"nics: {{cx6-hdr: {{base: cx6-hdr, {nic}}}}}" if nic else ""
    for switch, figures in (("xeon-icx", host), ("quantum", network)):
        if figures:
            extra += f"\nswitches: {{{switch}: {{base: {switch}, {figures}}}}}"
    return cluster_of(pcie_machine(gpus=1, extra=extra), folder)


def stream(fabric: Fabric, messages: int, protocol: str = "ll") -> Schedule:
    """Return a send of so many steps on one channel."""
    size = messages * STEP[protocol]
    return build(fabric, "send", None, size, ranks=(0, 1), channels=1, protocol=protocol)


def time_ps(fabric: Fabric, schedule: Schedule) -> int:
    return clusim.simulate(fabric, schedule, granularity="packet").time_ps


def image_of(fabric: Fabric, protocol: str, size: int = 1 << 20) -> Lowered:
    schedule = build(fabric, "send", None, size, ranks=(0, 1), channels=1, protocol=protocol)
    return lower(fabric, schedule)


@pytest.mark.parametrize("protocol", ["simple", "ll", "ll128"])
def test_eight_steps_are_under_way_whatever_they_are_cut_into(tmp_path, protocol):
    image = image_of(pair(tmp_path), protocol).image
    sender, _, proxy = image.instances
    for conn in image.conns:
        assert conn["slots"] == 8 * sender["slices"] * sender["slots_per_slice"]
        assert conn["slots"] == 8 * proxy["slices"] * proxy["slots_per_slice"]
    if protocol != "simple":
        assert (sender["slices"], proxy["slices"]) == (8, 1)


@pytest.mark.parametrize(("messages", "loops"), [(8, 0), (9, 1), (24, 2), (25, 3)])
def test_a_slot_is_free_when_its_message_was_acknowledged(tmp_path, messages, loops):
    """Message k + 8 waits for message k: a later word costs its delay once per eight messages."""
    near, far = (pair(tmp_path, nic=f"ack: {ack}us") for ack in (3000, 5000))
    schedule = stream(near, messages)
    assert time_ps(far, schedule) - time_ps(near, schedule) == loops * 2000 * US


def test_longer_ways_hide_in_the_least_time_to_an_acknowledgement(tmp_path):
    """The sender has its completion when it would have it without the longer way, which the answer takes less."""
    near, far = (
        image_of(pair(tmp_path, nic="ack: 3000us", network=f"latency: {latency}us"), "ll").image
        for latency in (1, 11)
    )
    (answer, sent), (later, same) = near.conns, far.conns
    assert answer["head_ps"] - later["head_ps"] == 10 * US
    assert sent["head_ps"] == same["head_ps"]


@pytest.mark.parametrize(("release", "added"), [("1.16.2", 200), ("1.17", 0), ("", 0)])
def test_releases_that_send_control_messages_cost_the_thread_more(tmp_path, release, added):
    """The thread serves one message after the other; its work after the last one delays none."""
    settings = Settings(plugin=plugin_release(release) if release else ())
    quick, slow = (
        restrict_transports(pair(tmp_path, nic=f"plugin: efa, control: {control}us"), settings)
        for control in (300, 500)
    )
    schedule = stream(quick, 5)
    assert time_ps(slow, schedule) - time_ps(quick, schedule) == 4 * added * US
    assert restrict_transports(slow, settings) is slow


@pytest.mark.parametrize(
    ("protocol", "release", "added"),
    [("simple", "1.16", 200), ("ll", "1.16", 0), ("simple", "", 0)],
)
def test_a_flush_by_completions_costs_the_thread_per_message_of_simple(
    tmp_path, protocol, release, added
):
    settings = Settings(plugin=plugin_release(release) if release else ())
    figures = "plugin: efa, control: 300us, control_flush: {}us"
    quick, slow = (
        restrict_transports(pair(tmp_path, nic=figures.format(us)), settings) for us in (300, 500)
    )
    schedule = stream(quick, 5, protocol)
    assert time_ps(slow, schedule) - time_ps(quick, schedule) == 4 * added * US


@pytest.mark.parametrize("messages", [1, 2, 7])
def test_a_thread_serves_one_message_after_the_other(tmp_path, messages):
    quick, slow = (pair(tmp_path, host=f"thread_after: {after}us") for after in (300, 500))
    schedule = stream(quick, messages)
    assert time_ps(slow, schedule) - time_ps(quick, schedule) == (messages - 1) * 200 * US


def test_channels_of_a_rank_share_its_thread(tmp_path):
    quick, slow = (pair(tmp_path, host=f"thread_after: {after}us") for after in (300, 500))
    schedule = build(quick, "send", None, 4 * STEP["ll"], ranks=(0, 1), channels=2, protocol="ll")
    assert time_ps(slow, schedule) - time_ps(quick, schedule) == (4 - 1) * 200 * US


@pytest.mark.parametrize(("protocol", "lines"), [("ll", 2 * (32 << 10) // 8), ("ll128", 0)])
def test_the_thread_looks_at_every_line_of_ll(tmp_path, protocol, lines):
    """Both messages are looked at before the second goes; flags of LL128 are not looked at."""
    quick, slow = (pair(tmp_path, host=f"look: {look}ns") for look in (100, 150))
    schedule = stream(quick, 2, protocol)
    assert time_ps(slow, schedule) - time_ps(quick, schedule) == lines * 50_000


def test_ll_is_sent_from_host_memory_and_ll128_from_the_gpu(tmp_path):
    fabric = pair(tmp_path)
    arrays = arrays_of(fabric)
    for protocol, kind, node in (
        ("ll", ConnKind.WRITE, "n0/mem0"),
        ("ll128", ConnKind.FLAG, "n0/gpu0"),
    ):
        data, first = image_of(fabric, protocol).image.conns
        assert first["kind"] == kind
        assert fabric.nodes[int(arrays.endpoints["node"][int(first["dst"])])].name == node
        assert data["src"] == first["dst"]


def test_short_messages_wait_for_no_word_and_no_rendezvous(tmp_path):
    """The largest slice of a send of 8 KiB is 8 KiB with Simple, and twice that on the wire with LL."""
    fabric = pair(tmp_path, nic="eager: 8KiB, rendezvous: 7us, ack: 5us")
    held = pair(tmp_path, nic="rendezvous: 7us, ack: 5us")
    short, long = (image_of(f, "simple", 8 << 10).image.conns[0] for f in (fabric, held))
    assert long["tail_ps"] - short["tail_ps"] == 7 * US
    arrays = arrays_of(fabric)
    nics = [Rails(arrays).nics(zone)[0] for zone in (0, 1)]
    way_ps = arrays.latency_ps(arrays.steps(int(arrays.targets["node"][nics[0]]), nics[1:]))
    assert long["head_ps"] - short["head_ps"] == 5 * US - way_ps  # acknowledged 5 us after sending
    assert (
        image_of(fabric, "ll", 8 << 10).image.conns[0]
        == image_of(held, "ll", 8 << 10).image.conns[0]
    )


def waits_of(fabric: Fabric, schedule: Schedule) -> dict[tuple[int, str], int]:
    """Return, per rank and kind of its first primitive, what a slice waits for the host's memory [ps]."""
    lowered = lower(fabric, schedule)
    image, protocol = lowered.image, fabric.protocols["simple"]
    found = {}
    for item, row in zip(schedule.instances, image.instances, strict=False):
        prim = schedule.templates[item.template].prims[0]
        fixed_ps = int(image.costs["fixed_ps"][row["cost"]])
        found[item.rank, prim.op] = fixed_ps * item.fixed_div - protocol.fixed_ps
    return found


def test_a_slice_of_simple_waits_for_how_it_lies_and_a_sender_for_its_fence(tmp_path):
    fabric = pair(tmp_path)
    trip = Places(arrays_of(fabric)).to_gpu(0)
    assert trip > 0
    assert waits_of(fabric, stream(fabric, 1, "simple")) == {
        (0, "send"): 2 * trip,
        (1, "recv"): trip,
    }
    for protocol in ("ll", "ll128"):
        lowered = lower(fabric, stream(fabric, 1, protocol))
        costs = {
            int(lowered.image.costs["fixed_ps"][row["cost"]]) for row in lowered.image.instances[:2]
        }
        assert costs == {fabric.protocols[protocol].fixed_ps}


def test_sends_and_receives_wait_for_where_it_lies_too(tmp_path, monkeypatch):
    """Connections share the buffers of a rank's thread: one load more. Waits beside NICs have their own test."""
    monkeypatch.setattr("clusim.lowering.programs.waits_ps", lambda *_: 0)
    setup = Setup(pair(tmp_path))
    trip = Places(arrays_of(setup.fabric)).to_gpu(0)
    schedule = programs.build(
        setup.known, setup.comm, programs.CollectivePayload("sendrecv", 1 << 20, "uint8")
    )
    waits = waits_of(setup.fabric, schedule)
    assert {op: ps for (_, op), ps in waits.items()} == {"send": 3 * trip, "recv": 2 * trip}


def test_the_loads_of_a_sender_that_receives_go_on_while_it_waits(tmp_path):
    """Every rank of a ring receives: of two on a machine one enters and waits for a load, one leaves, for its fence."""
    fabric = cluster_of(pcie_machine(gpus=2, nvlink=True), tmp_path)
    trip = Places(arrays_of(fabric)).to_gpu(0)
    ring = build(fabric, "allreduce", "ring", 1 << 20, channels=1, protocol="simple")
    waits = waits_of(fabric, ring)
    assert sorted(waits) == [(rank, "send") for rank in range(4)]
    assert set(waits.values()) == {trip}
