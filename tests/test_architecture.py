"""The dependency rules of ARCHITECTURE.md, enforced on the source text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
PACKAGE = ROOT / "pysim" / "clusim"
CLI = ROOT / "cli" / "clusim_cli"

# Bottom first, by the first name below `clusim`. A module imports only from rows above its own, and from its
# own package; modules of one row do not know each other.
FRONT = [
    {"errors", "version"},
    {"vocabulary"},
    {"abi"},
    {"ranges", "opcodes"},
    {"units", "resources", "files", "bounded", "foreign"},
    {"hardware"},
    {"outcome", "image"},
    {"fabric"},
    {"formats"},
    {"schedule"},
    {"collectives"},
    {"nccl"},
    {"workload"},
    {"plans"},
    {"lowering"},
    {"engine", "reference"},
]
BACK = [
    {"errors", "version"},
    {"vocabulary"},
    {"abi"},
    {"ranges", "opcodes"},
    {"units", "files"},
    {"outcome"},
    {"bins"},
    {"result"},
    {"trace"},
    {"analysis"},
    {"report", "export"},
]
JOIN = [
    {"run"},
    {"training", "nccltests"},
    {"replaying"},
    {"api"},
    {"__init__", "__main__", "_engine"},
]

# Third-party and private modules that only these places may import.
GATEKEEPERS = {
    "clusim._engine": ("clusim/abi.py", "clusim/engine.py"),
    "cffi": ("csrc/bindings/",),
    "numba": ("clusim/analysis/_kernels.py",),
    "h5py": ("clusim/trace/",),
    "matplotlib": (
        "clusim/report/plots.py",
        "clusim/report/accuracy.py",
        "clusim/fabric/draw.py",
        "clusim/fabric/drawing/",
    ),
    "defusedxml": ("clusim/formats/xmltext.py",),
    "pyarrow": ("clusim/export/tables.py",),
    "google.protobuf": ("clusim/formats/recordings/chakra_schema.py",),
    "networkx": ("clusim/fabric/graph.py", "clusim/fabric/generators"),
    "click": ("clusim_cli/",),
    "rich": ("clusim_cli/",),
}

# Slow to import: never at the top of a module that a plain `clusim run` needs.
LAZY = {"networkx", "h5py", "numba", "rich", "matplotlib", "pyarrow", "google"}
LAZY_HOMES = (
    "clusim/trace/",
    "clusim/fabric/graph.py",
    "clusim/fabric/generators",
    "clusim/analysis/_kernels.py",
    "clusim/fabric/drawing/paint.py",
)

SOURCES = sorted([*PACKAGE.rglob("*.py"), *CLI.rglob("*.py")])
NAMES = [path.relative_to(ROOT).as_posix() for path in SOURCES]


def imports(tree: ast.AST, *, top_only: bool = False) -> Iterator[str]:
    """Yield the modules a file imports; those only type checkers see do not count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            module = node.module or ""
            yield from (
                (f"clusim.{alias.name}" for alias in node.names)
                if module == "clusim"
                else (module,)
            )
        yield from imports(node, top_only=top_only)


def layer(name: str, table: list[set[str]]) -> int | None:
    return next((level for level, names in enumerate(table) if name in names), None)


