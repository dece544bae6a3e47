"""Compiled functions of policies: machine code by numba, kept on disk, and its addresses.

A module is generated for each policy: a copy of its functions, and an entry for each with the signature of
``clusim_sender``. Its name is a digest of the text, so that numba's cache is valid as long as the text is equal.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from clusim.base.errors import InputError, lacking, one_line
from clusim.base.files import write_bytes
from clusim.base.kept import is_private, user_folder
from clusim.policies.choice import find_policy
from clusim.policies.kinds import (
    CALLS,
    RAISED,
)
from clusim.policies.sender import SenderPolicy, syntax

_HEAD = """from numba import carray, cfunc, from_dtype, int64, njit, types
import numpy as np

RECORD = from_dtype(np.dtype([{fields}]))
ROW = from_dtype(np.dtype([{row}]))
ENTRY = types.void(
    types.CPointer(RECORD), int64, int64, int64, int64, int64, types.CPointer(ROW), int64
)
"""

_ENTRY = """

@cfunc(ENTRY, cache=True)
def {name}_entry(record, now_ps, size_bytes, rtt_ps, marked, path, first_hop, num_hops):
    flow = carray(record, 1)[0]
    hops = carray(first_hop, num_hops)
    try:
        {answer}{name}({arguments})
    except Exception:
        flow.rate = {raised}
"""


def _helpers(function: Callable[..., Any], seen: dict[str, Any]) -> dict[str, Any]:
    """Add the module's functions and integers that a function uses by name to `seen`; return it."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if name in seen or not (
            isinstance(value, FunctionType) or type(value) is int
        ):
            continue
        seen[name] = value
        if isinstance(value, FunctionType):
            _helpers(value, seen)
    return seen


def _text(function: Callable[..., Any]) -> str:
    """Return the source of a function without annotations, docstring and decorators."""
    node = syntax(function)
    node.decorator_list, node.returns = [], None
    for argument in node.args.args:
        argument.annotation = None
    for part in ast.walk(node):
        if isinstance(part, ast.AnnAssign) and part.value is not None:
            part.annotation = ast.Name("int", ast.Load())
    if ast.get_docstring(node) and len(node.body) > 1:
        node.body = node.body[1:]
    return f"\n\n@njit(boundscheck=True)\n{ast.unparse(node)}\n"


def source(of: SenderPolicy) -> str:
    """Return the text of a policy's generated module."""
    used: dict[str, Any] = {}
    for function in of.functions.values():
        _helpers(function, used)
    fields = _columns(of.fields, of.state)
    parts = [_HEAD.format(fields=fields, row=_row(of))]
    parts += [
        f"\n{name} = {value}\n" if isinstance(value, int) else _text(value)
        for name, value in used.items()
    ]
    kind = of.kind
    for name, function in of.functions.items():
        passed = kind.passed.get(name) or of.arguments(name)
        entry = {
            "name": name,
            "answer": f"flow.{kind.answer} = " if kind.answer else "",
            "arguments": ", ".join(("flow", "now_ps", *passed)),
            "raised": RAISED,
        }
        parts += [_text(function), _ENTRY.format(**entry)]
    return "".join(parts)


def _columns(
    names: Iterable[str], state: Mapping[str, int | tuple[int, ...]]
) -> str:
    """Return the fields of a record for numpy: integers, and arrays of integers."""
    sizes = {
        name: (len(words),)
        for name, words in state.items()
        if isinstance(words, tuple)
    }
    return ", ".join(
        f"({name!r}, np.int64, {sizes.get(name, ())})" for name in names
    )


def _row(of: SenderPolicy) -> str:
    """Return the fields of a row of the table that functions receive."""
    return _columns(of.row or ("unused",), of.flow)


def _folder() -> Path:
    """Return the folder of generated modules and their machine code."""
    folder = user_folder() / "policies"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not is_private(folder):
        raise InputError(f"{folder}: others may write; remove this folder")
    return folder


def _module(of: SenderPolicy) -> ModuleType:
    """Return the generated module of a policy, with functions compiled or read from the cache."""
    text = source(of).encode()
    path = _folder() / f"policy_{blake2b(text, digest_size=12).hexdigest()}.py"
    if not path.is_file() or path.read_bytes() != text:
        write_bytes(path, text)
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = (
        module  # numba's cache finds functions by the name of their module
    )
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        call = next(
            name for name in of.functions if not hasattr(module, f"{name}_entry")
        )
        raise InputError(
            f"policy {of.place(call)}: numba: {_reason(error)}; use integers only"
        ) from error
    return module


def _reason(error: Exception) -> str:
    """Return the line of numba's message that names the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [
        line
        for line in lines
        if not line.startswith(("Failed in", "-", "During", "File"))
    ]
    return one_line((reasons or lines or [type(error).__name__])[0])[:160]


@cache
def addresses(name: str) -> tuple[int, ...]:
    """Return the addresses of a policy's compiled functions, in the order of `CALLS`; 0 is none.

    Raises
    ------
    InputError
        numba refuses a function.
    EnvironmentFailure
        numba is not installed.
    """
    of = find_policy(name)
    if find_spec("numba") is None:
        raise lacking(
            f"policy {name} (without --engine reference)", "numba", "policies"
        )
    module = _module(of)
    entries = [getattr(module, f"{call}_entry", None) for call in CALLS]
    _KEPT.append(module)
    return tuple(0 if entry is None else int(entry.address) for entry in entries)


_KEPT: list[ModuleType] = []
"""Modules with machine code in use, until the end of the process."""
