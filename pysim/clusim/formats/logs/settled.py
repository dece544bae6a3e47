"""Handles of communicators in logs whose lines ranks wrote into each other: what is torn is what it is a part of.

What is whole is known from many lines: hosts, processes, ids and addresses of communicators, numbers of ranks. A part
of one of these (an id that lacks its last digits, a process number of which the first are gone) is that one, if it can
be only one; else it is left out and counted. Nothing of this is done where no line was torn.
"""

from __future__ import annotations

from collections import Counter

from clusim.formats.logs.columns import NONE
from clusim.formats.logs.raw_log import Member, Process, RawLog

_SHARE = 4
"""A process with so many times fewer lines than the usual one of its log may be a torn name."""

_MOST_MEMBERS = 1 << 14
"""Handles up to which they are settled; a job of so many does not write all of them into one file."""


def settle_torn(facts: RawLog) -> None:
    """Give what torn lines say to the handles it is about; leave out what cannot be told."""
    torn = facts.spliced or facts.cut_calls or facts.rejoined
    if not torn or len(facts.members) > _MOST_MEMBERS:
        return
    lost = _processes(facts)
    _numbers(facts)
    moved: dict[int, int] = {}
    for process in facts.processes:
        for run in {facts.members[number].run for number in process.members}:
            own = [n for n in process.members if facts.members[n].run == run and n not in lost]
            moved |= _handles(facts, own, lost)
    moved |= _headless(facts, lost)
    _without_ids(facts, lost | moved.keys())
    for old, new in moved.items():
        _take_over(facts.members[new], facts.members[old])
    if moved:
        facts.settle()
        for rows in (facts.connections, facts.links, facts.trees, facts.nvls_trees, facts.calls):
            rows.replace("member", moved)
    facts.torn_handles |= lost | moved.keys()
    facts.lost_handles += len(lost)


def _part_of(part: str, whole: str) -> bool:
    """Return whether a text is what is left of another: its begin or its end."""
    return part != whole and len(part) > 0 and (whole.startswith(part) or whole.endswith(part))


