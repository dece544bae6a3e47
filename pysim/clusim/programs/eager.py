"""``torch.compile`` on the simulated device: models and functions run eagerly.

**Hardware** The compiler fuses elementwise operators with their neighbours and shortens the host's work.
**Model** Operators, kernels and launches of eager PyTorch. FlexAttention is priced fused, compiled or not.
Reports name the lines that compile. **Not modelled** Everything that the compiler changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import torch

from clusim.programs.failures import program_line

_lines: Counter[str] = Counter()


def eager_lines() -> list[str]:
    """Return the lines of the program that compiled a model, or called a compiled function, in their order."""
    return list(_lines)


def install() -> None:
    """Replace ``torch.compile`` and ``Module.compile``."""
    torch.compile = _compile
    torch.nn.Module.compile = lambda *_given, **_more: _record()


def _record() -> None:
    _lines[program_line()] += 1


def _compile(model: Any = None, **more: Any) -> Any:
    if model is None:
        return lambda function: _compile(function, **more)
    if isinstance(model, torch.nn.Module):
        _record()
        return model
    fused = import_module("torch.nn.attention.flex_attention").flex_attention
    return model if model is fused else _note_first_call(model)


def _note_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records its first call: packages compile functions that a program never calls."""
    called: list[bool] = []

    @wraps(function)
    def call(*given: Any, **more: Any) -> Any:
        if not called:
            called.append(True)
            _record()
        return function(*given, **more)

    return call
