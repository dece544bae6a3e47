"""Laws of network plugins: what they set, over how many rails a message goes, and that a CTA stays one CTA."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

import clusim
from clusim.base.terms.operations import Algorithm, Collective
from clusim.hardware import ADAPTERS, TRANSPORTS
from clusim.nccl import communicator, parse_env, parse_version
from clusim.nccl.constants import Version, plugin_of_time
from clusim.nccl.env import PLUGIN
from clusim.nccl.transports import plugin_variables, transport_of, with_plugins
from clusim.schedule.ir import CTA_WARPS
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.plan import plan
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.topology import loads
from clusim.topology.node import NicTraits
from clusim.topology.schema import NicSpec
from support.machines import pcie_machine

MIB = 1 << 20
_CHUNKS = {"NCCL_NVLS_CHUNKSIZE", "NCCL_NVLSTREE_MAX_CHUNKSIZE"}
P5EN = {
    "2.27": (larger := {*_CHUNKS, "NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE"}),
    "2.28": {*larger, "NCCL_NETDEVS_POLICY"},
}
LATE, EARLY = parse_version("2.29"), parse_version("2.22")


@pytest.mark.parametrize(
    ("preset", "release", "names"),
    [
        ("aws-p4d", LATE, {"NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE"}),
        (
            "aws-p5",
            LATE,
            {*_CHUNKS, "NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE"},
        ),
        *(("aws-p5en", parse_version(release), names) for release, names in P5EN.items()),
        # A log of 2024 has these two lines only.
        ("aws-p5", EARLY, _CHUNKS),
        ("aws-p3dn", LATE, set()),
        ("dgx-h100", LATE, set()),
    ],
)
def test_a_plugin_sets_variables_by_machine_and_release(
    preset: str, release: tuple[int, int, int], names: set[str]
) -> None:
    plugin = plugin_of_time(Version(*release))
    assert set(plugin_variables(clusim.load(preset), plugin)) == names


@pytest.mark.parametrize(
    ("version", "plugin"), [("2.18", "1.7"), ("2.26", "1.15"), ("2.27", "1.16"), ("2.28", "1.17")]
)
def test_variables_and_costs_are_of_the_plugin_of_the_time(version: str, plugin: str) -> None:
    """Control messages are sent before 1.17, of the time of NCCL 2.28."""
    own = Setup("aws-p4d", nodes=2, version=version)
    other = replace(own, env=((PLUGIN, plugin),))
    assert [node.nic for node in own.fabric.nodes] == [node.nic for node in other.fabric.nodes]
    assert own.comm.settings.by_plugin == other.comm.settings.by_plugin
    nics = {node.nic for node in own.fabric.nodes if node.nic is not None}
    assert all((nic.control_ps == 0) is (version != "2.28") for nic in nics)


def test_what_the_user_gives_stands_above_the_plugin() -> None:
    fabric = clusim.load("aws-p5en")
    given = parse_env({"NCCL_BUFFSIZE": "2097152"})
    found = with_plugins(fabric, given, LATE)
    assert (found.buffsize, found.p2p_net_chunksize) == (2 * MIB, MIB // 2)
    usual = communicator(fabric, LATE).settings
    assert usual.buffsize == 8 * MIB
    assert "NCCL_BUFFSIZE=8388608" in usual.by_plugin
    assert found.by_plugin == tuple(n for n in usual.by_plugin if "BUFFSIZE" not in n)


@pytest.mark.parametrize(
    ("num_bytes", "rails", "stripes"),
    # One rail up to 128 KiB, then as many as get that much each and divide the rails.
    [
        *((1, 4, 1), (128 << 10, 4, 1), ((128 << 10) + 1, 4, 2), (3 * (128 << 10), 4, 2)),
        *((MIB, 4, 4), (MIB, 2, 2), (MIB, 1, 1)),
    ],
)
def test_stripes_divide_the_rails(num_bytes: int, rails: int, stripes: int) -> None:
    nic = next(n.nic for n in clusim.load("aws-p5").nodes if n.nic is not None)
    assert transport_of(nic).stripes(num_bytes, rails) == stripes
    assert transport_of(None).stripes(num_bytes, rails) == 1


def _request(num_bytes: int) -> Request:
    """Return NCCL's ring of one channel over two machines of two adapters a GPU."""
    env = (
        ("NCCL_ALGO", "Ring"),
        ("NCCL_PROTO", "Simple"),
        ("NCCL_MIN_NCHANNELS", "1"),
        ("NCCL_MAX_NCHANNELS", "1"),
    )
    return Request(Setup("aws-p5en", nodes=2, env=env), "all_reduce", num_bytes, granularity=8192)


