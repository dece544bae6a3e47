"""How busy the bottleneck is at large sizes: what an algorithm leaves idle must have a reason in the hardware.

`test_collectives_bytes` derives what each wire carries, so the busy share of the fullest wire is the achieved part of
the bandwidth the algorithm allows. Where a thread block (CTA) cannot do two things at once, the share that it allows is

    wire time / (wire time + what the busiest CTA does meanwhile without using the wire)

with the fixed cost of a primitive and the CTA's rate from the fabric's protocol. At least 90 % of the allowed share
must be reached on switches, 80 % on meshes, where ways of different length share wires.
"""

from __future__ import annotations

import pytest

import clusim
from clusim.collectives import build
from support.collective_laws import busy, machine, run

MIB = 1 << 20
SWITCH, MESH = 0.9, 0.8

EXCHANGES = [
    ("allreduce", "twoshot"),
    ("allreduce", "butterfly"),
    ("allreduce", "hierarchical"),
    ("reduce_scatter", "direct"),
    ("all_gather", "direct"),
    ("gather", "direct"),
    ("scatter", "direct"),
    ("alltoall", "direct"),
]
LOSSY = [("allreduce", "oneshot"), ("allreduce", "oneshot-ll"), ("allreduce", "twoshot-ll")]
NEIGHBOURS = [("allreduce", "ring"), ("sendrecv", "direct"), ("send", "direct")]
RINGS = [("all_gather", "ring"), ("reduce_scatter", "ring")]
TREES = [("allreduce", "tree"), ("broadcast", "tree"), ("reduce", "tree")]


def ids(pairs: list[tuple[str, str]]) -> list[str]:
    return ["/".join(pair) for pair in pairs]


ON_STAR = [*EXCHANGES, *LOSSY, *NEIGHBOURS, *RINGS, *TREES, ("allreduce", "naive")]


@pytest.mark.parametrize("pair", ON_STAR, ids=ids(ON_STAR))
def test_one_switch_is_full_when_endpoints_cost_nothing(pair: tuple[str, str]) -> None:
    assert busy(run(("star:8", 1), *pair, 64 * MIB, 16384, 8)) >= SWITCH


@pytest.mark.parametrize("operation", ["broadcast", "reduce"])
@pytest.mark.parametrize("size_mib", [16, 64, 256])
def test_a_chain_is_full_once_it_is_filled(operation: str, size_mib: int) -> None:
    """The last of 7 hops begins when 6 have passed the first of k chunks: each hop is busy for k of k + 6 chunk times.

    A quarter of the size for each channel, in chunks of 512 KiB.
    """
    chunks = size_mib * 1024 / 4 / 512
    found = busy(run(("star:8", 1), operation, "ring", size_mib * MIB, 16384, 4))
    assert found == pytest.approx(chunks / (chunks + 6), rel=0.02)


@pytest.mark.parametrize(("name", "channels"), [("star:8", 8), ("fully-connected:8", 7)])
def test_a_driver_uses_one_direction_at_a_time(name: str, channels: int) -> None:
    """First all whole vectors come in, then all go out: each direction of its links is busy half of the time."""
    found = busy(run((name, 1), "allreduce", "driver", 32 * MIB, 16384, channels))
    assert found == pytest.approx(1 / 2, rel=0.02)


MESHED = [*EXCHANGES, ("allreduce", "oneshot"), ("allreduce", "oneshot-ll")]


@pytest.mark.parametrize("pair", MESHED, ids=ids(MESHED))
def test_exchanges_fill_all_links_of_a_full_mesh(pair: tuple[str, str]) -> None:
    """Without a number of channels: there are as many as a rank has neighbours."""
    assert busy(run(("fully-connected:8", 1), *pair, 32 * MIB, 16384)) >= SWITCH


@pytest.mark.parametrize("pair", MESHED, ids=ids(MESHED))
def test_exchanges_fill_a_ring_of_routers(pair: tuple[str, str]) -> None:
    """Buffers that hold what waits for the longer way: shallow ones stop what would go the other way round, too."""
    assert busy(run(("ring:8,buffer=64MiB", 1), *pair, 8 * MIB, 16384, 7)) >= MESH


ON_GPUS = [*EXCHANGES, ("allreduce", "ring"), ("allreduce", "oneshot")]


@pytest.mark.covering
@pytest.mark.parametrize("pair", ON_GPUS, ids=ids(ON_GPUS))
@pytest.mark.parametrize("name", ["a100x4-mesh", "mi300x", "dgx-1v"])
def test_meshes_of_gpus_are_full(name: str, pair: tuple[str, str]) -> None:
    """Large enough for several chunks of 512 KiB per peer and channel: the last one is copied when no more come."""
    size = 64 if pair[1] == "oneshot" else 512 if pair[0] in ("gather", "scatter") else 256
    assert busy(run((name, 1), *pair, size * MIB, 16384)) >= MESH


ON_DGX = [*EXCHANGES, *NEIGHBOURS, ("reduce_scatter", "ring"), ("allreduce", "twoshot-ll")]


@pytest.mark.parametrize("pair", ON_DGX, ids=ids(ON_DGX))
def test_the_switches_of_a_dgx_are_full(pair: tuple[str, str]) -> None:
    size = 512 if pair[0] in ("gather", "scatter") else 256
    assert busy(run(("dgx-a100", 1), *pair, size * MIB, 16384)) >= SWITCH