def own_name(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def may_import(mine: str, other: str) -> bool:
    """Return whether a module of `mine` may import one of `other`, both first names below clusim."""
    if mine == other:
        return True
    here = layer(mine, JOIN)
    if here is not None:
        there = layer(other, JOIN)
        return there is None or there < here
    for table in (FRONT, BACK):
        high, low = layer(mine, table), layer(other, table)
        if high is not None and low is not None and low < high:
            return True
    return False


@pytest.mark.parametrize("path", [p for p in SOURCES if PACKAGE in p.parents], ids=str)
def test_imports_point_downward(path: Path) -> None:
    mine = own_name(path)
    known = any(layer(mine, table) is not None for table in (FRONT, BACK, JOIN))
    assert known, f"{mine} has no layer: say in this test where it belongs"
    for module in imports(ast.parse(path.read_text(encoding="utf-8"))):
        if module.startswith("clusim_cli"):
            assert mine == "__main__", "the library must not know its command line"
        if module.startswith("clusim.") and not module.startswith("clusim._engine"):
            other = module.split(".")[1]
            assert may_import(mine, other), f"{mine} may not import {other}"


def circle_in(package: Path) -> list[str]:
    """Return modules of a package that import each other in a circle, empty if there is none."""
    known = {f"clusim.{path.relative_to(PACKAGE).with_suffix('').as_posix().replace('/', '.')}": path
             for path in package.rglob("*.py") if path.name != "__init__.py"}  # fmt: skip
    left = {
        name: {
            other
            for other in imports(ast.parse(path.read_text(encoding="utf-8")))
            if other in known
        }
        for name, path in known.items()
    }
    while ready := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in ready:
            del left[name]
    return sorted(left)


@pytest.mark.parametrize("name", ["run", "nccltests", "replaying", "training", "lowering"])
def test_no_imports_go_round_in_a_package(name: str) -> None:
    assert circle_in(PACKAGE / name) == []


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_gatekeepers(path: Path) -> None:
    here = path.as_posix()
    for module in imports(ast.parse(path.read_text(encoding="utf-8"))):
        for guarded, homes in GATEKEEPERS.items():
            if module == guarded or module.startswith(f"{guarded}."):
                assert any(home in here for home in homes), (
                    f"{module} may be imported only from {homes}"
                )


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_slow_imports_are_lazy(path: Path) -> None:
    here = path.as_posix()
    if any(home in here for home in LAZY_HOMES):
        return
    for module in imports(ast.parse(path.read_text(encoding="utf-8")), top_only=True):
        assert module.split(".")[0] not in LAZY, (
            f"{module}: import it inside the function that needs it"
        )


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_files_are_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


# Where files are opened for writing, replaced and removed; everything else writes through `clusim.files`.
WRITERS = ("clusim/files.py", "clusim/trace/journal.py", "clusim/trace/writer.py")
WRITING_METHODS = {
    "write_text",
    "write_bytes",
    "replace",
    "rename",
    "renames",
    "truncate",
    "copyfile",
}


def written_past_files(tree: ast.AST) -> Iterator[str]:
    """Yield the calls of a file that write without `clusim.files`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        owner = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
        texts = [
            item.value
            for item in [
                *node.args[:2],
                *(word.value for word in node.keywords if word.arg == "mode"),
            ]
            if isinstance(item, ast.Constant) and isinstance(item.value, str)
        ]
        if name == "open" and any(
            set(text) <= set("rwaxbt+") and set(text) & set("wax+") for text in texts
        ):
            opened = ast.unparse(node.args[0]) if node.args else ""
            if "/dev/null" not in opened and owner not in ("os", "gzip", "tarfile"):
                yield ast.unparse(node)
        if name in ("write_text", "write_bytes") and owner not in ("", "files"):
            yield ast.unparse(node)
        if name in WRITING_METHODS and owner in ("os", "shutil"):
            yield ast.unparse(node)
        if name == "savefig" and ast.unparse(node.args[0]) != "out":
            yield ast.unparse(node)


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_files_are_written_by_one_module(path: Path) -> None:
    if not path.as_posix().endswith(WRITERS):
        found = list(written_past_files(ast.parse(path.read_text(encoding="utf-8"))))
        assert found == [], "write through clusim.files, which never leaves half a file"


def test_ways_past_the_module_for_files_are_seen() -> None:
    for line in ("open(p, 'w')", "p.open('wb')", "p.open(mode='a')", "path.write_text(x)", "os.replace(a, b)",
                 "figure.savefig(path)", "target.write_bytes(b)"):  # fmt: skip
        assert list(written_past_files(ast.parse(line))), line
    for line in ("open(p)", "p.open('rb')", "files.write_text(p, x)", "write_bytes(p, b)", "name.replace('w', 'a')",
                 "figure.savefig(out)", "Run.open(path)"):  # fmt: skip
        assert not list(written_past_files(ast.parse(line))), line
