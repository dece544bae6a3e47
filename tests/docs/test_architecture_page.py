"""What ARCHITECTURE.md says of the code is so: names exist, the map is whole, numbers are those of the code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusim import topology
from clusim.base.errors import ClusimError
from clusim.lowering import grain
from clusim.lowering.buffers import BURSTS_PER_BUFFER
from clusim_cli import main
from support import csources as c
from support.names import exists, quoted

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SPEED = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "pysim" / "clusim"
CLI = ROOT / "cli" / "clusim_cli"
PACKAGES = [path.parent for top in (PACKAGE, CLI) for path in sorted(top.rglob("__init__.py"))]


def section(title: str) -> str:
    """Return a part of the page."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def block(title: str) -> list[str]:
    """Return the lines of the first block of a part."""
    return section(title).partition("```\n")[2].partition("```")[0].splitlines()


@pytest.mark.parametrize("text", sorted(set(quoted(PAGE))))
def test_what_stands_in_backticks_exists(text: str) -> None:
    assert exists(text)


@pytest.mark.parametrize(
    "text",
    [
        "wire.c:wire_arbitrated",
        "wires.c",
        "lowering/grains.py",
        "clusim runs",
        "make benches",
        "--verified",
        "injectmake",
    ],
)
def test_what_does_not_exist_is_seen(text: str) -> None:
    assert not exists(text)


