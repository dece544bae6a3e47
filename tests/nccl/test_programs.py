"""NCCL's plans as programs compute the definition, and move what the traffic model says."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.base.terms.operations import Collective
from clusim.engine.abi import Op
from clusim.engine.image import OPCODES
from clusim.nccl import communicator
from clusim.nccl.communicator import Communicator
from clusim.nccl.constants import LATEST, Version, parse_version
from clusim.nccl.env import parse_env
from clusim.nccl.explain import traffic
from clusim.nccl.programs import CollectivePayload, build, emit_messages
from clusim.nccl.programs.messages import rounds
from clusim.schedule import Schedule
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.schedule.dtypes import element
from clusim.schedule.iteration import prim_totals
from clusim.schedule.semantics import verify
from clusim.topology import Fabric, load

GRID = parse_version("2.18.5")
MACHINES = (
    ("dgx-a100", 1),
    ("dgx-h100", 1),
    ("a100x4-mesh", 1),
    ("hgx-h100-ndr", 2),
    ("polaris", 2),
)
OPERATIONS = ("allreduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
PATTERNS = ("alltoall", "gather", "scatter", "sendrecv")
COLLNET = {"NCCL_COLLNET_ENABLE": "1"}


@cache
def machine(name: str, nodes: int = 1) -> Fabric:
    """Return a preset; `nodes` counts for those that are clusters."""
    return load(name, nodes=nodes) if nodes > 1 else load(name)


def comm_of(
    name: str, nodes: int = 1, version: Version = LATEST, ranks: Any = None, **env: str
) -> Communicator:
    """Return a communicator under an environment."""
    return communicator(machine(name, nodes), version, parse_env(env), ranks=ranks)


def assert_right(schedule: Schedule, **how: Any) -> None:
    """Fail unless every call computes its definition."""
    for check in verify(schedule, **how):
        assert check.ok, (schedule.name, schedule.calls[check.call].algorithm, check)


@pytest.mark.parametrize("version", [GRID, LATEST], ids=str)
@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_the_tuners_choice_and_messages_are_right(name: str, nodes: int, version: Version) -> None:
    comm = comm_of(name, nodes, version)
    fabric = machine(name, nodes)
    for size in (20, 100_012):
        # Messages of 16 ranks on many channels are many: one release and the small size are enough there.
        many = name == "hgx-h100-ndr" and (version == GRID or size > 20)
        patterns = () if many else PATTERNS
        for operation in (*OPERATIONS, *patterns):
            assert_right(build(fabric, comm, CollectivePayload(operation, size)))


@pytest.mark.covering(2)
@pytest.mark.parametrize("proto", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("algo", ["Ring", "Tree"])
@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_rings_and_trees_of_all_protocols_are_right(
    name: str, nodes: int, algo: str, proto: str
) -> None:
    comm = comm_of(name, nodes, NCCL_ALGO=algo, NCCL_PROTO=proto)
    for operation in OPERATIONS if algo == "Ring" else ("allreduce",):
        schedule = build(machine(name, nodes), comm, CollectivePayload(operation, 200_004))
        assert (schedule.calls[0].algorithm, schedule.calls[0].protocol) == (
            algo.lower(),
            proto.lower(),
        )
        assert_right(schedule)


SPECIAL = (
    ("NVLS", "allreduce", "dgx-h100", 1, 1, {}),
    ("NVLS", "all_gather", "dgx-h100", 1, 1, {}),
    ("NVLS", "reduce_scatter", "dgx-h100", 1, 1, {}),
    ("NVLS", "allreduce", "hgx-h100-ndr", 2, 1, COLLNET),
    ("NVLSTree", "allreduce", "hgx-h100-ndr", 2, 1, {}),
    ("NVLSTree", "allreduce", "hgx-h100-ndr", 3, 1, {}),
    ("CollNetDirect", "allreduce", "hgx-h100-ndr", 2, 1, COLLNET),
    ("CollNetChain", "allreduce", "hgx-h100-ndr", 2, 1, COLLNET),
    ("PAT", "all_gather", "hgx-h100-ndr", 3, 8, {}),
    ("PAT", "reduce_scatter", "hgx-h100-ndr", 3, 8, {}),
)


@pytest.mark.parametrize(("algo", "operation", "name", "nodes", "every", "env"), SPECIAL)
def test_algorithms_are_right_untimed_and_in_the_engines_order(
    algo: str, operation: str, name: str, nodes: int, every: int, env: dict[str, str]
) -> None:
    fabric = machine(name, nodes)
    ranks = range(0, fabric.num_ranks, every)
    comm = comm_of(name, nodes, ranks=ranks, NCCL_ALGO=algo, **env)
    for dtype, redop, elements in (
        ("float32", "sum", 25_003),
        ("bf16", "max", 7),
        ("int8", "min", 5),
    ):
        size = elements * element(dtype).size_bytes
        schedule = build(fabric, comm, CollectivePayload(operation, size, dtype, redop))
        assert schedule.calls[0].algorithm == algo.lower()
        assert_right(schedule)
        assert_right(schedule, data="random")
    schedule = build(fabric, comm, CollectivePayload(operation, 60_012))
    result = clusim.simulate(fabric, schedule, verify=True)
    assert result.verified, result.verify_note


@pytest.mark.parametrize("nodes", [2, 5, 8])
@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_pat_is_right_for_any_number_of_machines(operation: str, nodes: int) -> None:
    fabric = machine("hgx-h100-ndr", nodes)
    comm = comm_of("hgx-h100-ndr", nodes, ranks=range(0, 8 * nodes, 8), NCCL_ALGO="PAT")
    for size in (4 * nodes, 100_012, 3_000_004):
        schedule = build(fabric, comm, CollectivePayload(operation, size))
        assert_right(schedule)


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_pat_runs_on_more_machines_than_flags_are_kept_for(operation: str) -> None:
    fabric = machine("hgx-h100-ndr", 70)
    comm = comm_of("hgx-h100-ndr", 70, ranks=range(0, 8 * 70, 8), NCCL_ALGO="PAT")
    result = clusim.simulate(
        fabric, build(fabric, comm, CollectivePayload(operation, 70 * 64)), verify=True
    )
    assert result.verified, result.verify_note


@pytest.mark.parametrize("nodes", [5])
def test_nvls_tree_is_right_where_heads_have_two_children(nodes: int) -> None:
    ranks = [8 * node + local for node in range(nodes) for local in (0, 3)]
    comm = comm_of("hgx-h100-ndr", nodes, ranks=ranks, NCCL_ALGO="NVLSTree")
    assert_right(
        build(machine("hgx-h100-ndr", nodes), comm, CollectivePayload("allreduce", 300_004))
    )


def test_pat_sends_every_block_once_and_few_far() -> None:
    comm = comm_of("hgx-h100-ndr", 8, ranks=range(0, 64, 8), NCCL_ALGO="PAT")
    schedule = build(machine("hgx-h100-ndr", 8), comm, CollectivePayload("all_gather", 8 * 4096))
    sends: dict[int, int] = {}
    for instance in schedule.instances:
        for prim in schedule.templates[instance.template].prims:
            if prim.op in ("send", "copySend") and instance.rank == 0:
                pipe = schedule.connections[instance.connections[prim.send]]
                sends[pipe.dst] = sends.get(pipe.dst, 0) + 1
    channels = len({instance.channel for instance in schedule.instances})
    # Down the ranks: the peer 4 away gets one block, 2 away two, 1 away four.
    assert sends == {32: channels, 48: 2 * channels, 56: 4 * channels}


@pytest.mark.parametrize(("name", "nodes"), [*MACHINES, ("dgx-1v", 1), ("hgx-h100-ndr", 3)])
def test_every_pair_meets_in_exactly_one_round(name: str, nodes: int) -> None:
    comm = comm_of(name, nodes)
    count = len(comm.ranks)
    table = rounds(comm)
    met = [(src, dst) for peers in table for src, dst in enumerate(peers)]
    assert len(met) == len(set(met)) == count * count
    for peers in table:
        assert sorted(peers) == list(range(count))


def test_messages_of_any_size_arrive() -> None:
    fabric = machine("dgx-h100")
    builder = ProgramBuilder(8, "messages")
    sizes = [(0, 1, 5), (1, 0, 70_001), (3, 3, 9), (7, 2, 3_000_000)]
    tasks = emit_messages(Site(builder), fabric, comm_of("dgx-h100"), sizes)
    assert len(tasks) == 8
    result = clusim.simulate(fabric, builder.build())
    assert 0 < result.time_ps < 10**9
    with pytest.raises(InputError, match=r"ranks 0\.\.7"):
        emit_messages(Site(builder), fabric, comm_of("dgx-h100"), [(0, 8, 1)])


def test_what_is_not_modelled_is_one_clear_error() -> None:
    comm = comm_of("dgx-h100")
    with pytest.raises(InputError, match="not one of NCCL's"):
        build(machine("dgx-h100"), comm, CollectivePayload("frobnicate", 1024))


def sent(comm: Communicator, schedule: Schedule) -> tuple[list[int], list[int]]:
    """Return the bytes that every position sends over data connections: in its machine, and to others."""
    machine_of = {
        comm.ranks[p]: number for number, own in enumerate(comm.machines) for p in own.ranks
    }
    inside, outside = [0] * len(comm.ranks), [0] * len(comm.ranks)
    position = {rank: p for p, rank in enumerate(comm.ranks)}
    for instance in schedule.instances:
        template = schedule.templates[instance.template]
        for prim in template.prims:
            if not OPCODES[prim.op].flags & Op.SEND:
                continue
            pipe = schedule.connections[instance.connections[prim.send]]
            if pipe.kind == "data":
                same = machine_of[pipe.src] == machine_of[pipe.dst]
                size = prim_totals(instance, template, prim)[0]
                (inside if same else outside)[position[pipe.src]] += size
    return inside, outside


@pytest.mark.parametrize(("name", "nodes"), MACHINES)
@pytest.mark.parametrize("algo", ["Ring", "Tree"])
def test_volumes_are_those_of_the_traffic_model(algo: str, name: str, nodes: int) -> None:
    comm = comm_of(name, nodes, NCCL_ALGO=algo, NCCL_PROTO="Simple")
    size = 48 << 20
    for collective in (
        (Collective.ALLREDUCE, Collective.ALLGATHER) if algo == "Ring" else (Collective.ALLREDUCE,)
    ):
        plan = comm.plan(collective, size)
        wanted = traffic(comm, collective, plan)
        assert wanted is not None
        operation = "allreduce" if collective is Collective.ALLREDUCE else "all_gather"
        schedule = build(machine(name, nodes), comm, CollectivePayload(operation, size), plan)
        inside, outside = sent(comm, schedule)
        assert min(inside) == pytest.approx(wanted.gpu_bytes[0], rel=0.01)
        assert max(inside) == pytest.approx(wanted.gpu_bytes[1], rel=0.01)
        if wanted.adapter_bytes is not None:
            adapters = len(comm.machines[0].adapters)
            least, most = (bytes_ * adapters * nodes for bytes_ in wanted.adapter_bytes)
            assert 0.99 * least <= sum(outside) <= 1.01 * most


def test_heads_halve_what_a_ring_sends_between_machines() -> None:
    size = 16 << 20
    per_machine = {}
    for algo in ("Ring", "NVLSTree"):
        comm = comm_of("hgx-h100-ndr", 2, NCCL_ALGO=algo, NCCL_PROTO="Simple")
        schedule = build(machine("hgx-h100-ndr", 2), comm, CollectivePayload("allreduce", size))
        per_machine[algo] = sum(sent(comm, schedule)[1]) / 2
    # A ring of n = 16 sends 2(n-1)/n of the size; a tree of two machines the size once, up or down.
    assert per_machine["Ring"] == pytest.approx(size * 30 / 16, rel=0.01)
    assert per_machine["NVLSTree"] == pytest.approx(size, rel=0.001)


def test_both_trees_of_heads_use_both_adapters_of_a_gpu() -> None:
    """The inner node of one tree sends three times a leaf's bytes, and is a leaf of the other: one NIC for a tree
    would have three times the other's bytes."""
    comm = comm_of("aws-p5en", 4, NCCL_ALGO="NVLSTree", NCCL_PROTO="Simple")
    schedule = build(machine("aws-p5en", 4), comm, CollectivePayload("allreduce", 64 << 20))
    rails: dict[tuple[int, int], Counter[int]] = {}
    for connection in schedule.connections:
        if connection.rail >= 0:
            tree = connection.channel % 2
            rails.setdefault((connection.dst, tree), Counter())[connection.rail] += 1
    assert {tree for _, tree in rails} == {0, 1}
    for used in rails.values():
        first, second = used.values()
        assert first == second


def test_ragged_blocks_are_covered_by_the_parts_of_channels() -> None:
    comm = comm_of("dgx-a100")
    for elements in (1, 7, 9, 100_003, 1_000_001):
        for operation in ("all_gather", "reduce_scatter"):
            assert_right(
                build(machine("dgx-a100"), comm, CollectivePayload(operation, 4 * elements))
            )
