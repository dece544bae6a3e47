"""Systems on which a transport is switched off: P2P, GPUDirect, PXN, host memory between ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusim.base.errors import InputError
from clusim.topology import Fabric

SWITCHES: dict[str, dict[str, Any]] = {
    "p2p": {"p2p_level": "loc"},
    "gpudirect": {"gdr_level": "loc"},
    "pxn": {"pxn": False},
    "shm": {"shm": False},
}
"""Features that can be off, and their topology keys; NCCL's variables set the same keys."""

_ACS = (
    "ACS sends traffic between devices below a PCIe switch up through the root complex, and routes of topologies do not"
    " depend on the port a packet came from; 'p2p off' and 'gpudirect off' are what is usually done about it"
)


class TransportOff:
    """A transport that a system does without, as a change of its topology."""

    of_links = True

    def __init__(self, what: str) -> None:
        self.what = what

    def machine(self, fabric: Fabric) -> Fabric:
        """Return a system without the transport; raises `InputError` if it is off already or has no alternative."""
        keys = SWITCHES[self.what]
        if all(getattr(fabric, name) == value for name, value in keys.items()):
            raise InputError(f"{self.what} off: it is off already on {fabric.name}")
        if self.what != "shm" and not any(node.kind == "memory" for node in fabric.nodes):
            raise InputError(
                f"{self.what} off: {fabric.name} has no host memory that data could go through"
            )
        return replace(fabric, **keys)


def switch_of(text: str) -> TransportOff | None:
    """Return the change in ``p2p off``; None for other text.

    Raises
    ------
    InputError
        The transport cannot be switched on or off.
    """
    words = text.lower().split()
    if len(words) != 2 or words[1] not in ("on", "off"):
        return None
    what, state = words
    if what == "acs" and state == "on":
        raise InputError(f"acs on: not simulated: {_ACS}")
    if what not in SWITCHES or state == "on":
        known = ", ".join(f"'{name} off'" for name in SWITCHES)
        raise InputError(f"{text}: cannot be switched {state}; give {known}")
    return TransportOff(what)
