"""The dependency rules of ARCHITECTURE.md, enforced on the source text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from support.torch_programs import Later

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
PACKAGE = ROOT / "pysim" / "clusim"
CLI = ROOT / "cli" / "clusim_cli"
FORMATS = ROOT / "plugins" / "clusim-formats" / "clusim_formats"

# Which rooms each room may import, bottom first: a room names only rooms that stand above its own row. A room is a
# package in `clusim` with its sub-packages; the modules of `clusim` itself gather the public names.
MAY_IMPORT = {
    "base": "",
    "policies": "base",
    "hardware": "base",
    "engine": "base policies",
    "topology": "base engine hardware policies",
    "results": "base engine",
    "schedule": "base engine hardware topology",
    "collectives": "base hardware schedule topology",
    "lowering": "base engine policies schedule topology",
    "analysis": "base engine results",
    "report": "analysis base engine results",
    "formats": "base engine hardware schedule topology",
    "nccl": "base collectives engine formats hardware schedule topology",
    "simulation": "analysis base collectives engine formats lowering nccl policies results schedule topology",
    "workload": "base collectives formats hardware nccl results schedule topology",
    "nccltests": "base hardware nccl report results simulation",
    "jobs": "base formats hardware nccl nccltests schedule simulation topology workload",
    "clusim_formats": "base collectives formats hardware jobs schedule topology",
    "training": "analysis base collectives jobs lowering nccl report results schedule simulation topology workload",
    "serving": "base hardware jobs lowering report results simulation topology workload",
    "shim": "base hardware jobs lowering nccl nccltests schedule simulation topology",
    "replays": "base formats hardware jobs lowering nccl nccltests report results schedule simulation topology"
    " workload",
    "multijob": "analysis base lowering replays report results schedule simulation topology training workload",
    "programs": "base formats hardware jobs lowering nccl nccltests replays simulation topology workload",
    "validation": "analysis base engine formats hardware lowering nccl nccltests schedule serving simulation topology"
    " training workload",
    "studies": "analysis base jobs multijob nccl nccltests policies replays report results serving simulation topology"
    " training workload",
    "clusim": "base collectives multijob nccltests policies programs replays results schedule serving simulation"
    " studies topology training validation workload",
}

# Modules of `clusim` itself: public names, and what gathers them.
PUBLIC = {"__init__", "__main__", "api"}

# Third-party and private modules that only these places may import.
GATEKEEPERS = {
    "clusim._engine": tuple(
        f"clusim/engine/{name}.py" for name in ("abi", "channels", "simulation")
    ),
    "cffi": ("csrc/bindings/",),
    "h5py": ("clusim/results/trace/",),
    "matplotlib": (
        *(
            "clusim/report/plots.py",
            "clusim/report/plot_style.py",
            "clusim/validation/collectives/validate.py",
            "clusim/base/drawing/paint.py",
        ),
        "clusim/base/display.py",
    ),
    "pandas": ("clusim/base/display.py",),
    "xarray": ("clusim/results/result.py",),
    "IPython": ("clusim/simulation/session.py",),
    "defusedxml": ("clusim/base/xmltext.py",),
    "pyarrow": ("clusim/report/export/tables.py", "clusim/studies/sweep/tables.py"),
    "distributed": ("clusim/base/executors.py",),
    "mpi4py": ("clusim/base/executors.py",),
    "google.protobuf": ("clusim/formats/recordings/chakra_schema.py",),
    "torch": ("clusim/hardware/kernels/calibrate/probe.py", "clusim/programs/"),
    "networkx": (
        "clusim/topology/check_flow.py",
        "clusim/topology/deadlock.py",
        "clusim/topology/graph.py",
        "clusim/topology/tori.py",
    ),
    "numba": ("clusim/policies/compiled.py",),
    "click": ("clusim_cli/",),
    "rich": ("clusim_cli/",),
}

# Slow to import: never at the top of a module that a plain `clusim run` needs.
LAZY = {
    *("torch", "networkx", "h5py", "rich", "matplotlib", "pyarrow", "google"),
    *("distributed", "mpi4py", "pandas", "xarray", "IPython", "numba"),
}
LAZY_HOMES = (
    "clusim/results/trace/",
    "clusim/topology/graph.py",
    "clusim/topology/generators",
    "clusim/base/drawing/paint.py",
    *(
        f"clusim/programs/{name}.py"
        for name in (
            *(
                "adapted",
                "arguments",
                "cuda",
                "data",
                "eager",
                "flex",
                "graphs",
                "groups",
                "parts",
                "known",
                "layouts",
                "operators",
                "repeated",
                "values",
            ),
        )
    ),
)

SOURCES = sorted([*PACKAGE.rglob("*.py"), *CLI.rglob("*.py"), *FORMATS.rglob("*.py")])


MODULES = {
    ".".join(path.relative_to(top.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for top in (PACKAGE, FORMATS)
    for path in SOURCES
    if top in path.parents
}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST, *, top_only: bool = False, typing_too: bool = False) -> Iterator[str]:
    """Yield the modules a file imports; those only type checkers see count where asked for."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not typing_too:
            continue
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            module = node.module or ""
            for alias in node.names:
                name = f"{module}.{alias.name}"
                yield name if name in MODULES or module == "clusim" else module
        yield from imports(node, top_only=top_only, typing_too=typing_too)


