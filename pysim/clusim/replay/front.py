"""Finds out what a recording is and replays it."""

from __future__ import annotations

from dataclasses import replace as changed
from importlib import import_module
from typing import Any

from clusim.errors import InputError
from clusim.recording.model import Recording
from clusim.replay.logjob import replay_log
from clusim.replay.report import Replay
from clusim.replay.request import Request
from clusim.replay.whole import replay_recording

__all__ = ["Request", "replay"]

LOGS = ("nccl-log", "nccl-tests")
"""Kinds that `clusim.logs` reads."""


def replay(request: Request, kind: str = "") -> Replay:
    """Replay a recording.

    Parameters
    ----------
    kind : str
        Its format; empty is found out.
    """
    detect = _detector()
    kind = kind.replace("_", "-") or _kind_of(request.files[0], detect)
    if kind in LOGS:
        return replay_log(changed(request, gap=request.gap or "none"))
    readers = dict(getattr(detect, "KINDS", {}))
    reader = readers.get(kind) or readers.get(kind.replace("-", "_"))
    if reader is None:
        known = ", ".join(sorted({*LOGS, *readers}))
        raise InputError(
            f"{request.files[0]}: kind {kind!r} cannot be replayed; it is one of {known}"
        )
    read: Any = getattr(reader, "read", reader)
    recording: Recording = read(list(request.files) if len(request.files) > 1 else request.files[0])
    if not isinstance(recording, Recording):
        raise InputError(
            f"{request.files[0]}: a {kind} file is an algorithm and no recording; run it with clusim run"
        )
    return replay_recording(recording, changed(request, gap=request.gap or "logged"))


def _detector() -> Any:
    """Return the module that tells formats apart."""
    try:
        return import_module("clusim.recording.readers.detect")
    except ModuleNotFoundError:
        return None


def _kind_of(name: str, detect: Any) -> str:
    if name == "-" or detect is None:
        return LOGS[0]
    return str(detect.kind_of(name)).replace("_", "-")
