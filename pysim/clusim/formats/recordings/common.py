"""Shared parts of readers: unrecorded peers, limits of a recording."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.engine.ranges import DURATION_END_PS
from clusim.formats.recordings.model import ABSENT, Recording

MOST_EVENTS = 2_000_000
"""Maximum number of events copied from recorded ranks to their peers."""


def tile(ranks: Sequence[int], rank: int) -> tuple[int, ...] | None:
    """Return the group of `rank` in a job divided like `ranks`; None if not a regular grid."""
    size = len(ranks)
    stride = ranks[1] - ranks[0] if size > 1 else 1
    if stride < 1 or any(ranks[i] != ranks[0] + i * stride for i in range(size)):
        return None
    block = stride * size
    if ranks[0] % block >= stride:
        return None
    first = rank // block * block + rank % stride
    return tuple(first + i * stride for i in range(size))


def clone_peers(recording: Recording) -> None:
    """Copy the events of the first recorded rank to unrecorded ranks, moved into their groups."""
    recorded = sorted({event.rank for event in recording.events})
    missing = sorted(set(range(recording.num_ranks)) - set(recorded))
    if not missing or not recorded:
        return
    source = recorded[0]
    copied = array("q", (at for at, event in enumerate(recording.events) if event.rank == source))
    used = [g for g in dict.fromkeys(recording.events[at].group for at in copied) if g >= 0]
    missing_words = f"{len(missing)} of {recording.num_ranks} ranks did not record"
    if (
        any(recording.events[at].kind in ("send", "recv") for at in copied)
        or len(copied) * len(missing) > MOST_EVENTS
    ):
        recording.assumed.append(f"{missing_words}; assumed ready as soon as a recorded rank is")
        return
    tiles = {(g, rank): tile(recording.groups[g].ranks, rank) for g in used for rank in missing}
    if any(t is None or max(t) >= recording.num_ranks for t in tiles.values()):
        recording.assumed.append(
            f"{missing_words}, and groups are not a regular grid; assumed ready as soon as a recorded rank is"
        )
        return
    recording.unrecorded = frozenset(missing)
    for rank in missing:
        moved = {ABSENT: ABSENT}
        for group in used:
            ranks = tiles[group, rank]
            assert ranks is not None
            moved[group] = recording.group(recording.groups[group].name, ranks)
        first = len(recording.events)
        for at in copied:
            event = recording.events[at]
            deps = tuple(first + bisect_left(copied, d) for d in event.deps)
            recording.events.append(replace(event, rank=rank, group=moved[event.group], deps=deps))
    recording.assumed.append(
        f"{missing_words}; assumed to do the same work as rank {source} (symmetric peers)"
    )


def finish(recording: Recording) -> Recording:
    """Complete a recording by unrecorded ranks; raise `InputError` if it contains no event to simulate."""
    if not recording.events:
        seen = "; ".join(f"{count} x {reason}" for reason, count in recording.skipped.items())
        raise InputError(
            f"{recording.name}: no event that can be simulated{': ' + seen if seen else ''}"
        )
    _check(recording)
    if not recording.alike:
        clone_peers(recording)
    return recording


def _check(recording: Recording) -> None:
    """Raise `InputError` for numbers above the limits of any job."""
    if recording.num_ranks > MOST_RANKS:
        raise InputError(f"{recording.name}: {recording.num_ranks} ranks; at most {MOST_RANKS}")
    starts = [event.start_ps for event in recording.events if event.start_ps != ABSENT]
    if starts and max(starts) - min(starts) >= DURATION_END_PS:
        raise InputError(f"{recording.name}: events more than {DURATION_END_PS // 10**12} s apart")
    for event in recording.events:
        for field in ("duration_ps", "flops", "mem_bytes", "bytes"):
            if not ABSENT <= getattr(event, field) < DURATION_END_PS:
                raise InputError(
                    f"{event.where or recording.name}: {field} of {getattr(event, field)}; must be below 2^61"
                )
