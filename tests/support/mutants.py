"""Mutation scores: the part of small changes to functions of a module that its tests notice.

``python tests/support/mutants.py [--every N] [MODULE ...]`` changes a comparison, constant, operator or condition of a
function, runs the tests of `TESTED` in a forked process, and prints the score of each module and the mutants that
live. It exits with 1 if a score is below its limit. Functions receive the changed code in place, so that nothing is
imported again and all importers see it; code outside of functions is not changed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import importlib
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_OPENED = tuple(
    f"tests/formats/test_expansion.py::test_{name}"
    for name in (
        "the_limit_is_the_free_bytes_and_a_hundred_times_the_input",
        "a_file_that_is_not_there_or_cannot_be_opened_is_one_line",
    )
)

_LAWS = tuple(
    f"tests/lowering/test_buffers.py::test_{name}"
    for name in (
        "a_burst_is_the_bytes_of_its_packets_in_whole_flits",
        "a_buffer_holds_32_bursts_or_its_own_size",
        "pause_thresholds_grow_together_and_the_headroom_by_three_bursts",
        "mark_thresholds_are_at_least_four_bursts",
        "reduction_units_hold_32_bursts_or_their_own_capacity",
    )
)

TESTED: dict[str, tuple[tuple[str, ...], int]] = {
    "clusim.nccl.chunking": (("tests/nccl/test_chunking.py",), 80),
    "clusim.lowering.buffers": ((*_LAWS, "tests/lowering/test_buffers.py"), 40),
    "clusim.formats.opened": ((*_OPENED, "tests/formats/test_expansion.py"), 85),
    "clusim.formats.topologies.overlay": (("tests/formats/topologies/test_overlay.py",), 50),
    "clusim.base.match": (("tests/base/test_match.py",), 85),
    "clusim.base.records": (("tests/base/test_records.py",), 85),
    "clusim.hardware.calibration": (("tests/hardware/test_calibration.py",), 65),
    "clusim.jobs.match": (("tests/jobs/test_match.py",), 95),
    "clusim.jobs.player": (("tests/jobs/test_player.py",), 80),
    "clusim.lowering.dma": (("tests/lowering/test_dma.py",), 75),
    "clusim.nccltests.table": (("tests/nccltests/test_table.py",), 65),
    "clusim.programs.values": (("tests/torchrun/test_values.py",), 60),
    "clusim.results.bins": (("tests/results/test_bins.py",), 60),
    "clusim.schedule.checks": (("tests/schedule/test_checks.py",), 80),
    "clusim.analysis.overlap": (("tests/analysis/test_overlap.py",), 80),
    "clusim.collectives.machines": (("tests/collectives/test_layouts.py",), 85),
    "clusim.engine.reference.order": (("tests/engine/reference/test_order.py",), 85),
    "clusim.policies.windows": (("tests/policies/test_windows.py",), 90),
    "clusim.replays.channels": (("tests/replays/test_channels.py",), 75),
    "clusim.report.lanes": (("tests/report/test_lanes.py",), 75),
    "clusim.multijob.join": (("tests/multijob/test_join.py",), 60),
    "clusim.serving.scheduler": (("tests/serving/test_scheduler.py",), 70),
    "clusim.shim.elements": (("tests/shim/test_elements.py",), 90),
    "clusim.simulation.derivatives": (("tests/simulation/test_derivatives.py",), 85),
    "clusim.studies.plan.layouts": (("tests/studies/test_layouts.py",), 80),
    "clusim.topology.tori": (("tests/topology/test_tori_links.py",), 90),
    "clusim.training.goodput": (("tests/training/test_goodput_by_hand.py",), 85),
    "clusim.validation.steps.steplog": (("tests/validation/test_steplog.py",), 90),
    "clusim.workload.parallel.volumes": (("tests/workload/test_volumes.py",), 95),
}
"""Modules with their tests, the fastest first, and the least score [%]; scores may only rise."""

FEW = 50
"""Number of mutants up to which all are tried."""

SECONDS, TIMES = 5, 5
"""A mutant counts as noticed, as it does not end, after this processor time [s] and so many times that of the tests."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """Change of a module: of node number `at` of its source."""

    line: int
    text: str
    at: int
    source: str

    def tree(self) -> ast.Module:
        """Return the changed module."""
        tree = ast.parse(self.source)
        _changed(list(ast.walk(tree))[self.at])
        return ast.fix_missing_locations(tree)


def _changed(node: ast.AST) -> str:
    """Change a node in place; return a description, empty if it has no change."""
    if isinstance(node, ast.Compare):
        old = type(node.ops[0])
        node.ops[0] = _COMPARISONS[old]()
        return f"{old.__name__} -> {_COMPARISONS[old].__name__}"
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        before = type(node.op)
        node.op = _OPERATORS[before]()
        return f"{before.__name__} -> {_OPERATORS[before].__name__}"
    if isinstance(node, ast.BoolOp):
        was_and = isinstance(node.op, ast.And)
        node.op = ast.Or() if was_and else ast.And()
        return "and -> or" if was_and else "or -> and"
    if isinstance(node, ast.Constant) and type(node.value) is int:
        node.value += 1
        return f"{node.value - 1} -> {node.value}"
    if isinstance(node, ast.Name) and node.id in ("min", "max"):
        node.id = "max" if node.id == "min" else "min"
        return f"-> {node.id}"
    return ""


def mutants(source: str) -> Iterator[Mutant]:
    """Yield all mutants of a module: each changes one node inside a function."""
    tree = ast.parse(source)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    inside = {
        id(node) for item in functions for statement in item.body for node in ast.walk(statement)
    }
    for at, node in enumerate(ast.walk(tree)):
        text = _changed(copy.deepcopy(node)) if id(node) in inside else ""
        if text:
            yield Mutant(getattr(node, "lineno", 0), text, at, source)


def _codes(code: types.CodeType, prefix: str = "") -> dict[str, types.CodeType]:
    """Return the code of all functions in a compiled module, by qualified name."""
    found = {}
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            found[item.co_qualname] = item
            found |= _codes(item)
    return found


def _functions(holder: Any, module: str) -> Iterator[types.FunctionType]:
    """Yield the functions of a module or class, without decorators that keep the original."""
    for value in list(vars(holder).values()):
        if isinstance(value, type) and value.__module__ == module:
            yield from _functions(value, module)
        for part in (value, *(getattr(value, name, None) for name in ("fget", "func", "__func__"))):
            while hasattr(part, "__wrapped__"):
                part = part.__wrapped__
            if isinstance(part, types.FunctionType) and part.__module__ == module:
                yield part


def install(module: types.ModuleType, mutant: Mutant) -> None:
    """Give the functions of a module the code of a mutant."""
    assert module.__file__ is not None
    codes = _codes(compile(mutant.tree(), module.__file__, "exec"))
    for function in _functions(module, module.__name__):
        code = codes.get(function.__qualname__)
        if code is not None and len(code.co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = code


def _noticed(
    module: types.ModuleType, mutant: Mutant | None, tests: tuple[str, ...], most_s: float
) -> bool:
    """Return True if tests fail with a mutant, or need more processor time than `most_s` [s], in a forked process."""
    child = os.fork()
    if not child:
        import resource

        import pytest

        if most_s:
            resource.setrlimit(resource.RLIMIT_CPU, (ceil(most_s), ceil(most_s) + 1))
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        if mutant is not None:
            install(module, mutant)
        os._exit(
            int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])) != 0
        )
    return os.waitpid(child, 0)[1] != 0


@dataclass(frozen=True)
class Score:
    """Number of mutants of a module, and those that live."""

    module: str
    count: int
    living: tuple[Mutant, ...]

    @property
    def percent(self) -> float:
        """Part of the mutants that tests notice [%]."""
        return 100 * (1 - len(self.living) / self.count)


def score(name: str, tests: tuple[str, ...], every: int = 1) -> Score:
    """Return the score of a module, of every `every`-th mutant, or of all of a module with few."""
    module = importlib.import_module(name)
    assert module.__file__ is not None
    found = list(mutants(Path(module.__file__).read_text(encoding="utf-8")))
    tried = found[:: every if len(found) > FEW else 1]
    before = os.times().children_user
    if _noticed(module, None, tests, 0):
        raise SystemExit(f"{name}: its tests fail without a change")
    most_s = SECONDS + TIMES * (os.times().children_user - before)
    living = tuple(each for each in tried if not _noticed(module, each, tests, most_s))
    return Score(name, len(tried), living)


@functools.cache
def _collected(tests: tuple[str, ...]) -> None:
    """Import test files in this process, without running them, so that forked processes need not."""
    import pytest

    with open(os.devnull, "w", encoding="utf-8") as sink, contextlib.redirect_stdout(sink):
        pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])


def main() -> int:
    """Print the scores; return 1 if one is too low."""
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "tests"))
    low = False
    for name in given.modules or TESTED:
        tests, least = TESTED[name]
        _collected(tests)
        found = score(name, tests, given.every)
        low |= found.percent < least
        killed = found.count - len(found.living)
        print(
            f"{name:28} {killed:4} of {found.count:4} noticed  {found.percent:5.1f}% (at least {least}%)"
        )
        for each in found.living:
            print(f"  lives: line {each.line}: {each.text}", flush=True)
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
