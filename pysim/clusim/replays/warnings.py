"""Doubts about a replay: printed first, with the option that settles them."""

from __future__ import annotations

from statistics import median

from clusim.base.units import format_size
from clusim.replays.placing import Placed
from clusim.replays.report import Replay, fastest_memory
from clusim.replays.request import ReplayRequest
from clusim.topology.warnings import doubts_of, refuse

FAR = 0.5
"""Median relative error above which predicted times are doubtful."""


def placed_doubts(placed: Placed, hosts: int, ranks: int) -> list[str]:
    """Return doubts about the placement: more ranks than GPUs on a node, assumed chips."""
    result = []
    size = placed.fabric.num_ranks // max(1, placed.fabric.num_zones)
    if ranks > size * hosts:
        result.append(
            f"{ranks} ranks on {hosts} node{'s' * (hosts != 1)}, but one of {placed.fabric.name} has {size} GPUs;"
            " --topology names the right machine, --nodes how many there are"
        )
    return [*result, *doubts_of(placed.fabric)]


def gate(found: Replay, request: ReplayRequest) -> Replay:
    """Add doubts and notes from the measured times.

    Raises
    ------
    InputError
        There are doubts, and `request.strict` is set.
    """
    errors = [abs(call.error) for call in found.calls if call.error is not None]
    if errors and median(errors) > FAR:
        found.doubts.append(
            f"predicted times are {median(errors):.0%} off the measured ones (median of {len(errors)} calls):"
            f" probably not {found.fabric}; --topology names the machine, --xml takes NCCL's dump of it"
        )
    found.notes += _not_compared(found)
    found.doubts = list(dict.fromkeys(found.doubts))
    if request.strict:
        refuse(found.doubts, found.source)
    return found


def _not_compared(found: Replay) -> list[str]:
    """Return notes on measured times that are not compared, with the reason."""
    lines = []
    wrong = [call for call in found.calls if call.impossible]
    if wrong:
        call, most = wrong[0], fastest_memory().bytes_per_s / 1e9
        lines.append(
            f"implausible times of {len(wrong)} calls are not compared: {call.operation} of"
            f" {format_size(call.bytes)} in {call.measured_us:g} us, but the memory of no known GPU"
            f" carries more than {most:g} GB/s"
        )
    waits = [
        call for call in found.calls if call.waits and call.error is None and not call.impossible
    ]
    if waits:
        ranks = min(call.recorded_by for call in waits)
        lines.append(
            f"measured times of {len(waits)} calls include waiting for ranks that did not record (as few as {ranks} of"
            f" {waits[0].num_ranks} did): they are upper bounds and not compared"
        )
    return lines
