"""NCCL's kernels for symmetric memory: its model by hand, which kernel it takes, what runs, and who has none."""

from __future__ import annotations

from functools import cache
from math import exp, log1p

import pytest
from click.testing import CliRunner

import clusim
from clusim import topology
from clusim.base.errors import InputError
from clusim.collectives.api import REGISTRY
from clusim.nccl import Collective, Communicator, communicator, parse_env, parse_version
from clusim.nccl.env import windows
from clusim.nccl.symmetric import KERNELS, pick, why_not
from clusim.nccl.symmetriccosts import SymmetricCall
from clusim_cli.main import cli

AR, AG, RS = Collective.ALLREDUCE, Collective.ALLGATHER, Collective.REDUCESCATTER


@cache
def comm(
    machine: str = "dgx-h100", version: str = "2.30", ranks: int = 8, **env: str
) -> Communicator:
    settings = parse_env({f"NCCL_{key}": value for key, value in env.items()})
    group = tuple(range(ranks))
    return communicator(topology.load(machine), parse_version(version), settings, ranks=group)


def test_every_kernel_is_an_algorithm_of_its_operation() -> None:
    for kernel in KERNELS:
        assert (kernel.collective.operation, kernel.algorithm) in REGISTRY, kernel.name
        assert kernel.name.lower().startswith(kernel.collective.operation.replace("_", ""))


def test_the_model_is_nccls_by_hand() -> None:
    """AllReduce_RSxLDMC_AGxSTMC of 1 MiB on 8 H100: two CTAs at most, whose bandwidth is above the ceiling of 480."""
    gb = (1 << 30) / 1e6
    size = 1 << 20
    bus = size // 8 + size

    def bandwidth(blocks: int) -> float:
        one, peak = 65 * gb, 480 * gb
        x = blocks * one * 8
        return peak - one * log1p((exp(peak / one) - 1) * exp(-x / one))

    times = {blocks: 7.8 + log1p(exp(bus / bandwidth(blocks) - 1)) for blocks in (1, 2)}
    assert times[1] <= 1.025 * times[2], "one CTA is as good"
    found = pick(comm(), SymmetricCall(AR, size))
    assert (found.kernel.name, found.blocks) == ("AllReduce_RSxLDMC_AGxSTMC", 1)
    assert found.time_us == pytest.approx(times[1])


@pytest.mark.parametrize(
    ("machine", "collective", "size", "name"),
    [
        ("dgx-h100", AR, 1024, "AllReduce_AGxLLMC_R"),
        ("dgx-h100", AR, 1 << 26, "AllReduce_RSxLDMC_AGxSTMC"),
        ("dgx-a100", AR, 1024, "AllReduce_AGxLL_R"),
        ("dgx-a100", AR, 1 << 26, "AllReduce_RSxLD_AGxST"),
        ("dgx-a100", AG, 1 << 26, "AllGather_ST"),
        ("dgx-a100", RS, 1 << 26, "ReduceScatter_LD"),
        ("hgx-b200", AG, 1 << 26, "AllGather_STMC"),
        ("hgx-b200", RS, 1 << 26, "ReduceScatter_LDMC"),
    ],
)
def test_small_sizes_take_ll_and_large_ones_the_switch_where_it_can(
    machine: str, collective: Collective, size: int, name: str
) -> None:
    assert pick(comm(machine), SymmetricCall(collective, size)).kernel.name == name


def test_two_ranks_have_no_multicast_since_2_29_7() -> None:
    call = SymmetricCall(AR, 1 << 26)
    assert pick(comm(version="2.28", ranks=2), call).kernel.multicast
    assert not pick(comm(version="2.30", ranks=2), call).kernel.multicast


def test_ctas_and_kernel_can_be_given() -> None:
    call = SymmetricCall(AR, 1 << 26)
    assert pick(comm(SYM_CTAS="7"), call).blocks == 7
    assert pick(comm(MAX_CTAS="1"), call).blocks == 1
    forced = pick(comm(SYM_KERNEL="AllReduce_RSxLD_AGxST"), call)
    assert list(forced.times_us) == ["AllReduce_RSxLD_AGxST"]
    with pytest.raises(InputError, match="NCCL_SYM_KERNEL=AllGather_ST"):
        pick(comm(SYM_KERNEL="AllGather_ST"), call)