def flight_of(name: str) -> float:
    """Return how long a message of 16 bytes takes without its two fixed costs [ps]."""
    message = build(machine(name), "send", "direct", 16, ranks=(0, 1))
    return clusim.simulate(machine(name), message).time_ps - 2 * fixed_of(name)


def fixed_of(name: str) -> int:
    """Return the fixed cost of a primitive [ps]."""
    return machine(name).protocols["simple"].fixed_ps


CHUNKS_KIB = {"tree": 128, "naive": 256 * 1024 / 24}
"""Chunks of a tree below 8 per channel and level; naive sends the 24 channels' parts of whole vectors."""

ALTERNATING = [
    # What a CTA does with each chunk: primitives, of these reads from a peer, copies that go with no transfer.
    # A fork that broadcasts reads the chunk and copies it for one child, then copies it for the other.
    ("broadcast", "tree", 2, 1, 1),
    # A fork that reduces reads from one child, then from the other.
    ("reduce", "tree", 2, 2, 0),
    # In each of 7 rounds a rank copies its vector for a peer to read, then reads another's.
    ("allreduce", "naive", 7 * 2, 7, 7),
]


@pytest.mark.parametrize(("operation", "algorithm", "prims", "reads", "copies"), ALTERNATING)
def test_a_cta_reads_or_works(
    operation: str, algorithm: str, prims: int, reads: int, copies: int
) -> None:
    """A read waits for the flight of its request and of its data."""
    name, size = "dgx-a100", 256 * MIB
    chunk_bytes = CHUNKS_KIB[algorithm] * 1024
    copy_ps = chunk_bytes / machine(name).protocols["simple"].rate_Bps("send") * 1e12
    each_ps = prims * fixed_of(name) + reads * flight_of(name) + copies * copy_ps
    working_ps = size / 24 / chunk_bytes * each_ps
    result = run((name, 1), operation, algorithm, size, 16384)
    on_wire_ps = busy(result) * result.time_ps
    assert busy(result) >= SWITCH * on_wire_ps / (on_wire_ps + working_ps)


IN_SWITCH = [
    # Per chunk one fixed cost, and no other chunk is asked for while its sum is fetched and stored. NVLS has chunks of
    # 128 KiB of an eighth of the data, multimem one chunk for each of 16 channels.
    ("allreduce", "nvls", 256 * 1024 / 8 / 16 / 128),
    ("allreduce", "multimem", 1),
    ("all_gather", "nvls", 256 * 1024 / 8 / 16 / 128),
    ("reduce_scatter", "nvls", 256 * 1024 / 8 / 16 / 128),
]


@pytest.mark.parametrize(("operation", "algorithm", "chunks"), IN_SWITCH)
def test_a_switch_reduces_one_chunk_of_a_cta_at_a_time(
    operation: str, algorithm: str, chunks: float
) -> None:
    result = run(("dgx-h100", 1), operation, algorithm, 256 * MIB, 16384)
    on_wire_ps = busy(result) * result.time_ps
    asking_ps = chunks * (fixed_of("dgx-h100") + 2 * flight_of("dgx-h100"))
    assert busy(result) >= SWITCH * on_wire_ps / (on_wire_ps + asking_ps)
    assert busy(result) >= MESH


MACHINES = [
    ("alltoall", "direct", 8),
    ("allreduce", "ring", None),
    ("allreduce", "hierarchical", None),
    ("allreduce", "sharp", None),
]


@pytest.mark.parametrize(("operation", "algorithm", "channels"), MACHINES)
def test_the_nics_of_two_machines_are_full(
    operation: str, algorithm: str, channels: int | None
) -> None:
    result = run(("dgx-a100", 2), operation, algorithm, 96 * MIB, 16384, channels)
    assert busy(result) >= MESH


def fan_in_tree(buffer: str) -> tuple[float, dict[str, int]]:
    """Return the time of one tree of eight in chunk times, and the credit stalls of hosts' wires."""
    fabric = machine(f"star:8,{buffer}", 1)
    schedule = build(fabric, "allreduce", "tree", 16 * MIB, channels=1)
    result = clusim.simulate(fabric, schedule, granularity=16384)
    chunk_ps = 512 * 1024 * (4096 + 64) / 4096 / 50e9 * 1e12
    names, waits = result.wires.names, result.wires.counters["stall_credit_ps"].tolist()
    stalls = {name.split("->")[0]: ps for name, ps in zip(names, waits, strict=True) if ps}
    return result.time_ps / chunk_ps, stalls


def test_one_tree_of_eight_lasts_three_times_its_size_and_its_depth() -> None:
    """Rank 0 is the root over 4 over 2 and 6 over the leaves: 4, 2 and 6 receive and send 3 S, in 32 chunks.

    The first chunk shares the wire into 2 and 4 with another (2 + 2), goes to the root and back (1 + 1), and its copies
    leave 4 and 6 one after the other (2 + 2): ten chunk times, of which the last three are in the 96 already or not.
    """
    chunks, stalls = fan_in_tree("buffer=1MiB")
    assert 3 * 32 + 7 <= chunks <= 3 * 32 + 10
    assert not {"host2", "host4", "host6"} & set(stalls)


def test_a_small_buffer_lets_the_way_up_of_a_tree_block_the_way_down() -> None:
    """The wire into 4 is full, packets to it fill the input buffers of 2 and 6: copies to their leaves lack credit."""
    chunks, stalls = fan_in_tree("buffer=64KiB")
    assert chunks > 3 * 32 + 20
    assert {"host2", "host6"} <= set(stalls)
