"""Every fault and change that a command accepts leaves a plan that ends, on random systems.

A plan that stalls is a defect of the change: a plan of one system used on another, channels whose path is gone, or
buffers that wait for each other. A change may be refused, with its reason.
"""

from __future__ import annotations

import random

import pytest

import clusim
from clusim.base.errors import ClusimError, DeadlockError
from clusim.base.resources import shipped_topologies
from clusim.studies.whatif.changed_system import PLACES, SWITCHES, switch_of
from clusim.topology import Fabric
from clusim.topology.pcie_paths import acs_on
from support.covering import THOROUGH

SEED = 5
EXAMPLES = 200 if THOROUGH else 20
MOST_GPUS = 32 if THOROUGH else 16
SIZES = ("4KiB", "128KiB", "1MiB", "8MiB") if THOROUGH else ("4KiB", "256KiB")
OPERATIONS = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "sendrecv")
FAULTS = ("link", "lanes", "plane", "nic", "errors", "rank")


def _fault(rng: random.Random, fabric: Fabric, kind: str) -> str:
    link = rng.choice(fabric.links)
    way = f"{link.a}-{link.b}"
    if kind == "plane":
        return f"plane {rng.choice([node.name for node in fabric.nodes if node.kind == 'switch'])} down"
    if kind == "nic":
        nics = [node.name for node in fabric.nodes if node.kind == "nic"]
        return (
            f"nic {rng.choice(nics)} flap at 5us for 20us" if nics else f"link {way} down for 20us"
        )
    if kind == "rank":
        return f"rank {rng.randrange(fabric.num_ranks)} slow x1.5"
    return f"{kind} {way} " + {"link": "down", "lanes": "1/4", "errors": "1e-9"}[kind]


def _example(seed: int) -> tuple[Fabric, tuple[str, str], str]:
    """Return a system, an operation and a size, and a change, drawn with a seed."""
    rng = random.Random(seed)
    while True:
        name, nodes = rng.choice(sorted(shipped_topologies())), rng.randint(1, 4)
        try:
            fabric = clusim.load(name, nodes=nodes)
        except ClusimError:  # e.g. a rack, which is not repeated
            continue
        if 2 <= fabric.num_ranks <= MOST_GPUS:
            break
    call = rng.choice(OPERATIONS), rng.choice(SIZES)
    if rng.random() < 0.5:
        return fabric, call, rng.choice([*SWITCHES, *PLACES])
    return fabric, call, _fault(rng, fabric, rng.choice(FAULTS))


def _run(fabric: Fabric, call: tuple[str, str], change: str) -> None:
    """Run a call on the changed system; raise `DeadlockError` if it stalls, and return if the change is refused."""
    try:
        switch = switch_of(change)
        faults = [change] if switch is None else []
        changed = fabric if switch is None else switch.machine(fabric)
        assert clusim.collective(changed, *call, seed=3, faults=faults).complete
    except DeadlockError:
        raise
    except ClusimError:
        return


@pytest.mark.parametrize("number", range(EXAMPLES))
def test_a_plan_on_a_changed_system_ends(number: int) -> None:
    fabric, call, change = _example(SEED * 1000 + number)
    print(fabric.name, fabric.num_ranks, call, change)
    _run(fabric, call, change)


@pytest.mark.parametrize("size", ["256KiB", *(["32MiB"] if THOROUGH else [])])
def test_nics_of_a_ring_of_nodes_do_not_wait_for_each_other_with_acs(size: str) -> None:
    """With common credits of data to and from a NIC, its uplink fills with data that wait for the next node's."""
    changed = acs_on(clusim.load("hgx-h100-ndr", nodes=3))
    assert clusim.collective(changed, "allreduce", size, version="2.22").complete