def test_parts_on_the_rails_of_an_adapter_share_one_cta() -> None:
    """16 ranks, slices of 2 MiB, two rails: two programs a rank, each with half of the warps and of the data."""
    small, large = (plan(_request(size)).schedule for size in (MIB, 64 * MIB))
    assert len(large.instances) == 2 * len(small.instances) == 32
    assert {item.warps for item in small.instances} == {CTA_WARPS}
    assert {item.warps for item in large.instances} == {CTA_WARPS / 2}
    assert {item.length for item in large.instances} == {32 * MIB}


def test_a_channel_is_faster_than_one_adapter_and_slower_than_two() -> None:
    """Two adapters of 25 GB/s: a ring's channel moves more than one of them could, and no more than its CTA does."""
    time_ps = run_job(job_of(_request(256 * MIB), RunOptions()), RunOptions()).time_ps
    busbw = 2 * 15 / 16 * 256 * MIB / time_ps * 1000
    slowest = clusim.load("aws-p5en").protocols["simple"].rate_Bps("recvCopySend") / 1e9
    assert 25 < busbw < 2 * slowest


def test_every_transport_is_a_plugin_of_topology_files_and_of_an_adapter() -> None:
    words = get_args(NicSpec.model_fields["plugin"].annotation)[0]
    assert set(get_args(words)) == set(TRANSPORTS)
    assert {nic.plugin for nic in ADAPTERS.values()} == set(TRANSPORTS)
    assert NicTraits().plugin in TRANSPORTS


def _adapter(text: str) -> NicTraits:
    fabric = loads(
        pcie_machine(gpus=1, nic="own", extra=f"nics: {{own: {{{text}}}}}"), "bench.yaml"
    )
    return next(node.nic for node in fabric.nodes if node.nic is not None)


def test_an_adapter_by_another_transport_pays_what_that_one_costs() -> None:
    """By sockets a ConnectX has no RDMA, and EFA no delays of SRD; what the file says itself stands above."""
    plain, other = _adapter("base: cx6-hdr"), _adapter("base: cx6-hdr, plugin: sockets")
    assert (plain.plugin, plain.gpudirect, plain.post_ps) == ("verbs", True, 500_000)
    assert (other.plugin, other.gpudirect, other.post_ps) == ("sockets", False, 12_000_000)
    assert other.speed_Bps == plain.speed_Bps
    assert _adapter("base: cx6-hdr, plugin: sockets, post: 3us").post_ps == 3_000_000
    assert _adapter("base: efa-200g").ack_ps > 0
    moved = _adapter("base: efa-200g, plugin: verbs")
    assert (moved.ack_ps, moved.eager_bytes, moved.plugin_ps, moved.adaptive) == (0, 0, 0, False)
    assert _adapter("plugin: sockets, latency: 1us").post_ps == 12_000_000


def test_a_profile_counts_unless_the_user_says_otherwise() -> None:
    comm = Setup("gcp-a3-mega", nodes=2).comm
    assert "NCCL_ALGO=Ring,Tree" in comm.settings.by_plugin
    own = Setup("gcp-a3-mega", nodes=2, env=(("NCCL_ALGO", "NVLSTree"),)).comm
    assert "NCCL_ALGO=Ring,Tree" not in own.settings.by_plugin
    plan = comm.plan(Collective.ALLREDUCE, 64 * MIB)
    assert plan.selection.algorithm in (Algorithm.RING, Algorithm.TREE)
