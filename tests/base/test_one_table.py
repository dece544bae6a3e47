"""Operations, element types, algorithms and protocols have one table, in clusim.base.terms."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import find_algorithm, find_operation, find_protocol

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for root in (ROOT / "pysim" / "clusim", ROOT / "cli" / "clusim_cli", ROOT / "plugins")
    for path in root.rglob("*.py")
    if "terms" not in path.parts
)
KINDS: dict[str, Callable[[str], object]] = {
    "operation": find_operation,
    "dtype": find_dtype,
    "algorithm": find_algorithm,
    "protocol": find_protocol,
}

FIGURES = "figures of protocols, which only a chip or a shape has; the names are in base.terms"
PRIMITIVES = "primitives of programs, some of which are called as messages are"
EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "clusim/formats/logs/infer_collective.py",
        "operation",
    ): "collectives in the order of how usual they are",
    ("clusim/studies/improve.py", "algorithm"): "values of NCCL_ALGO to try",
    ("clusim/studies/improve.py", "protocol"): "values of NCCL_PROTO to try",
    ("clusim/formats/logs/messages.py", "algorithm"): "what NCCL's lines say is connected",
    ("clusim/formats/recordings/chakra_schema.py", "dtype"): "types of protobuf's fields",
    ("clusim-formats/clusim_formats/recordings/hlo.py", "operation"): "instructions of XLA",
    (
        "clusim/formats/recordings/kineto_arguments.py",
        "operation",
    ): "places of the arguments of PyTorch's operators",
    (
        "clusim/formats/recordings/nsys.py",
        "operation",
    ): "messages, whose kernels do not say to whom",
    ("clusim/formats/recordings/flight.py", "dtype"): "instructions of pickles",
    ("clusim/hardware/figures.py", "dtype"): "types of dataclass fields",
    ("clusim/engine/image.py", "operation"): PRIMITIVES,
    ("clusim/report/page_data.py", "dtype"): "types of NumPy's arrays that a page gets",
    (
        "clusim/schedule/definition.py",
        "operation",
    ): "the function that says what each operation must compute",
    ("clusim/schedule/arrays.py", "dtype"): "annotations of dataclass fields",
    ("clusim/schedule/shapes.py", "protocol"): FIGURES,
    (
        "clusim/jobs/write.py",
        "dtype",
    ): "precisions that a chip has peak rates for, in order",
    ("clusim/nccl/graph.py", "algorithm"): "NCCL's names of the graphs of a file, by their id",
    (
        "clusim/workload/spec.py",
        "dtype",
    ): "words of workload files for formats of a whole training run",
}
"""File and kind of word -> why it may have a table keyed by such words."""


def words_of(node: ast.AST) -> list[str]:
    """Return the texts that a literal is keyed by: keys of a dict, items of a list, tuple or set."""
    if isinstance(node, ast.Dict):
        items: list[ast.expr | None] = list(node.keys)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        items = list(node.elts)
    else:
        return []
    return [
        item.value
        for item in items
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]


def tables_in(tree: ast.AST) -> Iterator[tuple[str, int, set[str]]]:
    """Yield kind, line and words of every literal with three different words of a kind."""
    exported = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    }
    for node in ast.walk(tree):
        if id(node) in exported:
            continue
        texts = words_of(node)
        for kind, find in KINDS.items():
            found = {str(find(text)): text for text in texts if find(text) is not None}
            if len(found) >= 3:
                yield kind, getattr(node, "lineno", 0), set(found.values())


def test_no_other_file_has_a_table_of_words() -> None:
    """And every exception is needed."""
    used = set()
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix().partition("/")[2]
        for kind, line, found in tables_in(ast.parse(path.read_text(encoding="utf-8"))):
            assert (name, kind) in EXCEPTIONS, (
                f"{name}:{line}: a table of {kind}s ({', '.join(sorted(found))}); look them up in clusim.base.terms"
            )
            used.add((name, kind))
    assert set(EXCEPTIONS) == used


def test_tables_are_seen() -> None:
    for line in (
        'T = {"allreduce": 1, "AllGather": 2, "reduce_scatter": 3}',
        'T = ("half", "float", "bf16")',
        'x in {"LL", "simple", "ll128"}',
        'T = ["Ring", "TREE", "nvls_tree"]',
    ):
        assert list(tables_in(ast.parse(line))), line
    assert not list(
        tables_in(ast.parse('T = ("gather", "scatter", "all_gather_perf_x", "Gather")'))
    )
