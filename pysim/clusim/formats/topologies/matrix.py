"""Table of the paths between the devices of a node, printed by nvidia-smi and rocm-smi."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LEVELS = {"PIX": 1, "PSB": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
"""PCIe distance of two devices, by its word."""

MAX_DEVICES = 512

NVLINK = re.compile(r"NV([0-9]{1,3})")


@dataclass(slots=True)
class Matrix:
    """The table: device names, the word for every pair, NUMA nodes, nearby CPUs, NIC names.

    `around` is the text before the table.
    """

    names: list[str] = field(default_factory=list)
    words: dict[tuple[str, str], str] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)
    near: dict[str, str] = field(default_factory=dict)
    around: str = ""
    legend: dict[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> list[str]:
        """Names of the GPUs."""
        return [name for name in self.names if is_gpu(name)]

    def word(self, a: str, b: str) -> str:
        """Return the path between two devices, empty if it is missing in the file."""
        return self.words.get((a, b)) or self.words.get((b, a), "")

    def level(self, a: str, b: str) -> int:
        """Return the PCIe distance of two devices, 0 if the file does not contain it."""
        return LEVELS.get(self.word(a, b), 0)

    def nvlinks(self, a: str, b: str) -> int:
        """Return the number of NVLinks between two GPUs."""
        match = NVLINK.fullmatch(self.word(a, b))
        return int(match[1]) if match else 0


def is_gpu(name: str) -> bool:
    """Return True if this is the name of a GPU in a table."""
    return re.fullmatch(r"GPU[0-9]{1,4}", name) is not None