@cache
def imports_of(path: Path, *, top_only: bool = False, typing_too: bool = False) -> tuple[str, ...]:
    """Return what `imports` yields for a file."""
    return tuple(imports(parsed(path), top_only=top_only, typing_too=typing_too))


@cache
def needs(module: str) -> set[str]:
    """Return the modules of the package that one of it imports anywhere, for type checkers too."""
    path = MODULES[module]
    found = imports_of(path, typing_too=True)
    return {other for other in found if other in MODULES and MODULES[other] != path}


def all_needs() -> dict[str, set[str]]:
    """Return what every module of the package imports of it."""
    return {module: needs(module) for module in MODULES}


def test_files_of_tests_import_no_library_that_takes_seconds() -> None:
    """Every process of `make test` collects all files; a test imports PyTorch or xarray when it runs."""
    slow = {"torch", "xarray", "matplotlib", "pandas"}
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'^\w+ = pytest.importorskip\("torch', text, re.M), path.name
        if re.search(rf"^(import|from) ({'|'.join(slow)})\b", text, re.M):
            top = imports(ast.parse(text), top_only=True)
            assert not {name.split(".")[0] for name in top} & slow, path.name


def test_what_is_imported_later_is_not_imported_by_collection() -> None:
    """pytest asks all that a module has for these names."""
    assert not any(hasattr(Later("nosuch"), name) for name in ("__test__", "_mock_name"))


def room_of(module: str) -> str:
    """Return the row of `MAY_IMPORT` that a module belongs to."""
    if FORMATS in MODULES[module].parents:
        return FORMATS.name
    parts = MODULES[module].relative_to(PACKAGE).with_suffix("").parts
    return "clusim" if parts[0] in PUBLIC else parts[0]


def test_the_table_of_rooms_goes_one_way() -> None:
    above: set[str] = set()
    for room, named in MAY_IMPORT.items():
        assert set(named.split()) <= above, f"{room} may name only rooms of the rows above it"
        above.add(room)


def test_a_module_imports_what_its_room_may() -> None:
    for module in MODULES:
        room = room_of(module)
        assert room in MAY_IMPORT, f"{room} is in no row of MAY_IMPORT: say there where it belongs"
        for other in needs(module):
            there = room_of(other)
            assert there in (room, *MAY_IMPORT[room].split()), (
                f"{module}: {room} may not import {there} ({other})"
            )


def test_a_room_may_import_only_what_it_needs() -> None:
    used: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for module, others in all_needs().items():
        used[room_of(module)] |= {room_of(other) for other in others}
    for room, named in MAY_IMPORT.items():
        assert set(named.split()) <= used[room], f"{room} needs less than its row says"


def test_the_library_does_not_know_its_command_line() -> None:
    for module, path in MODULES.items():
        found = imports_of(path)
        knows = any(name.split(".")[0] == "clusim_cli" for name in found)
        assert not knows or module == "clusim.__main__", module


def circle(needs: Mapping[str, set[str]]) -> list[str]:
    """Return modules that import each other in a circle, and what needs them; empty if there is none."""
    left = dict(needs)
    while ready := [name for name, others in left.items() if not others & left.keys()]:
        for name in ready:
            del left[name]
    return sorted(left)


def test_no_imports_go_round() -> None:
    assert circle(all_needs()) == []


def test_a_circle_is_seen_through_any_number_of_modules() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": set()}) == ["a", "b", "c"]


MOST_CHAINED = 36
"""Modules of the longest chain in which each imports the next when it runs."""


def longest_chain(needs: Mapping[str, set[str]]) -> list[str]:
    """Return the longest chain of modules, without circles, that need the next one."""

    @cache
    def chain(module: str) -> tuple[str, ...]:
        return (module, *max(map(chain, needs[module]), key=len, default=()))

    return list(max(map(chain, needs), key=len))


def test_chains_of_imports_are_short() -> None:
    found = {
        module: {other for other in imports_of(path) if other in MODULES and MODULES[other] != path}
        for module, path in MODULES.items()
    }
    assert len(chain := longest_chain(found)) <= MOST_CHAINED, " -> ".join(chain)


def test_the_longest_chain_is_found() -> None:
    assert longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ["a", "b", "c"]


def test_gatekeepers() -> None:
    for path in SOURCES:
        here = path.as_posix()
        for module in imports_of(path):
            for guarded, homes in GATEKEEPERS.items():
                if module == guarded or module.startswith(f"{guarded}."):
                    assert any(home in here for home in homes), (
                        f"{path}: {module} may be imported only from {homes}"
                    )


def test_slow_imports_are_lazy() -> None:
    for path in SOURCES:
        if any(home in path.as_posix() for home in LAZY_HOMES):
            continue
        for module in imports_of(path, top_only=True):
            assert module.split(".")[0] not in LAZY, (
                f"{path}: import {module} inside the function that needs it"
            )


