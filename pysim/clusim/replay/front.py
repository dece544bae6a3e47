"""Finds out what a recording is and replays it."""

from __future__ import annotations

from dataclasses import replace as changed

from clusim.errors import InputError
from clusim.recording.readers.detect import KINDS, LOGS, PLANS, kind_of, reader
from clusim.replay.logjob import replay_log
from clusim.replay.report import Replay
from clusim.replay.request import Request
from clusim.replay.whole import replay_recording

__all__ = ["Request", "replay"]


def replay(request: Request, kind: str = "") -> Replay:
    """Replay a recording.

    Parameters
    ----------
    kind : str
        Its format; empty is found out.
    """
    first = request.files[0]
    kind = kind.replace("_", "-") or kind_of(first)
    if kind in LOGS:
        return replay_log(changed(request, gap=request.gap or "none"))
    if kind in PLANS:
        raise InputError(
            f"{first}: a {kind} file is an algorithm and no recording; run it with `clusim run --algorithm {first}`"
        )
    if kind not in KINDS:
        known = ", ".join(sorted({*LOGS, *KINDS}))
        raise InputError(f"{first}: kind {kind!r} cannot be replayed; it is one of {known}")
    recording = reader(kind)(list(request.files) if len(request.files) > 1 else first)
    return replay_recording(recording, changed(request, gap=request.gap or "logged"))
