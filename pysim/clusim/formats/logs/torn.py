"""Logs with lines that ranks wrote into each other: torn names are merged, torn handles dropped and counted.

A process with a torn host name is recognised by its number, and its few lines are assigned to the right
process. Handles only in torn lines are dropped: incomplete handles, handles of torn communicator ids or
numbers of ranks, and second handles of a rank that a process with more lines has. Logs without torn lines are
not modified.
"""

from __future__ import annotations

from collections import Counter

from clusim.formats.logs.columns import NONE
from clusim.formats.logs.raw_log import Member, RawLog

_FEW, _MANY, _RECENT = 3, 10, 256

_SHARE = 4
"""A process with this factor fewer lines than is usual in its log may be a torn name."""

_MOST_MEMBERS = 1 << 14
"""Maximum number of handles that are compared; larger jobs do not write all handles into one file."""


def merge_torn_names(facts: RawLog) -> None:
    """Assign the lines of processes with torn host names to the right processes."""
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
    """Move handles of torn processes to the right processes; return the handles to be merged."""
    replaced: dict[int, int] = {}
    for old, new in moved.items():
        handles = facts.processes[new].members
        for number in facts.processes[old].members:
            lost = facts.members[number]
            lost.process = new
            same = [
                m
                for m in handles[-_RECENT:]
                if facts.members[m].run == lost.run
                and (lost.rank == NONE or facts.members[m].rank in (NONE, lost.rank))
                and lost.pointer in (0, facts.members[m].pointer)
            ]
            if same:
                replaced[number] = same[-1]
                kept = facts.members[same[-1]]
                kept.comm_id = kept.comm_id or lost.comm_id
                kept.pointer = kept.pointer or lost.pointer
            else:
                handles.append(number)
    return replaced


def drop_torn_handles(facts: RawLog) -> None:
    """Mark the handles of lines torn by other ranks, in runs with intact handles."""
    torn = facts.spliced or facts.cut_calls or facts.rejoined
    if not torn or len(facts.members) > _MOST_MEMBERS:
        return
    lines = sorted(process.lines for process in facts.processes if process.lines)
    usual = lines[len(lines) * 3 // 4] if lines else 0
    few = {n for n, process in enumerate(facts.processes) if process.lines * _SHARE <= usual}
    sizes: dict[tuple[int, int], Counter[int]] = {}
    for member in facts.members:
        if member.comm_id and member.pointer:
            sizes.setdefault((member.run, member.comm_id), Counter())[member.n_ranks] += 1
    logged = {_rank_of(member) for member in facts.members if member.process not in few}
    fragments = {ident for ident in sizes if _is_fragment(ident, sizes)}
    intact = {
        number
        for number, member in enumerate(facts.members)
        if (ident := (member.run, member.comm_id)) in sizes.keys() - fragments
        and number not in facts.torn_handles
        and member.pointer
        and facts.processes[member.process].pid >= 0
        and member.n_ranks == sizes[ident].most_common(1)[0][0]
        and (member.process not in few or _rank_of(member) not in logged)
    }
    runs = {facts.members[number].run for number in intact}
    known = intact | facts.torn_handles
    dropped = {n for n, m in enumerate(facts.members) if m.run in runs and n not in known}
    facts.torn_handles |= dropped
    facts.lost_handles += len(dropped)
    for number in few:
        process = facts.processes[number]
        if process.members and facts.torn_handles.issuperset(process.members):
            process.lines = 0


def _rank_of(member: Member) -> tuple[int, int, int]:
    return member.run, member.comm_id, member.rank


def _is_fragment(ident: tuple[int, int], sizes: dict[tuple[int, int], Counter[int]]) -> bool:
    """Return True if a communicator's id is the start or the end of a more frequent id of its run."""
    run, text, times = ident[0], f"{ident[1]:x}", sizes[ident].total()
    return any(
        run == other and count.total() > times and f"{comm_id:x}" != text
        and (f"{comm_id:x}".startswith(text) or f"{comm_id:x}".endswith(text))
        for (other, comm_id), count in sizes.items()
    )  # fmt: skip