def test_files_are_small() -> None:
    for path in SOURCES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 500, path


MOST_LINES = 60


def long_functions(text: str) -> dict[str, int]:
    """Return the functions with more than `MOST_LINES` lines, without their docstrings."""
    result = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = 0
            if ast.get_docstring(node) is not None:
                said = (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            lines = (node.end_lineno or 0) - node.lineno + 1 - said
            if lines > MOST_LINES:
                result[node.name] = lines
    return result


def test_functions_are_short() -> None:
    for path in SOURCES:
        for name, lines in long_functions(path.read_text(encoding="utf-8")).items():
            assert lines <= MOST_LINES, f"{path}: {name}"


def test_lines_of_a_function_are_counted_without_its_docstring() -> None:
    body = "    x = 1\n" * 60
    assert long_functions(f'def f():\n    """Said.\n\n    More.\n    """\n{body}') == {"f": 61}
    assert long_functions(f"def f():\n{body[:-10]}") == {}


MOST_PARAMETERS = 5

# What people call by keyword, from scripts and notebooks: options, of which a call names few.
FRONTS = {
    "clusim.simulation.api.simulate",
    "clusim.simulation.traffic_api.simulate_traffic",
    "clusim.collectives.api.emit",
    "clusim.collectives.builder.ScheduleBuilder.send",
    "clusim.collectives.builder.ScheduleBuilder.recv",
    "clusim.schedule.builder.ProgramBuilder.kernel",
    "clusim.policies.paths.Adaptive.choose",
}


def functions(tree: ast.AST, home: str) -> Iterator[tuple[str, ast.arguments]]:
    """Yield every function of a module by its full name, with its parameters."""
    for node in ast.iter_child_nodes(tree):
        name = f"{home}.{getattr(node, 'name', '')}".removesuffix(".")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node.args
        yield from functions(node, name)


def with_many_parameters(tree: ast.AST, module: str) -> set[str]:
    found = set()
    for name, given in functions(tree, module):
        own = [argument.arg for argument in (*given.posonlyargs, *given.args)]
        count = len(own) - (own[:1] in (["self"], ["cls"])) + len(given.kwonlyargs)
        found |= {name} if count > MOST_PARAMETERS else set()
    return found


def test_functions_have_few_parameters() -> None:
    many: set[str] = set()
    for module, path in MODULES.items():
        many |= with_many_parameters(parsed(path), module)
    assert many == FRONTS, "what travels together is a dataclass"


def test_parameters_are_counted_without_self() -> None:
    text = "class A:\n def f(self, a, b, c, d, e): ...\n def g(self, a, b, c, d, *, e, f): ..."
    assert with_many_parameters(ast.parse(text), "m") == {"m.A.g"}


# Names that two classes may have: what a slot of a protocol is like, of a fabric and by NCCL's name for it. Both are
# documented.
SAME_NAMES = {"Protocol"}


def test_public_classes_have_names_of_their_own() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    assert twice.keys() == SAME_NAMES, twice


# Where files are opened for writing, replaced and removed; everything else writes through `clusim.base.files`.
WRITERS = (
    "clusim/base/files.py",
    "clusim/results/trace/journal.py",
    "clusim/results/trace/writer.py",
)
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
    """Yield the calls of a file that write without `clusim.base.files`."""
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


def test_files_are_written_by_one_module() -> None:
    found = {
        path: list(written_past_files(parsed(path)))
        for path in SOURCES
        if not path.as_posix().endswith(WRITERS)
    }
    past = {path: calls for path, calls in found.items() if calls}
    assert past == {}, "write through clusim.base.files, which never leaves half a file"


def test_ways_past_the_module_for_files_are_seen() -> None:
    for line in ("open(p, 'w')", "p.open('wb')", "p.open(mode='a')", "path.write_text(x)", "os.replace(a, b)",
                 "figure.savefig(path)", "target.write_bytes(b)"):  # fmt: skip
        assert list(written_past_files(ast.parse(line))), line
    for line in ("open(p)", "p.open('rb')", "files.write_text(p, x)", "write_bytes(p, b)", "name.replace('w', 'a')",
                 "figure.savefig(out)", "Run.open(path)"):  # fmt: skip
        assert not list(written_past_files(ast.parse(line))), line


def test_only_packages_say_what_they_export() -> None:
    for path in SOURCES:
        if path.name != "__init__.py":
            assert "__all__ = " not in path.read_text(encoding="utf-8"), path


def defined_twice(tree: ast.Module) -> list[str]:
    """Return the names that a module assigns or defines more than once."""
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return sorted({name for name in names if names.count(name) > 1})


def test_a_module_defines_a_name_once() -> None:
    for path in SOURCES:
        assert defined_twice(parsed(path)) == [], path


def test_a_constant_that_hides_another_is_seen() -> None:
    assert defined_twice(ast.parse("A = 1\nB = 2\nA: int = 3\n")) == ["A"]
