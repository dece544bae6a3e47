"""The schedule that ``clusim run`` asks for: an algorithm by its name, or what NCCL would run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusim.errors import InputError

if TYPE_CHECKING:
    from clusim.fabric import Fabric
    from clusim.schedule import Schedule

__all__ = ["wanted_schedule"]


def wanted_schedule(machine: Fabric, options: Mapping[str, Any]) -> Schedule:
    """Return the schedule of the options of ``clusim run`` on a fabric, of which broken parts are left out."""
    from clusim import collectives

    operation = collectives.operation_name(options["collective"])
    size_bytes = 0 if operation == "barrier" else options["size"]
    if options["algorithm"] == "nccl":
        return _of_nccl(machine, operation, size_bytes, options)
    for name, given in (("--env", options["environment"]), ("--nccl-version", options["version"])):
        if given:
            raise InputError(f"{name} is for what NCCL chooses; add --algorithm nccl")
    return collectives.build(
        machine,
        operation,
        options["algorithm"],
        size_bytes,
        ranks=options["ranks"],
        channels=options["channels"],
        protocol=options["protocol"] or "",
        dtype=options["dtype"],
        redop=options["redop"],
        root=options["root"],
    )


def _of_nccl(
    machine: Fabric, operation: str, size_bytes: int, options: Mapping[str, Any]
) -> Schedule:
    from clusim.nccl import (
        LATEST,
        communicator,
        parse_assignments,
        parse_env,
        parse_version,
        programs,
    )

    for name, variable in (("channels", "NCCL_MAX_NCHANNELS"), ("protocol", "NCCL_PROTO")):
        if options[name] is not None:
            raise InputError(
                f"--{name} is not for --algorithm nccl, which chooses itself; use --env {variable}=..."
            )
    version = parse_version(options["version"]) if options["version"] else LATEST
    settings = parse_env(parse_assignments(options["environment"]))
    comm = communicator(machine, version, settings, ranks=options["ranks"])
    root = options["root"]
    if root is not None and root not in comm.ranks:
        raise InputError(f"--root {root}: is not among the ranks that take part")
    return programs.build(
        machine,
        comm,
        operation,
        size_bytes,
        dtype=options["dtype"],
        redop=options["redop"],
        root=-1 if root is None else comm.ranks.index(root),
    )
