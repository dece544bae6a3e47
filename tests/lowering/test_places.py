"""Which way connections take: NVLink, PCIe, host memory, and NICs with their proxies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusim.base.errors import ScheduleError
from clusim.collectives import build
from clusim.engine.abi import NONE, ConnKind
from clusim.engine.image import OPCODES, Image
from clusim.lowering import Lowered, lower, rank_paths
from clusim.lowering.rank_paths import places_of
from clusim.topology import Fabric, load, loads
from clusim.topology.arrays import arrays_of
from clusim.topology.arrays import lower as lower_fabric
from clusim.topology.rails import PathType, Rails, path_type
from support.machines import cluster_of, pcie_machine


def send(fabric: Fabric, src: int, dst: int, **options: Any) -> Lowered:
    """Return one message of a channel, lowered."""
    schedule = build(fabric, "send", None, 1 << 20, ranks=(src, dst), channels=1, **options)
    return lower(fabric, schedule)


def names(fabric: Fabric, *targets: int) -> list[str]:
    """Return the names of targets."""
    arrays = arrays_of(fabric)
    return [fabric.nodes[int(arrays.targets["node"][target])].name for target in targets]


def packets_of(image: Image) -> list[tuple[int, int]]:
    """Return kind and packet size of every connection."""
    return [(int(row["kind"]), int(row["packet_bytes"])) for row in image.conns]


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "dgx-2", "hgx-b200", "gb200-nvl72"])
def test_gpus_behind_nvswitches_never_use_pcie(name: str) -> None:
    fabric = load(name)
    arrays = arrays_of(fabric)
    for other in range(1, fabric.num_ranks):
        classes = {arrays.wire_class[wire] for wire in arrays.path(0, other)}
        assert not classes & {"pcie", "numa", "dram", "c2c"}, (name, other)
    image = send(fabric, 0, 1).image
    assert packets_of(image) == [(ConnKind.READ if fabric.p2p == "read" else ConnKind.WRITE, 128)]
    assert (image.conns["stage"] == NONE).all()


def test_below_a_switch_gpus_write_to_each_other() -> None:
    fabric = loads(pcie_machine(), "m")
    image = send(fabric, 0, 1).image
    assert packets_of(image) == [(ConnKind.WRITE, 128)]
    assert image.conns[0]["stage"] == NONE


def test_reads_are_for_nvlink_only() -> None:
    fabric = loads(pcie_machine().replace("p2p: write", "p2p: read"), "m")
    assert packets_of(send(fabric, 0, 1).image) == [(ConnKind.WRITE, 128)]
    linked = loads(pcie_machine(nvlink=True).replace("p2p: write", "p2p: read"), "m")
    assert packets_of(send(linked, 0, 1).image) == [(ConnKind.READ, 128)]


def test_through_a_root_complex_data_are_staged_in_host_memory() -> None:
    fabric = loads(pcie_machine(below="cpu"), "m")
    lowered = send(fabric, 0, 1)
    (row,) = lowered.image.conns
    assert row["kind"] == ConnKind.WRITE
    assert names(fabric, int(row["stage"])) == ["mem0"]
    assert row["window_bytes"] == fabric.window_bytes
    # both cross the root complex to DRAM: two wires to write, two to ask and two back
    assert lowered.grain.packet_hops == 6 * (1 << 20) // 128
    direct = send(loads(pcie_machine(), "m"), 0, 1).image.conns[0]
    fence = fabric.protocols["simple"].tail_fence_ps
    assert row["tail_ps"] - fence > 2 * (direct["tail_ps"] - fence) > 0


def test_a_fabric_may_allow_peers_through_a_root_complex() -> None:
    text = pcie_machine(below="cpu", extra="p2p_level: phb")
    image = send(loads(text, "m"), 0, 1).image
    assert packets_of(image) == [(ConnKind.WRITE, 64)]
    assert image.conns[0]["stage"] == NONE
    never = loads(pcie_machine(extra="p2p_level: nvl"), "m")
    assert send(never, 0, 1).image.conns[0]["stage"] != NONE


def test_a_machine_without_host_memory_uses_what_there_is() -> None:
    text = pcie_machine(below="cpu").replace("  mem0: {kind: memory, chip: ddr4-3200x8}\n", "")
    text = text.replace("  - {from: cpu0, to: mem0, type: dram-ddr4-3200x8}\n", "")
    assert packets_of(send(loads(text, "m"), 0, 1).image) == [(ConnKind.WRITE, 64)]


def test_path_types_are_those_of_nvidia_smi() -> None:
    fabric = load("dgx-h100")
    arrays = arrays_of(fabric)
    rails = Rails(arrays)
    assert rails.path(0, 0)[0] is PathType.PIX
    assert rails.path(0, 1)[0] is PathType.PHB
    assert rails.path(0, 7)[0] is PathType.SYS
    assert path_type(arrays, arrays.path(0, 1)) is PathType.NVL
    assert [rails.nearest_rails(rank) for rank in range(8)] == [(rank,) for rank in range(8)]


def test_ranks_with_the_same_nics_share_them() -> None:
    arrays = arrays_of(load("dgx-a100"))
    rails = Rails(arrays)
    assert [rails.choice(rank, 0) for rank in range(8)] == list(range(8))
    four = load("aws-p5", nodes=2)
    rails = Rails(arrays_of(four))
    assert sorted(rails.choice(3, channel) for channel in range(4)) == sorted(
        rails.nearest_rails(3)
    )
    assert len(rails.nearest_rails(3)) == 4
    one = Rails(arrays_of(load("aws-p4d", nodes=2)))
    assert one.choice(0, 0) == one.choice(1, 5)


def test_a_gpu_next_to_its_nic_sends_a_flag_and_its_proxy_the_data(tmp_path: Path) -> None:
    fabric = cluster_of(pcie_machine(gpus=1), tmp_path)
    lowered = send(fabric, 0, 1)
    data, flag = lowered.image.conns
    nic = next(node.nic for node in fabric.nodes if node.nic)
    assert (data["kind"], flag["kind"]) == (ConnKind.WRITE, ConnKind.FLAG)
    assert data["packet_bytes"] == nic.mtu_bytes
    assert names(fabric, data["via_first"], data["via_last"]) == ["n0/nic0", "n1/nic0"]
    assert (data["src"], data["stage"], flag["dst"]) == (flag["src"], NONE, flag["src"])
    assert data["tail_ps"] > nic.completion_ps + nic.flush_ps
    assert list(lowered.owner) == [0, 0]
    assert list(lowered.proxy_of) == [0]
    sender, receiver, proxy = lowered.image.instances
    conns = lowered.image.inst_conns.tolist()
    assert conns[int(sender["conn_off"])] == 1
    assert conns[int(receiver["conn_off"])] == 0
    assert conns[int(proxy["conn_off"]) :] == [1, 0]
    assert (proxy["endpoint"], proxy["sm"]) == (data["src"], 0)
    cost = lowered.image.costs[int(proxy["cost"])]
    host = next(node.host for node in fabric.nodes if node.host)
    assert (cost["fixed_ps"], cost["after_ps"]) == (host.thread_ps, host.thread_after_ps)
    assert not cost["op_cost16"].any()
    assert proxy["thread"] == sender["endpoint"]
    assert sender["thread"] == receiver["thread"] == NONE


def test_a_far_gpu_goes_through_host_memory_on_both_sides(tmp_path: Path) -> None:
    fabric = cluster_of(pcie_machine(gpus=1, below="cpu"), tmp_path)
    image = send(fabric, 0, 1).image
    data, first = image.conns
    assert (data["kind"], first["kind"]) == (ConnKind.WRITE, ConnKind.WRITE)
    assert names(fabric, int(first["dst"]), int(data["stage"])) == ["n0/mem0", "n1/mem0"]
    assert data["src"] == first["dst"]
    near = send(cluster_of(pcie_machine(gpus=1), tmp_path), 0, 1).image.conns[0]
    nic = next(node.nic for node in fabric.nodes if node.nic)
    assert near["tail_ps"] - data["tail_ps"] == pytest.approx(nic.flush_ps, abs=400_000)


def test_a_nic_without_gpudirect_bounces_too(tmp_path: Path) -> None:
    text = pcie_machine(
        gpus=1, nic="plain", extra="nics: {plain: {base: cx6-hdr, gpudirect: false}}"
    )
    image = send(cluster_of(text, tmp_path), 0, 1).image
    assert image.conns[0]["stage"] != NONE
    assert image.conns[1]["kind"] == ConnKind.WRITE


def test_pxn_writes_over_nvlink_to_the_gpu_next_to_the_receivers_rail() -> None:
    fabric = load("dgx-h100", nodes=2)
    arrays = arrays_of(fabric)
    lowered = send(fabric, 2, 8 + 5)
    data, first = lowered.image.conns
    assert names(fabric, data["via_first"], data["via_last"]) == ["n0/nic5", "n1/nic5"]
    assert first["kind"] == ConnKind.WRITE
    assert first["dst"] == data["src"] == arrays.rank_endpoint[5]
    assert lowered.image.instances[-1]["endpoint"] == arrays.rank_endpoint[5]
    own = send(fabric, 5, 8 + 5).image.conns
    assert own[1]["kind"] == ConnKind.FLAG


def test_rails_of_connections_are_used() -> None:
    fabric = load("dgx-h100", nodes=2)
    image = lower(fabric, build(fabric, "allreduce", "ring", 1 << 22, channels=16)).image
    rows = image.conns[image.conns["via_first"] != NONE]
    used = {tuple(names(fabric, row["via_first"], row["via_last"])) for row in rows}
    wanted = {
        (f"n{a}/nic{rail}", f"n{b}/nic{rail}") for rail in range(8) for a, b in ((0, 1), (1, 0))
    }
    assert used == wanted
    assert set(rows["policy"]) == {1}


def test_adaptive_nics_spray_and_marks_need_rate_control(tmp_path: Path) -> None:
    rows = send(load("aws-p5", nodes=2), 0, 8).image.conns
    assert rows[0]["policy"] == 2
    text = (
        pcie_machine(gpus=1, nic="cx6-roce200")
        .replace("ib-hdr", "roce-200")
        .replace("quantum", "spectrum3")
    )
    fabric = cluster_of(text, tmp_path)
    image = send(fabric, 0, 1).image
    assert image.conns[0]["control"] == 0
    assert image.conns[1]["control"] == NONE
    (control,) = image.controls
    assert control["line_rate"] == pytest.approx(25e9 * 2**30 / 1e12, rel=0.01)
    assert 0 < control["min_rate"] < control["line_rate"]
    assert control["additive"] > 0


def test_flags_between_machines_carry_no_data() -> None:
    fabric = load("dgx-h100", nodes=2)
    image = lower(fabric, build(fabric, "barrier", None, 0)).image
    assert set(image.conns["kind"]) == {ConnKind.FLAG}
    arrays = arrays_of(fabric)
    zone = arrays.nodes["zone"][arrays.endpoints["node"]]
    far = zone[image.conns["src"]] != zone[image.conns["dst"]]
    assert image.conns["tail_ps"][far].min() > 2 * image.conns["tail_ps"][~far].max()


def test_flags_of_ll_travel_in_the_data(tmp_path: Path) -> None:
    fabric = cluster_of(pcie_machine(gpus=1), tmp_path)
    data, flag = send(fabric, 0, 1, protocol="ll").image.conns
    nic = next(node.nic for node in fabric.nodes if node.nic)
    assert data["tail_ps"] == nic.post_ps
    assert flag["tail_ps"] == 0  # the thread looks at the lines themselves
    assert data["expand_120"] == flag["expand_120"] == 240


def test_proxies_repeat_the_senders_slices() -> None:
    fabric = load("dgx-h100", nodes=2)
    schedule = build(fabric, "allreduce", "ring", 1 << 24, channels=8)
    lowered = lower(fabric, schedule)
    image = lowered.image
    count = len(schedule.instances)
    assert len(lowered.proxy_of) == len(image.instances) - count == 2 * 8
    for proxy, sender in zip(image.instances[count:], lowered.proxy_of, strict=True):
        own = image.instances[sender]
        for name in ("offset", "length", "chunk_bytes", "rotation", "slices", "slots_per_slice"):
            assert proxy[name] == own[name]
        template = image.templates[proxy["template"]]
        prims = image.prims[template["prim_lo"] : template["prim_hi"]]
        assert set(prims["opcode"]) == {OPCODES["recvCopySend"].number}
        mine = image.prims[slice(*image.templates[own["template"]].tolist()[:2])]
        sending = mine[mine["send"] != NONE]
        for name in ("base", "coef", "step", "repeat"):
            assert (prims[name] == sending[name]).all()


def test_tasks_of_proxies_start_with_those_of_their_senders() -> None:
    fabric = load("dgx-h100", nodes=2)
    schedule = build(fabric, "allreduce", "ring", 1 << 24, channels=8)
    lowered = lower(fabric, schedule)
    tasks, count = lowered.image.tasks, len(schedule.tasks)
    assert len(tasks) == count + len({schedule.instances[i].task for i in lowered.proxy_of})
    assert (tasks["kind"][count:] == 0).all()
    assert tasks["inst_hi"][-1] == len(lowered.image.instances)
    spans = np.concatenate([np.arange(row["inst_lo"], row["inst_hi"]) for row in tasks])
    assert spans.tolist() == list(range(len(lowered.image.instances)))
    assert lowered.image.endpoints["cta_slots"].max() == 256


def test_crowded_endpoints_share_proxies() -> None:
    fabric = load("dgx-h100", nodes=6)
    schedule = build(fabric, "alltoall", None, 1 << 22, channels=8)
    lowered = lower(fabric, schedule)
    instances = lowered.image.instances
    assert np.bincount(instances["endpoint"]).max() <= 256
    connections, senders = 48 * 40 * 8, 48 * 8
    assert senders == len(set(lowered.proxy_of)) < len(lowered.proxy_of) < connections
    with pytest.raises(ScheduleError, match="use at most 28 channels"):
        lower(fabric, build(fabric, "alltoall", None, 1 << 24, channels=32))


def test_a_machine_without_a_nic_is_named() -> None:
    text = "\n".join(
        line
        for line in pcie_machine(gpus=1).splitlines()
        if "nic0" not in line and "network" not in line
    )
    alone = loads(text, "m")
    assert alone.num_zones == 1
    fabric = load("dgx-h100", nodes=2)
    with pytest.raises(ScheduleError, match="needs 17 ranks"):
        lower(fabric, build(17, "allreduce", "ring", 64))


def test_the_runs_of_a_fabric_find_its_ways_once() -> None:
    fabric = load("aws-p5en", nodes=2)
    known = places_of(arrays_of(fabric))
    first = lower(fabric, build(fabric, "allreduce", "ring", 1 << 20)).image
    assert places_of(arrays_of(fabric)) is known
    again = lower(fabric, build(fabric, "allreduce", "ring", 1 << 20)).image
    alone = load("aws-p5en", nodes=2)
    new = lower(alone, build(alone, "allreduce", "ring", 1 << 20)).image
    assert first.digest() == again.digest() == new.digest()
    assert places_of(arrays_of(alone)) is not known


def test_ways_without_broken_wires_are_not_those_of_the_whole_fabric() -> None:
    fabric = load("dgx-h100")
    whole = arrays_of(fabric)
    known = places_of(whole)
    assert places_of(lower_fabric(fabric, [0])) is not known
    assert places_of(whole) is known


def test_too_many_ways_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = load("dgx-h100")
    known = places_of(arrays_of(fabric))
    lower(fabric, build(fabric, "alltoall", None, 1 << 20))
    assert places_of(arrays_of(fabric)) is known
    monkeypatch.setattr(rank_paths, "MOST_KEPT", 4)
    assert places_of(arrays_of(fabric)) is not known
