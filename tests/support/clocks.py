"""Finds assertions on clocks in the text of tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator

CLOCKS = {
    "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "thread_time",
    "time", "time_ns", "timeit",
}  # fmt: skip

MODULES = ("time", "timeit")


def clocks_asserted(tree: ast.AST) -> list[str]:
    """Return the assertions that compare a clock, or what was made of one in the same function.

    A clock in a `while` bounds how long a test waits for something, which decides nothing.
    """
    found = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            made = _made_of_clocks(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Assert) and any(
                    isinstance(part, ast.Compare) and _reads(part, made)
                    for part in ast.walk(node.test)
                ):
                    found.append(ast.unparse(node))
    return found


def _made_of_clocks(function: ast.FunctionDef) -> set[str]:
    """Return the names that hold a reading of a clock, or something computed from such names."""
    made: set[str] = set()
    before = -1
    while before != len(made):
        before = len(made)
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
                and node.value is not None
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if _reads(node.value, made):
                    made |= {name for target in targets for name in _names(target)}
    return made


def _names(target: ast.AST) -> Iterator[str]:
    return (item.id for item in ast.walk(target) if isinstance(item, ast.Name))


def _reads(node: ast.AST, made: set[str]) -> bool:
    """Return whether an expression has a clock in it, also that of a program for another process."""
    return any(_is_clock(item, made) for item in ast.walk(node))


def _is_clock(item: ast.AST, made: set[str]) -> bool:
    match item:
        case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id=owner))):
            return name in CLOCKS and owner in MODULES
        case ast.Call(func=ast.Name(id=name)):
            return name in CLOCKS - {"time"}
        case ast.Attribute(attr="wall_s"):
            return True
        case ast.Name(id=name):
            return name in made
        case ast.Constant(value=str(text)):
            return any(f"time.{clock}(" in text for clock in CLOCKS)
    return False
