"""PCIe switches."""

from __future__ import annotations

from clusim.hardware.figures import Figure, assumed, published
from clusim.hardware.switch import Switch

_PLX = published("110ns", "PLX/Broadcom product briefs: 100-150 ns port to port, 105-110 typical")
_LIKE_PLX = assumed("110ns", "as the PLX and Broadcom switches")
_GEN5 = assumed(
    "115ns", "as the PLX and Broadcom switches of Gen3 and Gen4, whose briefs say 105-110 ns"
)
_REST = {
    "store_and_forward": published(False, "cut-through"),
    "tier": assumed("pcie", "tier in reports"),
}


def _switch(
    name: str,
    size: tuple[int, int],
    latency: Figure,
    product: str,
    *pci_ids: tuple[int, int],
) -> Switch:
    """Return a switch of so many lanes and ports."""
    lanes, ports = size
    told = published(ports, f"{product}: {lanes} lanes, up to {ports} ports")
    return Switch(name, {"ports": told, "latency": latency, **_REST}, pci_ids)


SWITCHES = (
    _switch("plx-pex8747", (48, 5), _PLX, "PLX PEX 8747, Gen3", (0x10B5, 0x8747)),
    _switch("plx-pex8764", (64, 16), _PLX, "PLX PEX 8764, Gen3", (0x10B5, 0x8764)),
    _switch("plx-pex8796", (96, 24), _PLX, "PLX PEX 8796, Gen3", (0x10B5, 0x8796)),
    _switch("plx-pex9797", (97, 25), _PLX, "Broadcom PEX 9797, Gen3", (0x10B5, 0x9797)),
    _switch("pm40100", (100, 52), _LIKE_PLX, "Microchip Switchtec PFX 100xG4 (PCI id 11f8:4000)"),
    _switch("pex88064", (64, 64), _PLX, "Broadcom PEX 88064, Gen4"),
    _switch("pex88096", (98, 98), _PLX, "Broadcom PEX 88096, Gen4", (0x1000, 0xC010)),
    _switch("pex89104", (104, 52), _GEN5, "Broadcom PEX 89104, Gen5"),
    _switch("pex89144", (144, 72), _GEN5, "Broadcom PEX 89144, Gen5", (0x1000, 0xC030)),
    _switch(
        "cx8-switch", (48, 48), _LIKE_PLX, "PCIe switch inside ConnectX-8, Gen6", (0x15B3, 0x197C)
    ),
    Switch("pcie-switch", {"latency": _LIKE_PLX, **_REST}),
)
