"""Mannered wording in Markdown, docstrings, comments (Python, C), click help and other strings; length of user pages.

``python tests/support/prose.py`` prints the rates per 1,000 words with their targets, the 20 files with the highest
rates, and the words of every user page; ``--write`` lowers the limits of `tests/prose.json` to the present numbers.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

TARGETS = {  # name: (pattern, limit per 1,000 words)
    "what": (r"what(?!-if)", 2.0),
    "those that": (r"(?:those|that|these) (?:that|which|who|of|with|in|on|from|to)|ones", 1.5),
    "of it": (r"of (?:it|them|which|whose|those|these)|whose|thereof|one's", 1.0),
    "own": (r"own", 0.5),
    "so many": (r"so (?:many|much|long|few|manieth)|as (?:many|long|often) as|how many", 0.8),
    "told, said": (r"tells?|told|says?|said|knows?|asks?|asked|wants?|wanted", 1.5),
    "is there": (r"(?:is|are|was|were) there|that there", 0.5),
    "alike, like": (r"alike|(?:its|their|the) like|like (?:it|them)", 0.3),
    "motion": (r"goes|go|went|comes?|came|stands?|stood|lies|lay", 2.0),
    "took": (r"takes?|took|gives?|gave|makes?|made", 4.0),
    "behind": (r"behind|besides|beyond|meanwhile|under way|apart", 0.8),
    "anew": (r"anew|whatever|since long|of late|far as|worked off|done with|looked at", 0.3),
    "none": (r"(?-i:none)|nothing|nobody|neither|nowhere|(?:is|are|has|have) no", 1.5),
    "by itself": (r"by (?:itself|themselves)|as (?:it|they) (?:is|are|was|were)|alone|whole", 1.0),
    "first order": (r"in first order|held back|left[ -]out|of what|in what|than what", 0.2),
}
ALL = 12.0
"""Target of all of them together."""

ROOT = Path(__file__).resolve().parents[2]
LIMITS = ROOT / "tests" / "prose.json"
ROOTS = (
    "pysim",
    "cli",
    "plugins",
    "csrc",
    "benchmarks",
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
)
PATTERNS = {name: re.compile(rf"\b(?:{p})\b", re.I) for name, (p, _) in TARGETS.items()}
BAD_START = re.compile(r"(what|who|which|whether|when|where|how|whose|those|that|such)\b", re.I)
SKIPPED = {".venv", ".git", "build", "tests", "__pycache__", "CHANGELOG.md"}
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


def markdown(text: str) -> Iterator[tuple[str, str]]:
    """Yield a page without code, link targets and HTML comments."""
    pattern = r"```.*?```|<!--.*?-->|`[^`]*`|\]\([^)]*\)"
    yield "markdown", re.sub(pattern, " ", text, flags=re.S)


def python(text: str) -> Iterator[tuple[str, str]]:
    """Yield docstrings, click help, strings of five words or more, and comments of a module."""
    kinds, nodes = {}, [*ast.walk(ast.parse(text))]
    for node in nodes:
        if isinstance(node, ast.Expr):
            kinds[id(node.value)] = "docstrings"
        elif isinstance(node, ast.keyword) and node.arg in {"help", "short_help", "epilog"}:
            kinds |= {id(part): "help" for part in ast.walk(node.value)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = kinds.get(id(node), "strings")
            if kind != "strings" or (
                len(WORD.findall(node.value)) > 4 and node.value.count(" ") > 3
            ):
                yield kind, re.sub(r"`[^`]*`", " ", node.value)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline) if "#" in text else ()
    for token in tokens:
        if token.type == tokenize.COMMENT and not re.match(r"# *(noqa|type:|fmt:)", token.string):
            yield "comments", token.string.lstrip("# ")


def c(text: str) -> Iterator[tuple[str, str]]:
    """Yield the comments of a C file."""
    for match in re.finditer(r"/\*(.*?)\*/|//([^\n]*)", text, flags=re.S):
        yield "comments", re.sub(r"\n\s*\*|-{4,}", " ", match[1] or match[2] or "")


def data(text: str) -> Iterator[tuple[str, str]]:
    """Yield the sources of figures in a YAML file, and its comments."""
    body = re.sub(r"^#.*\n", "", text, flags=re.M)
    for match in re.finditer(r"source: (?:'((?:[^']|'')*)'|([^'{}\n][^}\n]*))", body):
        found = match[1] or match[2] or ""
        if len(WORD.findall(found)) > 4:
            yield "strings", found
    yield from (("comments", line.lstrip("# ")) for line in re.findall(r"^#.*", text, flags=re.M))


def table(text: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of five words or more in a CSV file."""
    cells = (cell for row in csv.reader(io.StringIO(text)) for cell in row)
    yield from (("strings", cell) for cell in cells if len(WORD.findall(cell)) > 4)


