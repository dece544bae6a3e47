"""Payload of a NCCL collective, from which a plan becomes a program."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.schedule.dtypes import ELEMENTS, element
from clusim.schedule.ir import ABSENT


@dataclass(frozen=True, slots=True)
class CollectivePayload:
    """Payload of a collective; see `clusim.schedule.CollectiveCall`. `root` counts in the given ranks."""

    operation: str
    bytes: int
    dtype: str = "float32"
    redop: str = "sum"
    root: int = ABSENT

    @classmethod
    def recorded(
        cls, operation: str, bytes: int, dtype: str, redop: str, root: int
    ) -> CollectivePayload:
        """Return the payload of a recorded call that programs can run.

        Unsupported types are moved as bytes, sizes are rounded to elements; a barrier is an all-reduce of one element.
        """
        if operation == "barrier":
            return cls("allreduce", 4)
        known = dtype if dtype in ELEMENTS else "uint8"
        size = element(known).size_bytes
        return cls(operation, max(size, bytes // size * size), known, redop, root)
