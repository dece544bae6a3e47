"""Overlay of a partial topology XML on a node, as NCCL completes ``NCCL_TOPO_FILE``.

Such files, of cloud vendors for their virtual machines, place GPUs and NICs and contain little more.
NCCL keeps the values of the file, drops devices that do not exist, and queries the system for the rest;
here another XML replaces the system. Devices are matched by PCI address or, if no address of the file
occurs in that XML (a preset's are synthetic), by their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from clusim.base.limits import fail, printable
from clusim.base.xmltext import XmlElement, parse_xml
from clusim.formats.topologies.common import Assumption
from clusim.formats.topologies.identify import HIDDEN, BusId, bus_id

_FILE = "the file that is put onto it"
_COMPARED = {
    "link_speed": "speed",
    "link_width": "lanes",
    "class": "class",
    "device": "device",
}
_TOLD = {"link_speed": "told_speed", "link_width": "told_width"}
_LINKS = ("nvlink", "xgmi")


@dataclass(slots=True)
class Combined:
    """The combined XML, and the differences between the file and the node below it."""

    text: str
    differences: list[Assumption] = field(default_factory=list)


def combine(text: str, where: str, machine: str, name: str) -> Combined:
    """Overlay the XML `text`, of a file called `where`, on the XML of a node called `name`.

    Raises
    ------
    TopologyError
        One of them is not such an XML, or they have no device in common.
    """
    overrides, real = parse_xml(text, where), parse_xml(machine, name)
    for root, which in ((overrides, where), (real, name)):
        if root.tag != "system" or root.all("group"):
            raise fail(
                which, root.line, "not a topology XML of one node: no <system>"
            )
    work = _Overlay(overrides, real, name)
    work.run(where)
    return Combined("\n".join([*overrides.lines(), ""]), work.differences)


class _Overlay:
    """Completion of `told` by `real`."""

    def __init__(self, overrides: XmlElement, real: XmlElement, name: str) -> None:
        self.told, self.real, self.name = overrides, real, name
        self.differences: list[Assumption] = []
        self.same: dict[
            int, XmlElement
        ] = {}  # id() of a device of the node -> device of the file
        self.parent = {
            id(c): element for element in real.walk() for c in element.children
        }

    def run(self, where: str) -> None:
        self._match(where)
        twins = {
            id(self.same.get(id(other))): other
            for other in reversed([*self._devices(self.real)])
        }
        for mine in list(self._devices(self.told)):
            if (other := twins.get(id(mine))) is not None:
                self._fill(mine, other)
        self._processors()
        self._drop(self.told)
        for other in list(self._devices(self.real)):
            if id(other) not in self.same and not other.all("pci"):
                self._place(other)
        self._targets()

    @staticmethod
    def _devices(root: XmlElement) -> Iterator[XmlElement]:
        return (element for element in root.walk() if element.tag == "pci")

    def note(self, where: str, value: str, why: str) -> None:
        """Note a difference."""
        item = Assumption(printable(where, 60), value, why)
        if item not in self.differences:
            self.differences.append(item)

    # Matching of devices.

    def _match(self, where: str) -> None:
        mine = {
            bus_id(e.get("busid")): e
            for e in self._devices(self.told)
            if e.get("busid")
        }
        for other in self._devices(self.real):
            result = mine.get(bus_id(other.get("busid")))
            if result is not None and _kind(result) in ("", _kind(other)):
                self.same[id(other)] = result
        if any(
            _kind(other)
            for other in self._devices(self.real)
            if id(other) in self.same
        ):
            return
        self.same = {}
        for kind in ("gpu", "nic"):
            overrides, real = (
                [e for e in self._devices(r) if _kind(e) == kind]
                for r in (self.told, self.real)
            )
            if not overrides or not real:
                continue
            if len(overrides) != len(real):
                message = f"has {len(overrides)} {kind}s, none at an address of {self.name}, which has {len(real)}"
                raise fail(where, overrides[0].line, message)
            overrides.sort(key=_address)
            real.sort(key=_place_of)
            self.same |= {
                id(other): mine for other, mine in zip(real, overrides, strict=True)
            }
            self.note(
                f"{len(overrides)} {kind}s", f"identified with {self.name}'s in the order of addresses",
                "no address of the file is one of the node",
            )  # fmt: skip
        if not self.same:
            raise fail(
                where, 0,
                f"no GPU or NIC of {self.name} in the file: addresses differ, and devices are without class",
            )  # fmt: skip

    # Devices in both.

    def _fill(self, mine: XmlElement, other: XmlElement) -> None:
        """Fill in a device's missing attributes from the node, and note differences."""
        for name, value in other.attributes.items():
            override = mine.get(name)
            if not override or (name == "link_width" and override == "0"):
                mine.attributes[name] = value
            elif (
                name in _COMPARED
                and _plain(override) != _plain(value)
                and value not in ("", "0")
            ):
                override_text = f"{_COMPARED[name]} {printable(override, 24)}"
                difference, why = (
                    f"{override_text}, as in the file",
                    f"{self.name} has {printable(value, 24)}",
                )
                if name in _TOLD:
                    # NCCL reads the value of the file; data use the link of the node.
                    mine.attributes[name], mine.attributes[_TOLD[name]] = (
                        value,
                        override,
                    )
                    difference, why = (
                        f"NCCL reads {override_text}",
                        f"{why}, which data use",
                    )
                self.note(mine.get("busid"), difference, why)
        for child in other.children:
            if child.tag not in ("gpu", "nic"):
                continue
            result = next(iter(mine.all(child.tag)), None)
            if result is None:
                mine.children.append(child)
            elif child.tag == "gpu":
                self._fill_gpu(result, child, mine.get("busid"))
            else:
                self._fill_nets(result, child)

    def _fill_gpu(self, mine: XmlElement, other: XmlElement, where: str) -> None:
        """Fill in a GPU; NCCL reads the NVLinks of the file, but the node's NVLinks exist."""
        for name, value in other.attributes.items():
            mine.attributes.setdefault(name, value)
        link_elements = mine.all(*_LINKS)
        mine.children = [
            child for child in mine.children if child not in link_elements
        ]
        if link_elements:
            mine.children.append(XmlElement.of("told", *link_elements))
            counts = [
                sum(e.integer("count") or 0 for e in links)
                for links in (link_elements, other.all(*_LINKS))
            ]
            if counts[0] != counts[1]:
                self.note(
                    where, f"NCCL reads {counts[0]} NVLinks",
                    f"{self.name} has {counts[1]}, which data use",
                )  # fmt: skip
        mine.children += [
            c for c in other.children if c.tag in _LINKS or not mine.all(c.tag)
        ]

    @staticmethod
    def _fill_nets(mine: XmlElement, other: XmlElement) -> None:
        """Fill in interfaces by name, otherwise in their order."""
        names = {net.get("name") for net in other.all("net")}
        unnamed = [net for net in mine.all("net") if net.get("name") not in names]
        for net in other.all("net"):
            same = [
                one for one in mine.all("net") if one.get("name") == net.get("name")
            ]
            result = same[0] if same else unnamed.pop(0) if unnamed else None
            if result is None:
                mine.children.append(net)
                continue
            for name, value in net.attributes.items():
                result.attributes.setdefault(name, value)

    def _processors(self) -> None:
        """Fill in processors from the one with most of their devices, else by number."""
        real = {cpu.get("numaid"): cpu for cpu in self.real.all("cpu")}
        homes: dict[int, Counter[str]] = {}
        for other in self._devices(self.real):
            result = self.same.get(id(other))
            if result is not None:
                top = _top(self.told, result)
                home = _top(self.real, other)
                if top is not None and home is not None:
                    homes.setdefault(id(top), Counter())[home.get("numaid")] += 1
        for cpu in self.told.all("cpu"):
            usual = homes.get(id(cpu))
            number = usual.most_common(1)[0][0] if usual else cpu.get("numaid")
            if number != cpu.get("numaid") and usual:
                self.note(
                    f"CPU {cpu.get('numaid')}", "its devices, as in the file",
                    f"{self.name} has them at CPU {number}",
                )  # fmt: skip
            filled = real.get(number)
            for name, value in (
                filled.attributes.items() if filled is not None else ()
            ):
                if not cpu.get(name):
                    cpu.attributes[name] = value

    # Devices in one of the two.

    def _drop(self, element: XmlElement) -> None:
        """Drop GPUs and NICs of the file that the node does not have; NCCL does not find them."""
        kept_ids = {id(result) for result in self.same.values()}
        for child in list(element.children):
            self._drop(child)
            if (
                child.tag == "pci"
                and id(child) not in kept_ids
                and not child.all("pci")
            ):
                element.children.remove(child)
                self.note(
                    child.get("busid"),
                    "ignored",
                    f"no device of that address in {self.name}",
                )

    def _place(self, other: XmlElement) -> None:
        """Add a device that the file does not mention, at its position in the node."""
        self._home(self.parent[id(other)]).children.append(other)
        if _kind(other):
            self.note(
                other.get("busid"),
                "where the node has it",
                f"{_FILE} does not mention it",
            )

    def _home(self, other: XmlElement) -> XmlElement:
        """Return the file's element for a switch or CPU of the node; add it if it is missing."""
        if other.tag == "system":
            return self.told
        result = self.same.get(id(other))
        if result is None and other.tag == "cpu":
            cpus = self.told.all("cpu")
            result = next(
                (cpu for cpu in cpus if cpu.get("numaid") == other.get("numaid")),
                None,
            )
        if result is None:
            result = XmlElement(
                other.tag, dict(other.attributes), other.line, other.where
            )
            self._home(self.parent[id(other)]).children.append(result)
        self.same[id(other)] = result
        return result

    def _targets(self) -> None:
        """Change targets of the node's links to the addresses of its GPUs in the file."""
        moved: dict[BusId, str] = {}
        for other in self._devices(self.real):
            result = self.same.get(id(other))
            if result is not None and other.get("busid") and result is not other:
                moved[bus_id(other.get("busid"))] = result.get("busid")
        for gpu in (element for element in self.told.walk() if element.tag == "gpu"):
            for link in gpu.all(*_LINKS):
                target = bus_id(link.get("target"))
                if target != HIDDEN and target in moved:
                    link.attributes["target"] = moved[target]


