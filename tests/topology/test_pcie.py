"""PCIe and network formats: what the specifications add up to, and what was measured."""

from __future__ import annotations

from fractions import Fraction

import pytest

from clusim.engine.abi import Kind
from clusim.hardware import LINKS, NICS, SWITCHES
from clusim.hardware.networks import pause_headroom_bytes
from clusim.hardware.pcie import GENERATIONS, LANES, lane_MBps
from clusim.topology import Format, Link, loads
from clusim.topology.packets import KIND_NAMES, NO_LIMIT
from support.presets import preset_format, preset_link, preset_nic, preset_switch


def wire_bytes(form: Format, kind: int, payload: int) -> int:
    """Wire bytes of `payload` bytes as packets of a kind, by the rule of the timing contract."""
    limit = min(form.limit_bytes[kind], payload)
    count = -(-payload // limit)
    header = form.header_bytes[kind]

    def up(size: int) -> int:
        return -(-size // form.flit_bytes) * form.flit_bytes

    carries = kind not in (Kind.READ_REQ,)
    if not carries:
        return count * up(header)
    return (count - 1) * up(header + limit) + up(header + payload - (count - 1) * limit)


def one_way_GBps(link: Link, form: Format, kind: int, payload: int = 4096) -> float:
    return payload / wire_bytes(form, kind, payload) * link.rate.bytes_per_s / 1e9


def pcie(generation: int, lanes: int, tail: str = "") -> tuple[Link, Format]:
    link = preset_link(f"pcie-gen{generation}-x{lanes}{tail}")
    return link, preset_format(link.format)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_rate_is_transfers_after_encoding(generation: int) -> None:
    gigatransfers = Fraction(str(GENERATIONS[generation][0]))
    encoding = Fraction(8, 10) if generation < 3 else Fraction(128, 130)
    if generation == 6:
        encoding = Fraction(242, 256)
    raw = float(gigatransfers * encoding / 8 * 1000)
    assert raw * 0.996 < lane_MBps(generation) <= raw, "at most 0.4% are SKP sets"
    for lanes in LANES:
        link, _ = pcie(generation, lanes)
        assert link.rate.bytes_per_s == pytest.approx(lanes * lane_MBps(generation) * 1e6)


@pytest.mark.parametrize(
    ("generation", "raw_GBps"),
    [(1, 4.0), (2, 8.0), (3, 15.754), (4, 31.508), (5, 63.015), (6, 121.0)],
)
def test_raw_rate_of_x16(generation: int, raw_GBps: float) -> None:
    assert pcie(generation, 16)[0].rate.bytes_per_s / 1e9 == pytest.approx(raw_GBps, rel=0.004)


@pytest.mark.parametrize(
    ("generation", "kind", "measured_GBps"),
    [
        (4, Kind.WRITE, 26.2),  # 128 B packets; A100 device to host 26.19
        (5, Kind.WRITE, 52.4),  # H100 device to host 52
        (4, Kind.READ_RESP, 26.78),  # A100 host to device
        (3, Kind.WRITE, 13.1),
    ],
)
def test_one_way_rates_of_gpus(generation: int, kind: int, measured_GBps: float) -> None:
    found = one_way_GBps(*pcie(generation, 16, "-gpu"), kind)
    assert found == pytest.approx(measured_GBps, rel=0.02)


def test_larger_payload_of_hosts() -> None:
    link, form = pcie(4, 16, "-mps256")
    assert form.limit_bytes[Kind.WRITE] == 256
    assert one_way_GBps(link, form, Kind.WRITE) == pytest.approx(28.6, rel=0.02)


def test_gen6_pays_for_its_flits_in_every_packet() -> None:
    link, form = pcie(6, 16)
    assert form.control_256[Kind.WRITE] == 0
    tlp = Fraction(128, 128 + 16) * Fraction(236, 256) * 128
    assert one_way_GBps(link, form, Kind.WRITE) == pytest.approx(float(tlp), rel=0.005)


@pytest.mark.parametrize("generation", [3, 4, 5])
def test_bytes_owed_to_the_opposite_wire(generation: int) -> None:
    """An ACK and an UpdateFC, 8 B each, for three packets; a fetch of 512 B costs one request of 24 B more."""
    form = pcie(generation, 16)[1]
    write, fetch = form.control_256[Kind.WRITE] / 256, form.control_256[Kind.FETCH] / 256
    assert write == pytest.approx(16 / 3, abs=0.01)
    assert fetch - write == pytest.approx(24 * 128 / 512, abs=0.01)
    assert 0.02 < write / (128 + 24) < 0.05
    assert wire_bytes(form, Kind.READ_REQ, 4096) == 8 * 24
    assert wire_bytes(form, Kind.FETCH, 4096) == 32 * (128 + 20)


def test_limits_by_kind() -> None:
    form = pcie(4, 16)[1]
    limits = dict(zip(KIND_NAMES, form.limit_bytes, strict=True))
    assert limits["write"] == limits["fetch"] == limits["read_response"] == 128
    assert limits["read_request"] == 512
    assert preset_format("infiniband").limit_bytes == (NO_LIMIT,) * len(KIND_NAMES)


def test_narrow_links_acknowledge_more_often() -> None:
    wide, narrow = pcie(4, 16)[1], pcie(4, 4)[1]
    assert narrow.control_256[Kind.WRITE] > 2 * wide.control_256[Kind.WRITE]


@pytest.mark.parametrize(
    ("name", "expected_GBps"),
    [
        ("ib-edr", 12.42),
        ("ib-hdr", 24.84),
        ("ib-ndr", 49.68),
        ("ib-xdr", 99.37),
        ("roce-100", 12.255),
        ("roce-400", 49.02),
    ],
)
def test_payload_rate_of_networks(name: str, expected_GBps: float) -> None:
    link = preset_link(name)
    found = one_way_GBps(link, preset_format(link.format), Kind.WRITE)
    assert found == pytest.approx(expected_GBps, rel=0.001)


def test_ndr_carries_4096_of_4122_bytes() -> None:
    form = preset_format("infiniband")
    assert wire_bytes(form, Kind.WRITE, 4096) == 4096 + 8 + 12 + 4 + 2
    link = preset_link("ib-ndr")
    assert one_way_GBps(link, form, Kind.WRITE) == pytest.approx(50 * 4096 / 4122, rel=1e-12)


@pytest.mark.parametrize(("medium", "ps_per_m"), [("fibre", 5000), ("copper", 4400)])
def test_cables_add_their_propagation(medium: str, ps_per_m: int) -> None:
    text = "nodes: {a: {kind: host}, b: {kind: host}}\n"
    text += f"links: [{{from: a, to: b, type: ib-ndr, length: 30 m, medium: {medium}}}]\n"
    bare = preset_link("ib-ndr")
    assert loads(text).links[0].latency_ps == bare.latency_ps + 30 * ps_per_m
    assert preset_link("ib-ndr", length_m=2).latency_ps == bare.latency_ps + 10_000


@pytest.mark.parametrize("name", [name for name in LINKS if name.startswith("roce-")])
def test_pause_headroom_holds_a_round_trip_of_100_m(name: str) -> None:
    link = preset_link(name, length_m=100)
    room = link.buffer_bytes - link.xoff_bytes
    flight = 2 * link.latency_ps * 1e-12 * link.rate.bytes_per_s
    assert room >= flight + 2 * (4096 + 82)
    assert 0 < link.xon_bytes < link.xoff_bytes
    assert 0 < link.ecn_min_bytes < link.ecn_max_bytes
    assert link.ecn_min_bytes < link.xoff_bytes, "marks before it pauses"


def test_headroom_is_round_trip_times_rate_and_two_packets() -> None:
    assert pause_headroom_bytes(50e9, 500_000, 4096) == 50_000 + 2 * 4096


def test_marks_scale_with_the_rate() -> None:
    slow, fast = preset_link("roce-100"), preset_link("roce-400")
    assert (fast.ecn_min_bytes, fast.ecn_max_bytes) == (400_000, 1_600_000)
    assert fast.ecn_max_bytes == 4 * slow.ecn_max_bytes
    assert fast.ecn_probability == 0.2


@pytest.mark.parametrize("name", [name for name in LINKS if LINKS[name]["class"].value != "roce"])
def test_credits_cover_the_round_trip(name: str) -> None:
    """Over 100 m where it is a network; otherwise as the link is."""
    network = LINKS[name]["class"].value in ("infiniband", "efa", "slingshot")
    link = preset_link(name, length_m=100 if network else 0)
    assert link.buffer_bytes >= 2 * link.latency_ps * 1e-12 * link.rate.bytes_per_s


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_are_nodes(name: str) -> None:
    node = preset_switch(name)
    assert node.latency_ps >= 1
    assert node.tier in ("switch", "pcie", "root")


def test_root_complexes_split_peer_traffic_on_intel_only() -> None:
    assert preset_switch("xeon-icx").peer_payload_bytes == 64
    assert preset_switch("epyc-milan").peer_payload_bytes == 128
    assert preset_switch("pex88096").peer_payload_bytes == 0


def test_reduction_in_the_network() -> None:
    for name, ports, rate_GBps in (("quantum", 40, 25), ("quantum2", 64, 50)):
        node = preset_switch(name)
        assert node.unit is not None
        assert node.ports == ports
        line_Bps = ports * rate_GBps * 1e9
        assert 65536e12 / node.unit.cost16 == pytest.approx(line_Bps, rel=0.05), "at line rate"
        assert node.unit.slots * 4096 > rate_GBps * 1e9 * 4e-6, "slots for 4 us"
    assert preset_switch("spectrum4").unit is None
    assert preset_switch("rosetta").unit is None


@pytest.mark.parametrize("name", NICS)
def test_adapters_are_nodes(name: str) -> None:
    node = preset_nic(name)
    assert node.nic is not None
    assert node.nic.mtu_bytes in (2048, 4096, 8192, 8960)
    assert (node.nic.rate_control is not None) == ("roce" in name or name == "bf3")


@pytest.mark.parametrize(
    ("name", "share"), [("cx6-roce200", 0.5), ("cx7-roce400", 1), ("cx8-roce800", 2)]
)
def test_rate_control_scales_with_the_rate(name: str, share: float) -> None:
    """The tuned step of 400 Gb/s NICs is 20 Mb/s; the weight of a notification does not depend on the rate."""
    control = preset_nic(name).nic
    assert control is not None
    assert control.rate_control is not None
    assert control.rate_control.additive_Bps == pytest.approx(share * 20e6 / 8)
    assert control.rate_control.g_65536 == 320


def test_packet_kinds_have_names_in_the_order_of_the_engine() -> None:
    names = dict(zip(Kind, KIND_NAMES, strict=True))
    assert (names[Kind.WRITE], names[Kind.FETCH]) == ("write", "fetch")
    assert (names[Kind.READ_REQ], names[Kind.READ_RESP]) == ("read_request", "read_response")
    assert (names[Kind.RED_REQ], names[Kind.RED_RESULT]) == ("reduce_request", "reduce_result")
    assert (names[Kind.AGG_UP], names[Kind.AGG_DOWN]) == ("aggregate", "aggregate_result")