def _processes(facts: RawLog) -> set[int]:
    """Give handles of torn processes to the whole ones; return those that are nobody's."""
    lines = sorted(process.lines for process in facts.processes if process.lines)
    usual = lines[len(lines) * 3 // 4] if lines else 0
    whole = [p for p in facts.processes if p.lines and p.lines * _SHARE > usual]
    lost: set[int] = set()
    for number, process in enumerate(facts.processes):
        if not process.members or process.lines * _SHARE > usual or process.pid < 0:
            continue
        fitting = [
            other
            for other in whole
            if (
                process.host == other.host
                or _part_of(process.host, other.host)
                or _part_of(other.host, process.host)
            )
            and (process.pid == other.pid or _part_of(str(process.pid), str(other.pid)))
        ]
        alone = process.host not in {other.host for other in whole} and not any(
            _part_of(process.host, other.host) or _part_of(other.host, process.host)
            for other in whole
        )
        if alone or (not fitting and _missed(facts, process, whole)):
            continue  # a host or a process of which there are few lines
        if len(fitting) == 1:
            new = facts.processes.index(fitting[0])
            for handle in process.members:
                facts.members[handle].process = new
            fitting[0].members += process.members
            fitting[0].lines += process.lines
        else:
            lost.update(process.members)
        for thread in facts.threads:
            if thread.process == number and len(fitting) == 1:
                thread.process = facts.processes.index(fitting[0])
        process.members, process.lines = [], 0
    return lost


def _missed(facts: RawLog, process: Process, whole: list[Process]) -> bool:
    """Return whether a process of few lines is a rank that a whole process's communicator lacks."""
    if process.host not in {other.host for other in whole}:
        return False
    own = {
        (m.comm_id, m.n_ranks, m.rank) for n in process.members if (m := facts.members[n]).comm_id
    }
    others = [facts.members[n] for other in whole for n in other.members if other is not process]
    ranks = {(m.comm_id, m.n_ranks, m.rank) for m in others}
    known = {(m.comm_id, m.n_ranks) for m in others}
    return bool(own) and all(key[:2] in known and key[2] != NONE for key in own) and not own & ranks


def _numbers(facts: RawLog) -> None:
    """Mend ids that lack digits, and numbers of ranks that few handles of an id have."""
    ids = Counter(member.comm_id for member in facts.members if member.comm_id)
    for torn, times in ids.items():
        whole = [
            other
            for other, often in ids.items()
            if often > times and _part_of(f"{torn:x}", f"{other:x}")
        ]
        if len(whole) == 1:
            for member in facts.members:
                if member.comm_id == torn:
                    member.comm_id = whole[0]
    sizes: dict[int, Counter[int]] = {}
    for member in facts.members:
        if member.comm_id and member.n_ranks != NONE:
            sizes.setdefault(member.comm_id, Counter())[member.n_ranks] += 1
    for member in facts.members:
        if member.comm_id in sizes:
            member.n_ranks = sizes[member.comm_id].most_common(1)[0][0]
            member.rank = member.rank if member.rank < member.n_ranks else NONE


def _handles(facts: RawLog, own: list[int], lost: set[int]) -> dict[int, int]:
    """Return which handles of a process are parts of which; those of which nothing is known are lost."""
    whole = [n for n in own if facts.members[n].comm_id and facts.members[n].pointer]
    moved: dict[int, int] = {}
    known: dict[tuple[int, int], int] = {}
    for (
        number
    ) in whole:  # two whole handles of one rank of one communicator: one of their addresses is torn
        member = facts.members[number]
        first = known.setdefault((member.comm_id, member.rank), number)
        if first != number and member.rank != NONE:
            moved[number] = first
    for number in own:
        member = facts.members[number]
        if number in whole or member.comm_id:
            continue
        fitting = [n for n in dict.fromkeys(known.values()) if _same(member, facts.members[n])]
        if len(fitting) == 1:
            moved[number] = fitting[0]
        elif known:
            lost.add(number)
    return moved


def _headless(facts: RawLog, lost: set[int]) -> dict[int, int]:
    """Return whose the handles are of which only lines without headers speak: those of their addresses."""
    of: dict[tuple[int, int], list[int]] = {}
    headless = []
    for process in facts.processes:
        for number in process.members:
            member = facts.members[number]
            if process.pid < 0 and not member.comm_id:
                headless.append(number)
            elif member.comm_id and member.pointer:
                of.setdefault((member.run, member.pointer), []).append(number)
    found = {n: of.get((facts.members[n].run, facts.members[n].pointer), []) for n in headless}
    known = {run for run, _ in of}
    lost.update(n for n, same in found.items() if len(same) != 1 and facts.members[n].run in known)
    return {number: same[0] for number, same in found.items() if len(same) == 1}


def _without_ids(facts: RawLog, done: set[int]) -> None:
    """Give handles of which no line says the id that of the one communicator that lacks ranks of other processes."""
    handles = [n for n in range(len(facts.members)) if n not in done]
    of: dict[tuple[int, int, int], list[int]] = {}
    for number in handles:
        member = facts.members[number]
        if member.comm_id:
            of.setdefault((member.run, member.comm_id, member.n_ranks), []).append(number)
    for number in handles:
        member = facts.members[number]
        if member.comm_id or not member.pointer or facts.processes[member.process].pid < 0:
            continue
        fitting = [
            key
            for key, own in of.items()
            if key[0] == member.run
            and key[2] == member.n_ranks > len(own)
            and member.process not in {facts.members[n].process for n in own}
        ]
        if len(fitting) == 1:
            member.comm_id = fitting[0][1]
            of[fitting[0]].append(number)
        elif any(key[0] == member.run for key in of):
            facts.torn_handles.add(number)
            facts.lost_handles += 1


def _same(part: Member, whole: Member) -> bool:
    """Return whether a handle without an id may be one that has it."""
    if part.pointer and not _part_of(f"{part.pointer:x}", f"{whole.pointer:x}"):
        return False
    return part.rank in (NONE, whole.rank) or whole.rank == NONE


def _take_over(new: Member, old: Member) -> None:
    """Add what was said of a part to the whole."""
    new.orders = old.orders | new.orders
    new.counts = new.counts or old.counts
    new.system = new.system or old.system
    new.patterns = new.patterns or old.patterns
    new.costs = new.costs or old.costs
    new.paths = old.paths | new.paths
    new.complete |= old.complete
    for name in ("rank", "bus", "nvml", "n_nodes", "local_rank", "local_ranks"):
        if getattr(new, name) == NONE:
            setattr(new, name, getattr(old, name))
