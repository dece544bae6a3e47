"""Bandwidth that channels under construction have taken from the links of a system."""

from __future__ import annotations

from clusim.nccl.constants import Path, peer_overhead
from clusim.nccl.system import Device, Route, System


class Ledger:
    """Free bandwidth of every link; channels take from it and give back."""

    def __init__(self, system: System) -> None:
        self.version = system.version
        self.left = [0.0] * system.num_links
        devices = [*system.gpus, *system.cpus, *system.others, *system.adapters]
        for device in devices:
            for link in device.links:
                self.left[link.number] = link.rate
        self.adapter_left = [net.speed_GBps for net in system.adapters]
        self._plans: dict[tuple[int, bool], list[tuple[int, bool, int]]] = {}
        self._narrow: dict[int, bool] = {}

    def take(self, route: Route, start: Device, rate: float) -> bool:
        """Take `rate` [GB/s] from every link of a path; take nothing and return False if one has too little."""
        steps = self._steps(route, start)
        host_rate = peer_overhead(rate, self.version) if self._narrow[id(route)] else rate
        left = self.left
        for done, (number, is_pci, back) in enumerate(steps):
            forward = host_rate if is_pci else rate
            if left[number] < forward or (back >= 0 and left[back] < forward / 8):
                self._move(steps[:done], -rate, -host_rate)
                return False
            self._one(number, is_pci, back, rate, host_rate)
        return True

    def give(self, route: Route, start: Device, rate: float) -> None:
        """Give back what `take` took."""
        steps = self._steps(route, start)
        host_rate = peer_overhead(rate, self.version) if self._narrow[id(route)] else rate
        self._move(steps, -rate, -host_rate)

    def _move(self, steps: list[tuple[int, bool, int]], rate: float, host_rate: float) -> None:
        for number, is_pci, back in steps:
            self._one(number, is_pci, back, rate, host_rate)

    def _one(self, number: int, is_pci: bool, back: int, rate: float, host_rate: float) -> None:
        forward = host_rate if is_pci else rate
        # Three decimals, so that taking and giving back does not drift.
        self.left[number] = round(self.left[number] - forward, 3)
        if back >= 0:
            self.left[back] = round(self.left[back] - forward / 8, 3)

    def _steps(self, route: Route, start: Device) -> list[tuple[int, bool, int]]:
        """Return number, whether PCIe, and the opposite link if it is charged, of every link of a path."""
        key = (id(route), start.kind == "gpu")
        found = self._plans.get(key)
        if found is None:
            # A GPU before Ampere that receives from a host or an adapter loses an eighth in the other direction.
            found = [
                (
                    link.number,
                    link.kind == "pci",
                    link.back
                    if link.remote.kind == "gpu"
                    and link.remote.capability < 80
                    and start.kind != "gpu"
                    else -1,
                )
                for link in route.links
            ]
            self._plans[key] = found
            self._narrow[id(route)] = (
                route.type == Path.PHB
                and start.kind == "gpu"
                and any(
                    link.remote.kind == "cpu" and link.remote.cpu.vendor == "intel"
                    for link in route.links
                )
            )
        return found
