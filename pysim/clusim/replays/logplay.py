"""Play of a log's calls by their times, in isolation and together.

One operation represents all ranks of a call: calls of a communicator and of a stream run in sequence, communicators run
concurrently, and calls that overlap slow each other (`clusim.jobs.joint`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np

from clusim.formats.logs.calls import CallTable
from clusim.jobs.model import CallWork, JobGraph
from clusim.jobs.player import CallBundle, CallTimer, JobTimes, Player


def timed_calls(table: CallTable, timed: int) -> int:
    """Return the number of calls before the first one that is not among the first `timed` distinct calls."""
    unknown = np.flatnonzero(np.array(table.call) >= timed)
    return int(unknown[0]) if len(unknown) else len(table.call)


def play_log(
    table: CallTable, gap: str | int, bundles: Sequence[CallBundle], times: CallTimer
) -> tuple[int, Counter[str]]:
    """Return the time of the calls before the first one without a bundle [ps], and their overlaps as `Player` does.

    Parameters
    ----------
    gap : str or int
        As in `ReplayRequest`.
    bundles : sequence of CallBundle
        Of the first distinct calls.
    """
    count = timed_calls(table, len(bundles))
    call = np.array(table.call[:count], np.int64)
    comm = np.array([one.comm for one in table.distinct], np.int64)[call]
    stream = np.array(table.stream[:count], np.int64)
    # Times of days have more digits than 64 bits.
    earliest_ps = np.zeros(count, object)
    if gap == "logged":
        time_ns = np.array(table.time_ns, object)
        earliest_ps += 1000 * (time_ns - time_ns[time_ns >= 0].min())[:count]
    gap_ps = gap if isinstance(gap, int) else 0
    if (comm == comm[0]).all() or (stream == max(0, stream[0])).all():
        # Calls in sequence: the last starts after all before it, and after the latest that its earliest start delays.
        each_ps = np.array([bundle.time_ps for bundle in bundles], object)[call]
        before_ps = np.cumsum(each_ps + gap_ps) - each_ps - gap_ps
        late_ps = max(0, (earliest_ps - before_ps).max())
        return int(late_ps + before_ps[-1] + each_ps[-1]), Counter()
    works = [CallWork(one.operation, one.bytes, one.dtype) for one in table.distinct]
    rows = zip(comm.tolist(), stream.tolist(), strict=True)
    job = JobGraph(
        "log",
        1,
        rank=array("q", [0]) * count,
        stream=[f"{one}" if one >= 0 else f"of {number}" for number, one in rows],
        work=[works[number] for number in call],
        deps=[()] * count,
        group=array("q", comm.tolist()),
    )
    of_call = {at: bundles[number] for at, number in enumerate(call)}
    needs = JobTimes(
        [0] * count,
        of_call,
        0,
        gap_ps,
        earliest_ps.tolist(),
    )
    player = Player(job, needs, times)
    return player.play(), player.overlaps
