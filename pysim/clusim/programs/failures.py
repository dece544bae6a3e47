"""Errors of a program: the line that caused them, and remedies for code that only a GPU runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from clusim.base.errors import ClusimError, InputError

if TYPE_CHECKING:
    from clusim.programs.repeated import DispatchedOperator

_LIBRARIES = frozenset(
    {
        "torch",
        "clusim",
        "clusim_cli",
        "triton",
        "threading",
        "contextlib",
        "functools",
    }
)
"""Packages that are not the program."""

_MAIN = threading.main_thread().ident

AS_OPERATOR = (
    "make it an operator (torch.library.custom_op and register_fake) and state its time"
    " (clusim.torch.annotate)"
)


def program_line() -> str:
    """Return file and line of the innermost frame of the program.

    In threads without such a frame, as of PyTorch's backward pass, the main thread's.
    """
    line = _line(_outwards(sys._getframe()))
    if not line and threading.get_ident() != _MAIN:
        line = _line(_outwards(sys._current_frames().get(_MAIN or 0)))
    return line


def raised_at(error: BaseException) -> str:
    """Return file and line of the innermost frame of the program in an error's traceback."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return _line(reversed(frames))


def locate(error: ClusimError) -> None:
    """Put the line of the program before the text of an error, unless that names the file."""
    text, line = str(error), raised_at(error)
    if line and line.partition(":")[0] not in text:
        error.args = (f"{line}: {text}",)


def explain_failure(error: BaseException) -> ClusimError | None:
    """Return the error of code that only a GPU runs; None for other errors."""
    trace, packages = error.__traceback__, set()
    while trace is not None:
        packages.add(_package(trace.tb_frame))
        trace = trace.tb_next
    reason = ""
    if (
        isinstance(error, AttributeError)
        and getattr(error.obj, "__name__", "") == "torch._C"
    ):
        reason = (
            f"torch._C.{error.name} of CUDA builds is not simulated; omit the call"
        )
    elif "triton" in packages:
        reason = f"kernels of Triton do not run ({str(error)[:60] or type(error).__name__}); {AS_OPERATOR}"
    elif isinstance(error, OSError) and "CUDA_HOME" in str(error):
        reason = f"extensions in CUDA are not compiled; {AS_OPERATOR}"
    if not reason:
        return None
    result = InputError(reason).with_traceback(error.__traceback__)
    locate(result)
    return result


def _outwards(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _line(frames: Iterator[tuple[FrameType, int]]) -> str:
    for frame, number in frames:
        name = frame.f_code.co_filename
        if not name.startswith("<") and _package(frame) not in _LIBRARIES:
            return f"{name}:{number}"
    return ""


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "").partition(".")[0]


def remedy_for(error: Exception, operator: DispatchedOperator) -> str:
    """Return why an operator lacks a result without data, and the remedy; empty for errors of the program."""
    import torch
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedOperatorException,
    )

    if isinstance(error, DynamicOutputShapeException | DataDependentOutputException):
        return (
            ": its result depends on values that are not simulated; --data real computes them, or use fixed shapes"
            " (masks, torch.where, torch.topk) or values of the host"
        )
    absent = isinstance(error, UnsupportedOperatorException | NotImplementedError)
    if not absent and "fake impl" not in str(error):
        return ""
    if any(tensor.layout is not torch.strided for tensor in operator.tensors):
        return (
            " of sparse tensors is not simulated; use sparse=False, and sparse gradients outside"
            " DistributedDataParallel (NCCL reduces dense tensors only)"
        )
    return " lacks a rule for the shape of its result; register one with torch.library.register_fake"
