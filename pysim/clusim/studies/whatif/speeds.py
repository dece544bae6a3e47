"""Systems and runs with faster or slower components, and systems without a transport.

Transports that can be off are P2P, GPUDirect, PXN, and host memory between ranks.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from clusim.analysis.whatif import THINGS, Change, changed_image, factor_of
from clusim.base.errors import InputError
from clusim.base.units import Rate
from clusim.engine.image import DTYPES, Image
from clusim.simulation.job import Job
from clusim.topology import Fabric

SWITCHES: dict[str, dict[str, Any]] = {
    "p2p": {"p2p_level": "loc"},
    "gpudirect": {"gdr_level": "loc"},
    "pxn": {"pxn": False},
    "shm": {"shm": False},
}
"""Transports that can be off, and their topology keys; NCCL's variables set the same keys."""

_ACS = (
    "ACS sends traffic between devices below a PCIe switch up through the root complex, and routes of topologies do not"
    " depend on the port a packet came from; 'p2p off' and 'gpudirect off' are what is usually done about it"
)


class TransportOff:
    """Transport that a system does not use, as a change of its topology."""

    of_links = True

    def __init__(self, what: str) -> None:
        self.what = what

    def machine(self, fabric: Fabric) -> Fabric:
        """Return a system without the transport.

        Raises
        ------
        InputError
            The transport is already off, or data have no other path.
        """
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


class Speed:
    """Component that is `factor` times as fast.

    It is a class of links, links by their ends, or one of `clusim.analysis.whatif.THINGS`.
    """

    def __init__(self, what: str, factor: Fraction) -> None:
        self.what, self.factor = what, factor

    @property
    def of_links(self) -> bool:
        """True if links change, on which plans depend."""
        return self.what not in THINGS

    def machine(self, fabric: Fabric) -> Fabric:
        """Return a system with faster links; raise `InputError` if no link matches."""
        links, result = [], False
        for link in fabric.links:
            names = (link.cls, link.name, f"{link.a}-{link.b}", f"{link.b}-{link.a}")
            mine = any(fnmatchcase(name, self.what) for name in names)
            result |= mine
            rate = Fraction(link.rate.num, link.rate.den) * (self.factor if mine else 1)
            links.append(replace(link, rate=Rate(rate.numerator, rate.denominator)))
        if not result:
            classes = ", ".join(sorted({link.cls for link in fabric.links}))
            raise InputError(
                f"{self.what} x{self.factor}: {fabric.name} has no such links; use a class ({classes}), ends such as"
                f" '{fabric.links[0].a}-{fabric.links[0].b}', or {', '.join(THINGS)}"
            )
        return replace(fabric, links=tuple(links))

    def job(self, job: Job) -> Job:
        """Return a run with a faster component on which plans do not depend."""
        arrays = {name: getattr(job.image, name) for name in DTYPES}
        fields = changed_image(arrays, Change(self.what, self.factor))
        fields = {name: values.astype(DTYPES[name]) for name, values in fields.items()}
        return replace(job, image=Image(nvc=job.image.nvc, seed=job.image.seed, **fields))


def speed_of(text: str) -> Speed | None:
    """Return the change in ``nvlink x2``; None for other text."""
    words = text.split()
    if len(words) != 2 or not words[1].lower().startswith("x"):
        return None
    return Speed(words[0], factor_of(text, words[1]))
