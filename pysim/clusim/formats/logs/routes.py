"""Transport in a connection line: ``P2P/CUMEM/read``, ``NET/IB/0(3)/GDRDMA/Shared``, ..."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoggedRoute:
    """Path of data from one rank to another.

    `kind` is P2P, SHM, NET or COLLNET; `how` has details (IPC, CUMEM, MNNVL, direct, indirect, or the
    network's name). `nic` and `proxy` (the rank that owns the NIC, for PXN) are -1 if they are unused.
    """

    kind: str
    how: str
    read: bool = False
    copy_engine: bool = False
    nic: int = -1
    proxy: int = -1
    gdr: bool = False
    shared: bool = False

    @property
    def label(self) -> str:
        """The transport in a few words."""
        words = [self.kind, self.how] if self.how else [self.kind]
        if self.kind in ("NET", "COLLNET"):
            words.append("GDRDMA" if self.gdr else "no GDR")
            words += ["PXN"] if self.proxy >= 0 else []
        elif self.kind == "P2P":
            words += ["read"] if self.read else []
            words += ["CE"] if self.copy_engine else []
        return " ".join(words)


_P2P = re.compile(
    r"P2P/(direct pointer|direct|IPC|CUMEM|MNNVL|indirect/(\d{1,9})\[[0-9a-f]+\]|\d{1,9})(/read)?(/CE)?"
    r"(?: comm .*)?$"
)
_SHM = re.compile(r"(?:SHM(/direct|/CE)?(/direct|/CE)?|direct shared memory)(?: comm .*)?$")
_NET = re.compile(
    r"(NET|COLLNET)/([^/]+)/(\d{1,9})(?:\((\d{1,9})\))?(/GDRDMA(?:\([A-Za-z]+\))?)?(/Shared)?(?: comm .*)?$"
)


def parse_route(text: str) -> LoggedRoute | None:
    """Return the transport written as `text`, or None if it is unknown or truncated."""
    if match := _P2P.match(text):
        how, via = match[1], match[2]
        if via is not None:
            return LoggedRoute("P2P", "indirect", proxy=int(via))
        how = "direct" if how.startswith("direct") else how
        return LoggedRoute("P2P", how, bool(match[3]), bool(match[4]))
    if match := _SHM.match(text):
        return LoggedRoute("SHM", "", copy_engine="/CE" in text)
    if match := _NET.match(text):
        proxy = -1 if match[4] is None else int(match[4])
        return LoggedRoute(
            match[1], match[2], nic=int(match[3]), proxy=proxy, gdr=match[5] is not None,
            shared=match[6] is not None,
        )  # fmt: skip
    return None
