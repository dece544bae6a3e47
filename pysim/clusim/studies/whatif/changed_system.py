"""Changes of a system in the words of ``clusim what-if``, and repairs of its faults.

Other paths: P2P, GPUDirect, PXN or host memory between ranks switched off, ACS of PCIe switches switched on, NICs at
another CPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from clusim.base.errors import InputError
from clusim.replays.placing import ReplayRequest
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim.topology.pcie_paths import acs_on, rooted_nics
from clusim.training.request import TrainRequest

SWITCHES: dict[str, dict[str, Any]] = {
    "p2p off": {"p2p_level": "loc"},
    "gpudirect off": {"gdr_level": "loc"},
    "pxn off": {"pxn": False},
    "shm off": {"shm": False},
    "acs on": {"acs": True},
}
"""Changes of a system by words, and their topology keys; NCCL's variables set the same keys, but for ACS."""

PLACES = {"nics rooted": False, "nics remote": True}
"""Other places of all NICs, and whether they are at another CPU (`clusim.topology.pcie_paths.rooted_nics`)."""


class ChangedSystem:
    """Transports switched off, ACS switched on, or NICs at another place, as a change of the topology."""

    of_links = True

    def __init__(self, words: str) -> None:
        self.words = words
        self.what = words.split()[0]

    def machine(self, fabric: Fabric) -> Fabric:
        """Return the changed system.

        Raises
        ------
        InputError
            The change has no effect, or data have no other path.
        """
        if self.words in PLACES:
            return rooted_nics(fabric, remote=PLACES[self.words])
        keys, state = SWITCHES[self.words], self.words.split()[1]
        if all(getattr(fabric, name) == value for name, value in keys.items()):
            raise InputError(f"{self.words}: it is {state} already on {fabric.name}")
        if self.what in ("p2p", "gpudirect") and not any(
            node.kind == "memory" for node in fabric.nodes
        ):
            raise InputError(
                f"{self.words}: {fabric.name} has no host memory as another path"
            )
        return acs_on(fabric) if "acs" in keys else replace(fabric, **keys)


def switch_of(text: str) -> ChangedSystem | None:
    """Return the change in ``p2p off`` or ``nics remote``; None for other text.

    Raises
    ------
    InputError
        The transport cannot be switched on or off.
    """
    words = " ".join(text.lower().split())
    if words in SWITCHES or words in PLACES:
        return ChangedSystem(words)
    if words.count(" ") != 1 or not words.endswith((" on", " off")):
        return None
    listing = ", ".join(f"'{name}'" for name in SWITCHES)
    raise InputError(f"{text}: cannot be switched {words.split()[1]}; use {listing}")


REPAIRED = " repaired"
"""End of the words of a repair."""

_Asked = TypeVar("_Asked")


def repair_fault(base: _Asked, text: str) -> _Asked | None:
    """Return the baseline without the faults of ``gpu0<->nvswitch0.0 repaired`` or ``rank 3 repaired``.

    Returns
    -------
    object or None
        None for other text.

    Raises
    ------
    InputError
        The baseline is without such a fault, or is not a run or a training step.
    """
    if not text.endswith(REPAIRED):
        return None
    what = text.removesuffix(REPAIRED).strip()
    if not isinstance(base, Request | TrainRequest | ReplayRequest):
        raise InputError(
            f"what-if {text}: only of run, train and replay; leave the fault out instead"
        )
    try:
        if not isinstance(base, ReplayRequest):
            return replace(base, setup=base.setup.repaired(what))
        if base.topology is None:
            raise InputError("set the system of the replay with --topology")
        setup = Setup(base.topology, base.nodes, faults=tuple(base.faults)).repaired(
            what
        )
    except InputError as error:
        raise InputError(f"what-if {text}: {error}") from None
    return replace(
        base, topology=setup.topology, nodes=setup.nodes, faults=setup.faults
    )