def test_who_has_none_says_so_in_one_line() -> None:
    call = SymmetricCall(AR, 1 << 20)
    assert "added in 2.27" in why_not(comm(version="2.26"), call)
    assert "NVLinks" in why_not(comm("a100-pcie-x8"), call)
    assert "not max of float32" in why_not(comm(), SymmetricCall(AR, 1 << 20, redop="max"))
    assert "not sum of int32" in why_not(comm(), SymmetricCall(RS, 1 << 20, "int32"))
    assert not why_not(comm(), SymmetricCall(AG, 1 << 20, "int32", "max"))
    assert "lacks a kernel" in why_not(comm(), SymmetricCall(Collective.BROADCAST, 1 << 20))


def test_kernels_with_tma_need_blackwell_and_enough_bytes_since_2_31() -> None:
    """AllGather_TmaST needs a chunk of 8 KiB for each CTA; on Hopper the kernels are those of 2.30."""
    small, large = SymmetricCall(AG, 8 * 4096), SymmetricCall(AG, 8 << 20)
    assert "AllGather_TmaST" in pick(comm("hgx-b200", "2.31"), large).times_us
    assert "AllGather_TmaST" not in pick(comm("hgx-b200", "2.31"), small).times_us
    assert not any("Tma" in name for name in pick(comm("hgx-b200", "2.30"), large).times_us)
    off = pick(comm("hgx-b200", "2.31", SYM_TMA_ENABLE="0"), large)
    assert not any("Tma" in name for name in off.times_us)
    old, new = (pick(comm("dgx-h100", version), large) for version in ("2.30", "2.31"))
    assert new.times_us == pytest.approx(old.times_us, rel=0.025)


@pytest.mark.parametrize("size", [1 << 16, 1 << 20, 1 << 24])
def test_ctas_are_one_or_even_since_2_31(size: int) -> None:
    for collective in (AR, AG, RS):
        blocks = pick(comm("hgx-b200", "2.31"), SymmetricCall(collective, size)).blocks
        assert blocks == 1 or blocks % 2 == 0


