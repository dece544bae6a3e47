"""Configuration of a call: grammar of its selection, algorithm and channels by its limits, releases without it."""

from __future__ import annotations

from functools import cache

import pytest

import clusim
from clusim import topology
from clusim.base.errors import InputError
from clusim.base.terms.operations import Algorithm, Protocol
from clusim.nccl import CallConfig, Collective, Communicator, communicator, parse_env, parse_version
from clusim.nccl.callconfig import general_name
from clusim.nccl.choice import Communicators, choose
from clusim.nccl.env import Settings
from clusim.nccl.programs import CollectivePayload
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.simulation.plan import plan
from clusim.simulation.request import requested

NONE = Settings()


@cache
def comm(machine: str = "dgx-h100", version: str = "2.31", **env: str) -> Communicator:
    settings = parse_env({f"NCCL_{key}": value for key, value in env.items()})
    return communicator(topology.load(machine), parse_version(version), settings)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("ring_ll128", {"RING_LL128"}),
        (" Ring + ^RING_LL ", {"RING_SIMPLE"}),
        ("NVLS", {"NVLS_SIMPLE", "NVLSTREE_SIMPLE"}),
        ("PAT,COLLNET_CHAIN", {"PAT_SIMPLE", "COLLNET_CHAIN_SIMPLE"}),
        ("SYMK_AGxLL", {"SYMK_AGxLL_R", "SYMK_AGxLLMC_R"}),
        ("SYMK_Rail", {"SYMK_RailRing_LsaSTMC", "SYMK_RailA2A_LsaLD", "SYMK_RailA2A_LsaLDMC"}),
    ],
)
def test_tags_are_prefixes_joined_by_or_and_not(text: str, names: set[str]) -> None:
    """A tag selects the names that it begins: RING not SYMK_RailRing, RING_LL also RING_LL128."""
    assert CallConfig(text).names(NONE) == names


def test_a_negated_tag_leaves_all_others() -> None:
    every = CallConfig("RING,^RING").names(NONE) or frozenset()
    rest = CallConfig("^SYMK").names(NONE) or frozenset()
    # 6 of Tree and Ring, 5 algorithms with Simple only.
    assert len(rest) == 11
    assert rest < every
    assert all(name.startswith("SYMK_") for name in every - rest)


@pytest.mark.parametrize("text", ["RINGS", "^", "RING+^RING", "RING,+,TREE", "TREE+RING"])
def test_selections_without_algorithms_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="selection"):
        CallConfig(text)


@pytest.mark.parametrize("count", [0, 65])
def test_limits_are_within_nccls_channels(count: int) -> None:
    with pytest.raises(InputError, match="outside 1 to 64"):
        CallConfig(max_ctas=count)


@pytest.mark.parametrize("size", [8, 1 << 20, 1 << 30])
def test_the_call_uses_the_selected_algorithm(size: int) -> None:
    for algorithm, protocol, others in (
        (Algorithm.RING, Protocol.LL, "+^RING_LL128"),
        (Algorithm.TREE, Protocol.SIMPLE, ""),
        (Algorithm.NVLS, Protocol.SIMPLE, ""),
    ):
        config = CallConfig(general_name(algorithm, protocol) + others)
        found = choose(comm(), "allreduce", size, overrides=config).plan
        assert found is not None
        assert (found.selection.algorithm, found.selection.protocol) == (algorithm, protocol)


@pytest.mark.parametrize(("select", "most"), [("RING_SIMPLE", 24), ("TREE_LL", 24), ("NVLS", 16)])
@pytest.mark.parametrize("count", [1, 3, 8, 40])
def test_equal_limits_are_the_number_of_channels(select: str, most: int, count: int) -> None:
    """Within the communicator's: 24 rings and trees, 16 of NVLS on 8 H100. Nothing else of the plan changes."""
    free = choose(comm(), "allreduce", 64 << 20, overrides=CallConfig(select)).plan
    config = CallConfig(select, min_ctas=count, max_ctas=count)
    bound = choose(comm(), "allreduce", 64 << 20, overrides=config).plan
    assert free is not None
    assert bound is not None
    assert bound.num_channels == min(count, most)
    assert bound.selection.times_us == free.selection.times_us
    assert bound.selection.threads.num_threads == free.selection.threads.num_threads