def in_map() -> Iterator[str]:
    """Yield the paths of the code map: names before the gap, below the directories that they are indented under."""
    above: list[str] = []
    for line in block("Code map"):
        indent = len(line) - len(line.lstrip())
        if indent > 8:  # what is said goes on
            continue
        found = re.split(r" {2,}", line.strip())[0].split()
        above[indent // 2 :] = [found[0].rstrip("/")] if found[0].endswith("/") else []
        yield from ("/".join([*above[: indent // 2], name.rstrip("/")]) for name in found)


def test_what_is_in_the_map_exists() -> None:
    for path in in_map():
        assert (ROOT / path).is_dir() or (ROOT / f"{path}.py").is_file(), path


def test_every_package_and_every_module_of_the_top_is_in_the_map() -> None:
    found = set(in_map())
    tops = {path.relative_to(ROOT).with_suffix("").as_posix() for path in PACKAGE.glob("[a-z]*.py")}
    packages = {
        path.parent.relative_to(ROOT).as_posix()
        for top in ("pysim", "cli")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert tops | packages <= found


def test_modules_that_the_map_names_exist() -> None:
    """Words in brackets are modules of the package that the line is about."""
    said = " ".join(block("Code map"))
    stems = {path.stem for path in PACKAGE.rglob("*.py")}
    for text in re.findall(r"\(([a-z_*, ]+)\)", said):
        listed = [name for name in text.split(", ") if re.fullmatch(r"[a-z_]+\*?", name)]
        if len(listed) == len(text.split(", ")):
            assert all(
                any(stem.startswith(name.rstrip("*")) for stem in stems) for name in listed
            ), text


def test_every_room_is_in_one_layer() -> None:
    rows = [line.split("|")[2] for line in section("Rooms").splitlines() if line.startswith("| ")]
    rooms = re.findall(r"[a-z]+", " ".join(rows[1:]))
    assert sorted(rooms) == sorted(path.name for path in PACKAGES if path.parent == PACKAGE)


def engine_levels() -> dict[str, int]:
    """Return the level of every file of the engine on the page: 0 is the top."""
    blocks = re.findall(r"^```\n(.*?)^```$", section("The engine"), re.MULTILINE | re.DOTALL)
    rows = [re.split(r" {2,}", line) for line in blocks[0].splitlines()]
    levels = [[name for cell in row[:-1] for name in cell.split()] for row in rows]
    (lowest,) = (row[-1] for row in rows if row[0] == "state")
    below = re.findall(r"\w+", lowest.partition("over ")[2])
    assert {"model", "base"} <= set(below)
    return {name: level for level, names_ in enumerate([*levels, below]) for name in names_}


def test_the_engines_files_include_those_below_them() -> None:
    at = engine_levels()
    for unit in at:
        others = (c.included(f"{unit}.h") | c.included(f"{unit}.c")) - {unit}
        if at[unit] <= at["state"]:
            assert all(at[other] > at[unit] for other in others if other in at), unit
    with_state = {unit for unit in c.UNITS if "state" in c.included(f"{unit}.h")}
    assert with_state <= set(at)


def test_calls_that_go_up_are_named() -> None:
    at = engine_levels()
    defined = re.compile(r"^(?!static)[a-z_][\w *]*?\b(\w+)\([^;{]*\)\s*\{", re.MULTILINE)
    home = {name: unit for unit in at for name in defined.findall(c.code(f"{unit}.c"))}
    assert len(home) > 80
    up = {
        (unit, name)
        for unit in at
        for name, other in home.items()
        if at[other] < at[unit]
        and re.search(rf"\b{name}\(", c.code(f"{unit}.h") + c.code(f"{unit}.c"))
    }
    (told,) = re.findall(r"One\s+call is upward: `(\w+)\.h` declares `(\w+)`", PAGE)
    assert up == {told}


def test_directories_of_tests_are_rooms_or_on_the_page() -> None:
    there = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    rooms = {path.name for path in PACKAGES if path.parent == PACKAGE}
    named = set(re.findall(r"(\w+)/", block_of_tests()))
    assert there - rooms - {"docs"} <= named
    assert {name for name in named if not (ROOT / "tests" / name).is_dir()} == set()


def block_of_tests() -> str:
    """Return the lines of the code map below that of the tests."""
    lines = list(block("Code map"))
    at = next(n for n, line in enumerate(lines) if line.startswith("tests/"))
    return "\n".join(line for line in lines[at + 1 :] if line.startswith("  "))


def test_every_library_that_is_needed_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = list(project["dependencies"])
    for name, more in project["optional-dependencies"].items():
        texts += [text for text in more if name != "dev" and not text.startswith("clusim-net")]
    needed = {re.split(r"[^\w-]", text)[0] for text in texts}
    rows = [line for line in section("Dependencies").splitlines() if line.startswith("| ")][1:]
    told = {
        name
        for row in rows
        for name in re.sub(r"\(.*?\)", "", row.split("|")[1]).replace(",", " ").split()
    }
    assert told == needed


def in_c(pattern: str) -> int:
    """Return a number in the engine's source text."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(c.CSRC.rglob("*.[ch]")))
    (found,) = set(re.findall(pattern, text))
    return int(found)


def in_test(name: str, pattern: str) -> int:
    found = re.search(pattern, (ROOT / "tests" / name).read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1].replace(",", "").replace("_", ""))


def bug_code() -> int:
    assert not issubclass(ValueError, ClusimError)
    return main.EXIT_BUG


COUNTS = {"one": 1, "four": 4, "sixteen": 16}

FACTS: list[tuple[str, Callable[[], object]]] = [
    (r"delivery, in (one) cache line each", lambda: in_c(r"sizeof\(packet\) == (\d+)") // 64),
    (
        r"wire's state fills (four) cache lines",
        lambda: in_c(r"sizeof\(wire_state\) == (\d+)") // 64,
    ),
    (r"is in (sixteen) parts", lambda: len(list((c.CSRC / "parts").glob("*.h")))),
    (r"clocks in 2\^-(\d+) ps", lambda: in_c(r"fraction16; /\* below 2\^(\d+)")),
    (
        r"CLUSIM_THOROUGH=1`: ([\d,]+)",
        lambda: in_test("engine/reference/test_equivalence.py", r"CASES = (\d+) if THOROUGH"),
    ),
    (r"one RDMA packet is (\d+) TLPs on PCIe", lambda: rdma_bytes() // payload("pcie-gen5-x16")),
    (r"exact up to (\d+) million", lambda: grain.EXACT_HOPS // 10**6),
    (r"then (\d+) million bursts", lambda: grain.TARGET_HOPS // 10**6),
    (r"none above 1/(\d+) of", lambda: grain.SLICE_SHARE),
    (r"error limit (\d+)%", lambda: round(100 * grain.AUTO_ERROR)),
    (r"Beyond (\d+) million", lambda: grain.MOST_HOPS // 10**6),
    (r"bursts grow to 1/(\d+) of", lambda: grain.SLICE_SHARE // max(grain.FACTORS)),
    (r"at least (\d+) bursts", lambda: BURSTS_PER_BUFFER),
    (r"exit code (\d+)", bug_code),
    (r"contract, section (\d+)", lambda: heading("Memory")),
    (r"(\d+) lines of own script", lambda: lines_of(PACKAGE / "report/page", "*.js")),
    (r"(\d+) kinds of fields", lambda: functions("report/export/perfetto_packets.py", r"\(key: ")),
]
"""What the page says, and what the code says."""


def rdma_bytes() -> int:
    nic = next(node.nic for node in topology.load("dgx-h100").nodes if node.nic is not None)
    return nic.mtu_bytes


def payload(link: str) -> int:
    form = next(one.format for one in topology.load("dgx-h100").links if one.name == link)
    return min(topology.load("dgx-h100").formats[form].limit_bytes)


def heading(word: str) -> int:
    page = (ROOT / "docs/model/contract.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## (\d+)\. .*{word}", page, re.MULTILINE)
    return int(found)


def lines_of(folder: Path, pattern: str) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob(pattern))


def functions(name: str, first: str) -> int:
    """Return how many functions of a file have this as their first parameter."""
    text = (PACKAGE / name).read_text(encoding="utf-8")
    return len(re.findall(rf"^def \w+{first}", text, re.MULTILINE))


FLAT = " ".join(f"{PAGE} {SPEED}".split())


@pytest.mark.parametrize(("pattern", "told"), FACTS, ids=[pattern for pattern, _ in FACTS])
def test_numbers_are_those_of_the_code(pattern: str, told: Callable[[], object]) -> None:
    found = re.findall(pattern, FLAT)
    assert found, "the page no longer says this"
    for text in found:
        assert COUNTS.get(text, text.replace(",", "")) in (told(), str(told()))


def paragraphs() -> list[str]:
    """Return the paragraphs and decisions of the page, each on one line, without blocks, tables and names."""
    text = re.sub(r"^```\n.*?^```$|^[|#].*?$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    found = [" ".join(part.split()) for part in re.split(r"\n\n|\n(?=- )", text)]
    return [part for part in found if part]


@pytest.mark.parametrize("text", paragraphs(), ids=lambda text: text[:40])
def test_other_numbers_are_measured_and_say_by_what(text: str) -> None:
    rest = text
    for found in [match for pattern, _ in FACTS for match in re.finditer(pattern, text)]:
        rest = rest[: found.start()] + "x" * len(found[0]) + rest[found.end() :]
    rest = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "", rest)
    if re.search(r"(?<![\w.-])\d", rest.replace("t-1", "")):
        assert re.search(
            r"`(make bench|perf|benchmarks/\w+\.py|docs/\w+\.md|lowering/links\.py)`", text
        ), rest


def test_decisions_are_sorted_and_short() -> None:
    text = section("Decisions")
    subjects = re.findall(r"^\*\*(.+)\*\*$", text, re.MULTILINE)
    assert len(subjects) >= 5
    decisions = re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)
    assert len(decisions) >= 20
    for decision in decisions:
        assert decision.count("\n") < 2, f"two lines are enough: {decision}"
        assert re.match(r"- \*[^*]+\*", decision), f"say the decision first: {decision}"


def test_lines_are_within_their_width() -> None:
    assert max(map(len, PAGE.splitlines())) <= 120
