"""Host names that collisions between ranks tore: a process is known by its number, its few odd names are mended."""

from __future__ import annotations

from clusim.formats.logs.columns import NONE
from clusim.formats.logs.raw_log import RawLog

_FEW, _MANY, _RECENT = 3, 10, 256


def merge_torn_names(facts: RawLog) -> None:
    """Give the lines of processes with torn host names to the processes they are of."""
    hosts: dict[str, int] = {}
    by_pid: dict[int, list[int]] = {}
    for number, process in enumerate(facts.processes):
        hosts[process.host] = hosts.get(process.host, 0) + process.lines
        by_pid.setdefault(process.pid, []).append(number)
    moved: dict[int, int] = {}
    for numbers in by_pid.values():
        best = max(numbers, key=lambda number: facts.processes[number].lines)
        for number in numbers:
            process = facts.processes[number]
            few = hosts[process.host] <= _FEW and process.pid != NONE
            if few and facts.processes[best].lines >= _MANY * max(process.lines, 1):
                moved[number] = best
    if not moved:
        return
    members = _move_members(facts, moved)
    for thread in facts.threads:
        thread.process = moved.get(thread.process, thread.process)
    for old, new in moved.items():
        facts.processes[new].lines += facts.processes[old].lines
        facts.processes[old].members = []
        facts.processes[old].lines = 0
    facts.torn_handles |= members.keys()
    if members:
        for rows in (facts.connections, facts.links, facts.trees, facts.nvls_trees, facts.calls):
            rows.replace("member", members)


def _move_members(facts: RawLog, moved: dict[int, int]) -> dict[int, int]:
    """Give the handles of torn processes to the right ones; return which handles are others' under a wrong name."""
    replaced: dict[int, int] = {}
    for old, new in moved.items():
        own = facts.processes[new].members
        for number in facts.processes[old].members:
            lost = facts.members[number]
            lost.process = new
            same = [
                m
                for m in own[-_RECENT:]
                if facts.members[m].run == lost.run
                and (lost.rank == NONE or facts.members[m].rank in (NONE, lost.rank))
                and lost.pointer in (0, facts.members[m].pointer)
            ]
            if same:
                replaced[number] = same[-1]
            else:
                own.append(number)
    return replaced
