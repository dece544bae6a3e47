"""What programs, messages and routes take, and what preparing them is: in proportion to machines, by hand."""

from __future__ import annotations

from functools import partial
from itertools import repeat

import numpy as np
import pytest

from clusim import collectives, topology
from clusim.engine.abi import NONE
from clusim.engine.image import DTYPES, Image
from clusim.lowering import lower
from clusim.schedule.ir import Schedule
from clusim.simulation.traffic import Traffic
from clusim.simulation.traffic_image import to_image
from clusim.topology.arrays import arrays_of
from support.work import calls_of, held_bytes

GPUS = 8
CHANNELS = 2
KINDS = ("rail", "fat-tree", "dragonfly")
WORK = ("conns", "instances", "inst_conns", "tasks", "succ", "prims", "templates", "costs")


def machine(kind: str, machines: int) -> topology.Fabric:
    return topology.load(f"dgx-h100:nodes={machines},kind={kind}")


def allreduce(on: topology.Fabric, algorithm: str, channels: int = CHANNELS) -> Schedule:
    return collectives.build(on, "allreduce", algorithm, 1 << 30, channels=channels)


def rows(image: Image) -> dict[str, int]:
    return {name: len(getattr(image, name)) for name in WORK}


@pytest.mark.parametrize("machines", [8, 128])
def test_a_ring_takes_nine_programs_and_connections_per_machine_and_channel(machines: int) -> None:
    """Eight GPUs send to the next; the one that leaves the machine has a proxy, with a connection to it."""
    on = machine("fat-tree", machines)
    image = lower(on, allreduce(on, "ring", 24)).image
    count = (GPUS + 1) * machines * 24
    assert rows(image) | {"tasks": 0, "costs": 0} == {
        **{"conns": count, "instances": count, "inst_conns": 2 * count},
        **{"tasks": 0, "succ": 0, "prims": 9, "templates": 2, "costs": 0},
    }
    assert len(image.tasks) == 2 * GPUS * machines  # of GPUs, and of proxies beside them


def test_programs_are_rows_of_104_bytes_connections_of_120_and_messages_of_32() -> None:
    sizes = {"instances": 104, "conns": 120, "inst_conns": 4, "tasks": 56}
    sizes |= {"sources": 40, "messages": 32}
    assert {name: DTYPES[name].itemsize for name in sizes} == sizes


def test_a_message_is_a_row_and_nothing_else() -> None:
    on = machine("fat-tree", 2)
    image = to_image(on, traffic := Traffic("alltoall", 4096, 4096), traffic.plan(arrays_of(on)))
    assert len(image.messages) == 2 * GPUS * (2 * GPUS - 1)
    assert rows(image) == dict.fromkeys(WORK, 0)


@pytest.mark.parametrize(("algorithm", "channels"), [("ring", 16), ("sharp", 4)])
def test_a_program_takes_less_than_240_bytes_of_python_on_64_ranks_and_on_1024(
    algorithm: str, channels: int
) -> None:
    each = []
    for machines in (8, 128):
        found = allreduce(machine("rail", machines), algorithm, channels)
        each.append(held_bytes(found) / (len(found.instances) + len(found.connections)))
    assert max(each) < 240
    assert each[1] == pytest.approx(each[0], rel=0.05)


def test_sharp_takes_208_programs_and_connections_per_machine_and_channel() -> None:
    """Per GPU: five programs; flags of two kinds to all eight, two to itself, two multicasts and the tree."""
    for machines in (8, 32):
        image = lower(on := machine("rail", machines), allreduce(on, "sharp")).image
        each = machines * CHANNELS * GPUS
        assert (len(image.instances), len(image.conns)) == (5 * each, (2 * GPUS + 5) * each)


@pytest.mark.parametrize(("kind", "algorithm"), [*zip(KINDS, repeat("ring")), ("rail", "sharp")])
def test_four_times_the_machines_are_four_times_the_work(kind: str, algorithm: str) -> None:
    """Calls of functions: a member that looks at all members makes it sixteen times."""
    work = []
    for machines in (8, 32):
        on = machine(kind, machines)
        arrays_of(on)
        made = calls_of(partial(allreduce, on, algorithm, 1))
        work.append((made, calls_of(partial(lower, on, allreduce(on, algorithm, 1)))))
    (made, lowered), (more_made, more_lowered) = work
    assert more_made < 4 * made
    assert more_lowered < 4 * lowered


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("machines", [16, 64])
def test_routes_are_600_rows_a_machine_and_one_per_switch_and_nic(kind: str, machines: int) -> None:
    arrays = arrays_of(machine(kind, machines))
    switches = int(np.count_nonzero(arrays.nodes["zone"] == NONE))
    own = len(arrays.routes) - switches * GPUS * machines
    assert 0 < own < 600 * machines


@pytest.mark.parametrize("kind", KINDS)
def test_wires_grow_with_machines(kind: str) -> None:
    few, many = (arrays_of(machine(kind, machines)) for machines in (64, 256))
    for name in ("nodes", "wires", "endpoints", "targets"):
        assert len(getattr(many, name)) < 4.3 * len(getattr(few, name)), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_wires_from_a_node_are_all_that_leave_it_in_order(kind: str) -> None:
    arrays = arrays_of(machine(kind, 4))
    for node in range(len(arrays.nodes)):
        assert (
            arrays.wires_from(node).tolist() == np.flatnonzero(arrays.wires["src"] == node).tolist()
        )