def test_a_minimum_above_the_maximum_is_ignored() -> None:
    config = CallConfig("RING_LL", min_ctas=8, max_ctas=2)
    found = choose(comm(), "allreduce", 1024, overrides=config).plan
    assert found is not None
    assert found.selection.threads.num_channels == 1


def test_variables_precede_the_call() -> None:
    """NCCL_ALGO decides instead of the selection, NCCL_MAX_CTAS instead of the call's limit."""
    config = CallConfig("TREE", max_ctas=2)
    found = choose(comm(ALGO="Ring", MAX_CTAS="5"), "allreduce", 64 << 20, overrides=config).plan
    assert found is not None
    assert (found.selection.algorithm, found.num_channels) == (Algorithm.RING, 5)


def test_a_selection_that_cannot_be_met() -> None:
    """Collective networks are absent: an error, or NCCL's choice without force."""
    with pytest.raises(
        InputError, match="no algorithm of 'COLLNET' can do the call; possible: TREE"
    ):
        choose(comm(), "allreduce", 1 << 20, overrides=CallConfig("COLLNET"))
    free = comm().plan(Collective.ALLREDUCE, 1 << 20)
    assert (
        choose(comm(), "allreduce", 1 << 20, overrides=CallConfig("COLLNET", force=False)).plan
        == free
    )


@pytest.mark.parametrize(
    ("machine", "version", "operation", "message"),
    [
        ("dgx-h100", "2.30", "allreduce", "NCCL 2.30: calls have no configuration"),
        ("mi300x", "2.31", "allreduce", "RCCL .*: calls have no configuration"),
        ("dgx-h100", "2.31", "alltoall", "alltoall: sends and receives ignore"),
    ],
)
def test_calls_without_a_configuration(
    machine: str, version: str, operation: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        choose(comm(machine, version), operation, 1 << 20, overrides=CallConfig(max_ctas=2))


def test_named_algorithms_refuse_it() -> None:
    with pytest.raises(InputError, match="a call's configuration is for NCCL's plans"):
        plan(
            requested(
                *("dgx-h100",), operation="allreduce", size_bytes=1024, algorithm="ring",
                wanted=CallConfig("RING"),
            )
        )  # fmt: skip


def test_windows_with_a_selection() -> None:
    """Of kernels for symmetric memory the selected one with its CTAs; with RING, as without windows."""

    def kernel(**given: object) -> tuple[str, int] | None:
        made = plan(
            requested(
                "hgx-b200",
                operation="all_gather",
                size_bytes=64 << 20,
                symmetric=True,
                version="2.32",
                wanted=CallConfig(**given),  # type: ignore[arg-type]
            )
        ).choice
        assert made is not None
        return None if made.kernel is None else (made.kernel.kernel.name, made.kernel.blocks)

    assert kernel(select="SYMK_ST+^SYMK_STMC", min_ctas=6, max_ctas=6) == ("AllGather_ST", 6)
    assert kernel(select="SYMK_LL+^SYMK_LLMC", max_ctas=1) == ("AllGather_LL", 1)
    assert kernel(select="RING") is None
    assert kernel(select="SYMK_LD,RING") is None, "LD reduces"


def test_fewer_channels_take_longer() -> None:
    """All-reduce of 8 MiB by rings on 4 of the 24 channels."""
    times_ps = [
        clusim.collective(
            "dgx-h100",
            "allreduce",
            "8MiB",
            version="2.31",
            wanted=CallConfig("RING_SIMPLE", min_ctas=count, max_ctas=count),
        ).time_ps
        for count in (4, 24)
    ]
    assert times_ps[0] > 2 * times_ps[1]


def test_calls_of_one_job_are_configured_one_by_one() -> None:
    fabric = topology.load("dgx-h100")
    nccl = Communicators(fabric, parse_version("2.31"))
    builder = ProgramBuilder(fabric.num_ranks, "two calls")
    moved = CollectivePayload("allreduce", 64 << 20)
    for config in (CallConfig("RING_SIMPLE", max_ctas=3), CallConfig("TREE_SIMPLE", max_ctas=7)):
        nccl.collective(Site(builder), range(8), moved, config)
    calls = builder.build().calls
    assert [(call.algorithm, call.channels) for call in calls] == [("ring", 3), ("tree", 7)]