REPORTS = ("accuracy*.md", "performance*.md", "papers.md", "network-results.md")
"""Pages of results in docs/."""

REFERENCE = ("cli.md", "json.md", "nccl-environment.md", "glossary.md", "promises.md", "add-a-*.md")
"""Generated pages, the list of tests of promises, and pages for those who extend clusim, in docs/."""

READERS = {".md": markdown, ".py": python, ".c": c, ".h": c, ".yaml": data, ".csv": table}


@dataclass
class Prose:
    """Words of a kind of prose, and how often each pattern is found."""

    words: int = 0
    hits: Counter[str] = field(default_factory=Counter)

    def add(self, words: int, hits: Mapping[str, int]) -> None:
        """Add the words and hits of a text."""
        self.words += words
        self.hits.update(hits)

    def rate(self, name: str = "") -> float:
        """Return hits of a pattern, or of all, per 1,000 words."""
        found = self.hits[name] if name else self.hits.total()
        return 1000 * found / max(1, self.words)


def sources() -> list[Path]:
    """Return the files that people read."""
    found = [path for root in ROOTS for path in (ROOT / root, *sorted((ROOT / root).rglob("*")))]
    read = [p for p in found if p.suffix in READERS and p.is_file()]
    return [p for p in read if not SKIPPED & set(p.relative_to(ROOT).parts)]


@cache
def measured() -> tuple[dict[str, Prose], dict[Path, Prose], int]:
    """Return the prose by kind and by file, and the docstrings that begin with a wh-word, that or those."""
    kinds: dict[str, Prose] = {}
    files: dict[Path, Prose] = {}
    starts = 0
    for path in sources():
        own = files.setdefault(path, Prose())
        for kind, text in READERS[path.suffix](path.read_text(encoding="utf-8")):
            words = len(WORD.findall(text))
            hits = {name: len(p.findall(text)) for name, p in PATTERNS.items()}
            for prose in (kinds.setdefault(kind, Prose()), own):
                prose.add(words, hits)
            starts += kind == "docstrings" and bool(BAD_START.match(text.strip()))
    return kinds, files, starts


def user_pages() -> list[Path]:
    """Return the pages of docs/ that a user reads: no reports, generated pages or pages on extensions."""
    skipped = (*REPORTS, *REFERENCE)
    return [p for p in sorted((ROOT / "docs").glob("*.md")) if not any(map(p.match, skipped))]


def words_of(page: Path) -> int:
    """Count the words of a page, as ``wc -w`` does."""
    return len(page.read_text(encoding="utf-8").split())


def rates() -> dict[str, float]:
    """Return the rates of every kind of prose, the number of bad starts, and the words of the user pages."""
    kinds, _, starts = measured()
    found = {f"{kind}: all": prose.rate() for kind, prose in kinds.items()}
    found |= {f"{kind}: what": prose.rate("what") for kind, prose in kinds.items()}
    return {name: round(rate, 1) for name, rate in sorted(found.items())} | {
        "starts": starts,
        "words of user pages": sum(map(words_of, user_pages())),
    }


def limits() -> dict[str, float]:
    """Return the highest rates allowed."""
    data: dict[str, float] = json.loads(LIMITS.read_text(encoding="utf-8"))
    return data


def main() -> None:
    """Print the rates and the worst files, and lower the limits where asked."""
    kinds, files, starts = measured()
    names = sorted(kinds)
    print(f"{'per 1,000 words':18}{'target':>8}" + "".join(f"{kind:>12}" for kind in names))
    for name, target in [*((n, t) for n, (_, t) in TARGETS.items()), ("", ALL)]:
        row = "".join(f"{kinds[kind].rate(name):12.1f}" for kind in names)
        print(f"{name or 'all':18}{target:8.1f}{row}")
    print(f"docstrings that begin with a wh-word, that or those: {starts} (target 0)")
    worst = [(prose.rate(), path) for path, prose in files.items() if prose.words >= 100]
    for rate, path in sorted(worst, reverse=True)[:20]:
        print(f"{rate:6.1f}  {path.relative_to(ROOT)}")
    print(f"{sum(map(words_of, user_pages())):6}  words of user pages")
    for page in sorted(user_pages(), key=words_of, reverse=True):
        print(f"{words_of(page):6}  {page.relative_to(ROOT)}")
    if "--write" in sys.argv:
        before = limits() if LIMITS.exists() else {}
        kept = {name: min(rate, before.get(name, rate)) for name, rate in rates().items()}
        LIMITS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