def test_measured_rates_of_2_32_by_hand() -> None:
    """AllGather_STMC on 8 B200: a CTA stores 50.83 GB/s, which the switch sends to all; all 715.1 x 7/8 GB/s."""
    whole = 1 << 23
    own = whole // 8
    for ctas in (2, 64):
        cells = own // 1024
        active = -(-cells // -(-cells // ctas))
        bound = max(own / (active * 50.83e3), 7 * own / (715.1451e3 * 7 / 8))
        comms = comm("hgx-b200", "2.32", SYM_KERNEL="AllGather_STMC", SYM_CTAS=str(ctas))
        expected = 8.3313 + 7 * 0.0561 + bound
        assert pick(comms, SymmetricCall(AG, whole)).time_us == pytest.approx(expected)


def test_sums_by_loads_of_2_32_have_a_rate_for_each_kind_of_chunk() -> None:
    """ReduceScatter_LD of 8 x 48 KiB in bfloat16 on 8 B300 with 2 CTAs: no whole chunk (128 KiB), one of 32 KiB."""
    own = 48 << 10
    named = {"SYM_KERNEL": "ReduceScatter_LD", "SYM_CTAS": "2"}
    found = pick(comm("hgx-b300", "2.32", **named), SymmetricCall(RS, 8 * own, "bfloat16"))
    parts = ((32 << 10, 9.5826), (16 << 10, 4.0022))
    times = [max(8 * size / (2 * rate * 1e3), 7 * size / 660e3) for size, rate in parts]
    assert found.time_us == pytest.approx(8.4739 + 7 * 0.2096 + sum(times))


def test_more_bytes_never_take_less_time_by_measured_rates() -> None:
    named = {"SYM_KERNEL": "AllGather_STMC", "SYM_CTAS": "64"}
    sizes = [1 << n for n in range(12, 26)]
    times = [pick(comm("hgx-b200", "2.32", **named), SymmetricCall(AG, n)).time_us for n in sizes]
    assert times == sorted(times)


@pytest.mark.parametrize("size", [1000, 64_004, 1 << 20])
@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100"])
@pytest.mark.parametrize("operation", ["allreduce", "all_gather", "reduce_scatter"])
def test_what_runs_has_the_right_data(machine: str, operation: str, size: int) -> None:
    result = clusim.collective(
        machine, operation, size, symmetric=True, ranks=range(4), verify=True
    )
    assert result.verified
    assert any("symmetric memory:" in note for note in result.provenance.notes)


def test_copy_engines_gather_by_policy_and_large_blocks_of_blackwell() -> None:
    """NCCL's estimate by hand: 17.5 us, 1.957 us a rank, and 7 blocks at 392 GB/s; 8 Mi elements on Blackwell."""
    block = 1 << 20
    found = pick(comm("dgx-h100", CTA_POLICY="ZERO"), SymmetricCall(AG, 8 * block))
    assert found.kernel.algorithm == "copy-engines"
    assert found.time_us == pytest.approx(17.5 + 8 * 1.957 + 7 * block / 392e3)
    assert found.note == "symmetric memory: copy engines, no CTAs"
    large, just = SymmetricCall(AG, 8 * 36 << 20), SymmetricCall(AG, 8 * 32 << 20)
    assert pick(comm("hgx-b200"), large).kernel.algorithm == "copy-engines"
    assert pick(comm("hgx-b200"), just).kernel.algorithm != "copy-engines"
    assert pick(comm("hgx-b200", "2.28"), large).kernel.algorithm != "copy-engines"
    with pytest.raises(InputError, match="NCCL_CTA_POLICY=EFFICIENCY: not simulated; give DEFAULT"):
        parse_env({"NCCL_CTA_POLICY": "EFFICIENCY"})


def test_other_collectives_by_copy_engines_are_refused_by_name() -> None:
    zero = {"NCCL_CTA_POLICY": "ZERO"}
    pair = communicator(
        topology.load("dgx-h100", nodes=2), parse_version("2.30"), parse_env(zero), ranks=(0, 8)
    )
    assert "hierarchical collectives by copy engines" in why_not(pair, SymmetricCall(AG, 1 << 20))
    moved = clusim.collective("dgx-h100", "alltoall", 1 << 16, symmetric=True, env=zero)
    assert any("alltoall by copy engines is not planned" in n for n in moved.provenance.notes)


def test_a_gather_by_copy_engines_takes_nccls_least_time_and_the_wires() -> None:
    zero = {"NCCL_CTA_POLICY": "ZERO"}
    size = 64 << 20
    copied = clusim.collective("dgx-h100", "all_gather", size, symmetric=True, env=zero)
    bare = clusim.collective("dgx-h100", "all_gather", size, algorithm="copy-engines")
    assert copied.launched_ps is not None
    floor_us = 17.5 + 8 * 1.957
    assert copied.launched_ps == pytest.approx(bare.time_ps + floor_us * 1e6, rel=0.01)
    assert copied.launched_ps / 1e6 == pytest.approx(floor_us + 7 * size / 8 / 392e3, rel=0.08)


def test_nothing_changes_where_there_is_no_kernel() -> None:
    plain = clusim.collective("dgx-h100", "broadcast", 4096, ranks=range(4))
    told = clusim.collective("dgx-h100", "broadcast", 4096, ranks=range(4), symmetric=True)
    assert told.time_ps == plain.time_ps
    assert any("a kernel for symmetric memory" in note for note in told.provenance.notes)


def test_commands_show_the_kernel() -> None:
    words = ("explain", "dgx-h100", "--symmetric", "--size", "64MiB")
    assert "AllReduce_RSxLDMC_AGxSTMC" in CliRunner().invoke(cli, words).stdout
    perf = ("nccl-tests", "all_reduce_perf", "dgx-h100", "-b", "8K", "-e", "8K", "--jobs", "1")
    said = "symmetric memory: AllReduce_AGxLLMC_R"
    assert said in CliRunner().invoke(cli, (*perf, "-R", "2")).stdout
    assert said not in CliRunner().invoke(cli, (*perf, "-R", "1")).stdout


def test_no_variable_can_say_that_buffers_are_symmetric() -> None:
    assert parse_env(dict(windows(symmetric=True))).symmetric
    with pytest.raises(InputError):
        parse_env({"NCCL_SYMMETRIC": "1"})
