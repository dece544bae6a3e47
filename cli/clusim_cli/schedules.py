"""The schedule that ``clusim run`` asks for: an algorithm by its name, or what NCCL would run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusim.errors import InputError

if TYPE_CHECKING:
    from clusim.fabric import Fabric
    from clusim.schedule import Schedule

__all__ = ["can_verify", "is_plan", "planned"]


def planned(
    machine: Fabric, known: Fabric, options: Mapping[str, Any]
) -> tuple[Schedule, list[str]]:
    """Return the schedule of the options of ``clusim run``, and what must be said of it.

    Parameters
    ----------
    known : Fabric
        What is left of the machine at the start, on which the plan is made.
    """
    from clusim.lowering import plan_change

    notes: list[str] = []
    schedule = wanted_schedule(known, options, notes)
    if known is not machine:
        notes.append(plan_change(wanted_schedule(machine, options, []).calls, schedule.calls))
    return schedule, notes


def wanted_schedule(machine: Fabric, options: Mapping[str, Any], notes: list[str]) -> Schedule:
    """Return the schedule of the options of ``clusim run`` on a fabric; what must be said of it is put into `notes`."""
    from clusim import collectives

    operation = collectives.operation_name(options["collective"])
    size_bytes = 0 if operation == "barrier" else options["size"]
    if options["algorithm"] == "nccl":
        return _of_nccl(machine, operation, size_bytes, options, notes)
    if is_plan(options["algorithm"]):
        return _of_plan(machine, operation, size_bytes, options)
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


def is_plan(algorithm: str | None) -> bool:
    """Return whether an algorithm is the file of a plan."""
    return str(algorithm).lower().endswith((".xml", ".json"))


def can_verify(schedule: Schedule) -> bool:
    """Return whether data can be checked: a plan of its own kind has no definition to compare with."""
    return all(call.operation != "messages" for call in schedule.calls)


def _of_plan(
    machine: Fabric, operation: str, size_bytes: int, options: Mapping[str, Any]
) -> Schedule:
    """Return the schedule of a plan of MSCCL or MSCCL++, which says itself which collective it is."""
    from clusim.recording.plans import msccl, mscclpp

    path = options["algorithm"]
    for name, flag in (
        ("environment", "--env"),
        ("version", "--nccl-version"),
        ("channels", "--channels"),
    ):
        if options[name]:
            raise InputError(f"{flag} is not for {path}, a plan that has its own channels")
    names = ("ranks", "dtype", "redop", "root")
    fields = {name: options[name] for name in names} | {"protocol": options["protocol"] or ""}
    if path.lower().endswith(".xml"):
        plan = msccl.read_plan(path)
        _check_operation(path, operation, plan.operation)
        return msccl.build(plan, machine, size_bytes, **fields)
    newer = mscclpp.read_plan(path)
    _check_operation(path, operation, newer.operation)
    return mscclpp.build(newer, machine, size_bytes, **fields)


def _check_operation(path: str, asked: str, found: str) -> None:
    if asked not in ("allreduce", found):
        raise InputError(f"{path}: is {found}, not {asked}; leave out --collective")


def _of_nccl(
    machine: Fabric,
    operation: str,
    size_bytes: int,
    options: Mapping[str, Any],
    notes: list[str],
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
    notes += comm.notes
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
