"""Facts of a topology that NCCL's XML does not represent, in a comment that NCCL skips.

The comment is ``<!-- clusim: {...} -->``, with JSON: the network between nodes, NCCL's settings on the system, the
models of NICs and PCIe switches, PCIe slots with a small payload, the memory of processors and the links between
them. An importer uses them where it would
otherwise assume the usual hardware; the elements of the file decide everything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import field
from typing import Any

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.formats.topologies.identify import BusId, bus_id
from clusim.hardware import ADAPTERS, CROSSBARS, LINKS

_COMMENT = re.compile(r"<!--\s*clusim:\s*(\{.*?\})\s*-->", re.DOTALL)
_MAX_CHARS = 1_000_000

SETTINGS = ("p2p_level", "gdr_level", "gdr_read", "pxn", "nvb", "shm")
"""Settings of a topology that a node's XML does not represent."""


@dataclass(slots=True)
class Socket:
    """Links between two NUMA nodes."""

    a: int
    b: int
    type: str
    count: int


@dataclass(slots=True)
class Remarks:
    """Content of the comment.

    Attributes
    ----------
    network : dict
        Key ``network`` of topology files.
    settings : dict
        Keys of topology files that set NCCL's transports, see `SETTINGS`.
    nics : dict
        Definitions of NICs that are not in the catalogue.
    models : dict
        PCI address -> model of a NIC or PCIe switch.
    slots : dict
        PCI address -> type of the PCIe link of a device.
    latencies : dict
        PCI address -> latency of a device, if it differs from its model's.
    memory : dict
        NUMA node -> type of its memory.
    sockets : list of Socket or None
        Links between NUMA nodes; None: not stated.
    """

    network: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    nics: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[BusId, str] = field(default_factory=dict)
    slots: dict[BusId, str] = field(default_factory=dict)
    latencies: dict[BusId, str] = field(default_factory=dict)
    memory: dict[int, str] = field(default_factory=dict)
    sockets: list[Socket] | None = None

    def comment(self) -> str:
        """Return the comment."""
        data: dict[str, Any] = {
            "network": self.network,
            "settings": self.settings,
            "nics": self.nics,
            "models": _by_value(self.models),
            "slots": _by_value(self.slots),
            "latencies": _by_value(self.latencies),
            "memory": self.memory,
        }
        data = {key: value for key, value in data.items() if value}
        if self.sockets is not None:
            data["sockets"] = [
                [one.a, one.b, one.type, one.count] for one in self.sockets
            ]
        text = json.dumps(data)
        # A comment must not contain two hyphens.
        return f"<!-- clusim: {text} -->" if "--" not in text else ""


def _by_value(addresses: dict[BusId, str]) -> dict[str, list[str]]:
    """Return the PCI addresses of each value."""
    result: dict[str, list[str]] = {}
    for address, value in addresses.items():
        result.setdefault(value, []).append(str(address))
    return result


def read_remarks(text: str, fail: Callable[[str], Exception]) -> Remarks:
    """Return the content of the comment of an XML file; empty without one.

    Parameters
    ----------
    fail : callable
        Returns the error of the file with a message.
    """
    match = _COMMENT.search(text[:_MAX_CHARS])
    if match is None:
        return Remarks()
    try:
        return _read(json.loads(match[1]))
    except InputError as error:
        message = str(error)
    except (ValueError, TypeError, AttributeError, RecursionError):
        message = "not the JSON that `clusim topo export` writes"
    raise fail(
        f"comment 'clusim:': {message}; delete the comment to import without it"
    )


def _read(data: dict[str, Any]) -> Remarks:
    result = Remarks(network=dict(data.get("network", {})))
    result.nics = {
        str(name): dict(keys) for name, keys in data.get("nics", {}).items()
    }
    for model, addresses in data.get("models", {}).items():
        if (
            model not in ADAPTERS
            and model not in CROSSBARS
            and model not in result.nics
        ):
            raise InputError(f"no NIC and no switch is called {model[:40]!r}")
        result.models |= {bus_id(str(address)): str(model) for address in addresses}
    for slot, addresses in data.get("slots", {}).items():
        result.slots |= {
            bus_id(str(address)): _link(slot, "pcie") for address in addresses
        }
    for latency, addresses in data.get("latencies", {}).items():
        result.latencies |= {
            bus_id(str(address)): str(latency) for address in addresses
        }
    settings = dict(data.get("settings", {}))
    result.settings = {key: settings[key] for key in SETTINGS if key in settings}
    for numa, memory in data.get("memory", {}).items():
        result.memory[int(numa)] = _link(f"dram-{memory}", "dram").removeprefix(
            "dram-"
        )
    if "sockets" in data:
        result.sockets = [
            Socket(
                int(a), int(b), _link(str(kind), "numa"), max(1, min(int(count), 64))
            )
            for a, b, kind, count in data["sockets"]
        ]
    return result


def _link(name: str, cls: str) -> str:
    """Return the name of a known link type of a class."""
    if name not in LINKS or LINKS[name]["class"].value != cls:
        raise InputError(f"{name[:40]!r} is not a link of class {cls}")
    return name