def _kind(element: XmlElement) -> str:
    """Return ``gpu`` or ``nic``; empty for another device or an unknown class."""
    text = element.get("class").lower()
    if element.all("gpu") or text.startswith(("0x03", "0x12")):
        return "gpu"
    return "nic" if element.all("nic") or text.startswith("0x02") else ""


def _address(element: XmlElement) -> tuple[int, ...]:
    """Return the PCI address of a device as sortable numbers."""
    result = bus_id(element.get("busid"))
    return result if isinstance(result, tuple) else ()


def _place_of(element: XmlElement) -> tuple[int, ...]:
    """Return the number of a GPU or a NIC, and its address."""
    inner = [child for child in element.walk() if child.tag in ("gpu", "net")]
    number = inner[0].integer("dev") if inner else None
    return (-1 if number is None else number, *_address(element))


def _top(root: XmlElement, element: XmlElement) -> XmlElement | None:
    """Return the CPU that a device is below."""
    return next(
        (cpu for cpu in root.all("cpu") if any(e is element for e in cpu.walk())),
        None,
    )


def _plain(value: str) -> str:
    """Return a speed or number in a normal form: ``16 GT/s`` is written in several ways."""
    word = value.lower().partition("gt/s")[0].strip()
    try:
        return f"{float(word):g}"
    except ValueError:
        return word
