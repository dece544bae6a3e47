"""Types of command-line values, and helpers of several commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
from click.shell_completion import CompletionItem

from clusim.base.errors import ClusimError, InputError, suggest
from clusim.base.records import dataclass
from clusim.base.terms.dtypes import DTYPES, REDUCTIONS
from clusim.base.terms.operations import (
    GRANULARITIES,
    OPERATIONS,
    PROTOCOL_NAMES,
    WORDS,
)
from clusim.base.units import (
    parse_domains,
    parse_percent,
    parse_ranks,
    parse_size,
    parse_time,
)

ENGINE_THREADS = 64
"""Largest value of ``--threads``, as the C engine's limit."""


@dataclass(eq=False)
class Value(click.ParamType[Any]):
    """Value of an option.

    Attributes
    ----------
    name : str
        Placeholder in help.
    read : callable
        Return the meaning of a text, or raise `ClusimError`.
    words : callable
        Return the words that shells complete.
    between : str
        Separator of the words in help; empty if the option's help lists them.
    files : bool
        True if the value may also be a file.
    help : str
        Text for help in place of the words.
    """

    name: str
    read: Callable[[str], Any] = str
    words: Callable[[click.Context], Iterable[str]] = lambda _context: ()
    between: str = ", "
    files: bool = False
    help: str = ""

    def told(self) -> str:
        """Return the words for help; empty if an option's help lists them."""
        if self.help:
            return self.help
        words = (
            self.words(click.Context(click.Command("clusim")))
            if self.between
            else ()
        )
        return self.between.join(words)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Return the meaning of a text; defaults may have one already."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ClusimError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that begin with the typed prefix, in any case."""
        typed = incomplete.lower()
        result = [
            CompletionItem(word)
            for word in self.words(ctx)
            if word.lower().startswith(typed)
        ]
        # Shells look for files themselves.
        return (
            result or [CompletionItem(incomplete, type="file")]
            if self.files
            else result
        )


def _topologies(_context: click.Context) -> Iterable[str]:
    from clusim.base.resources import shipped_topologies
    from clusim.topology.cluster_names import superpods
    from clusim.topology.generators import GENERATORS

    return [
        *shipped_topologies(),
        *superpods(),
        *(f"{name}:" for name in GENERATORS),
    ]


def _workloads(_context: click.Context) -> Iterable[str]:
    from clusim.base.resources import shipped_workloads

    return shipped_workloads()


def _recordings(_context: click.Context) -> Iterable[str]:
    from clusim.base.resources import shipped_recordings

    return shipped_recordings()


def _sweeps(_context: click.Context) -> Iterable[str]:
    from clusim.base.resources import shipped_sweeps

    return shipped_sweeps()


def _serving(_context: click.Context) -> Iterable[str]:
    from clusim.base.resources import shipped_serving

    return shipped_serving()


def _recording(text: str) -> Path:
    from clusim.base.resources import or_shipped

    return Path(or_shipped(text))


def _file_of(shipped: str) -> Callable[[str], Path]:
    """Return a reader of a file's name, or of a shipped one by a function of `clusim.base.resources`."""

    def read(text: str) -> Path:
        path = Path(text)
        if not path.exists():
            known = resolve_name(f"clusim.base.resources:{shipped}")()
            if text not in known:
                raise InputError(f"{text}: no such file{suggest(text, known)}")
            path = known[text]
        if path.is_dir():
            raise InputError(f"{text}: is a directory; choose a file")
        return path

    return read


def _algorithms(context: click.Context) -> Iterable[str]:
    """Return the algorithms of the typed operation, or of all without one."""
    from clusim.collectives import ALGORITHMS, load_extensions

    load_extensions()
    if "operation" not in context.params:
        return dict.fromkeys(["nccl", *chain(*ALGORITHMS.values())])
    return ["nccl", *ALGORITHMS.get(context.params["operation"] or "allreduce", ())]


def _faults(_context: click.Context) -> Iterable[str]:
    from clusim.lowering.faulttext import FORMS

    return [f"{kind} {shape}" for kind, (shape, _) in FORMS.items()]


def _releases(_context: click.Context) -> Iterable[str]:
    from clusim.nccl.constants import LATEST, OLDEST

    return [
        f"{LATEST.major}.{minor}" for minor in range(OLDEST.minor, LATEST.minor + 1)
    ]


def _at(place: str) -> Callable[[click.Context], Iterable[str]]:
    """Return the function that looks up the words at ``module:NAME``, imported when needed."""
    return lambda _context: resolve_name(place)


def _result_of(place: str) -> Callable[[click.Context], Iterable[str]]:
    """Return the function that calls ``module:NAME``, imported when needed, for the words."""
    return lambda _context: resolve_name(place)()


def _listed(words: Iterable[str]) -> Callable[[click.Context], Iterable[str]]:
    return lambda _context: words


def _grain(text: str) -> str | int:
    word = text.lower()
    return word if word in GRANULARITIES else parse_size(text, binary_suffix=True)


def _threads(text: str) -> int | None:
    if text.lower() == "auto":
        return None
    if not (text.isdecimal() and 1 <= int(text) <= ENGINE_THREADS):
        raise InputError(f"threads {text!r}: must be auto, or 1 to {ENGINE_THREADS}")
    return int(text)


def _order(text: str) -> str | int:
    return "any" if text.lower() == "any" else parse_size(text, binary_suffix=True)


RUNNABLE = tuple(
    name
    for name, item in OPERATIONS.items()
    if item.test and (item.nccl or name == "sendrecv")
)
"""Operations in help and completion: NCCL calls of nccl-tests, and its message pairs."""

CHIP = Value("chip", words=_at("clusim.hardware:GPUS"))
FAULT = Value("text", words=_faults, between="; ")
RELEASE = Value("release", words=_releases, between="")
RECORDING_KIND = Value(
    "kind", words=_result_of("clusim.formats.recordings.kinds:all_kinds")
)
TOPOLOGY_KIND = Value(
    "kind", words=_result_of("clusim.formats.topologies:all_kinds")
)
TOPOLOGY = Value(
    "topology",
    words=_topologies,
    files=True,
    help="a preset (listed by clusim topo list), a topology file, or a generator such as fat-tree:k=8",
)
WORKLOAD = Value("workload", words=_workloads, files=True)
RECORDING = Value("recording", words=_recordings, between="", files=True)
RECORDED_FILE = Value("file", _recording, _recordings, "", files=True)
"""Path of a recording, or of the shipped one of that name."""
GRID = Value("grid", _file_of("shipped_sweeps"), _sweeps, "", files=True)
SERVING = Value("serving", words=_serving, files=True)
JOBS = Value(
    "jobs", words=_result_of("clusim.base.resources:shipped_jobs"), files=True
)
MEASURED = Value(
    "files", _file_of("shipped_recordings"), _recordings, "", files=True
)
ALGORITHM = Value("algorithm", WORDS["algorithm"], _algorithms, files=True)
COLLECTIVE = Value("collective", WORDS["operation"], _listed(RUNNABLE), "")
DTYPE = Value("type", WORDS["dtype"], _listed(DTYPES), "")
PROTOCOL = Value(
    "|".join(PROTOCOL_NAMES), WORDS["protocol"], _listed(PROTOCOL_NAMES), ""
)
REDOP = Value("|".join(REDUCTIONS), WORDS["redop"], _listed(REDUCTIONS), "")
ORDER = Value("any|size", _order)
SIZE = Value("size", partial(parse_size, binary_suffix=True))
TIME = Value("time", parse_time)
GRANULARITY = Value("|".join((*GRANULARITIES, "size")), _grain)
RANKS = Value("ranks", parse_ranks)
DOMAINS = Value("DxG", parse_domains)
PERCENT = Value("percent", parse_percent)
THREADS = Value("auto|N", _threads, _listed(("auto",)), "")


class _OneOf(click.Choice[str]):
    """One of some words, in any case; another word is answered by the one it may mean."""

    def __init__(self, words: tuple[str, ...], meant: Mapping[str, str]) -> None:
        super().__init__(words, case_sensitive=False)
        self.meant = meant

    def get_invalid_choice_message(
        self, value: Any, ctx: click.Context | None
    ) -> str:
        """Return the error, and the right value."""
        return f"{value!r}: unknown{suggest(str(value), self.choices, self.meant)}"


def one_of(*words: str, **meant: str) -> click.Choice[str]:
    """Return the type of a value that is one of some words, in any case.

    `meant` contains frequent alternative words.
    """
    return _OneOf(words, meant)


def command_line() -> str:
    """Return the typed command line, for the trace."""
    import shlex

    return shlex.join(["clusim", *sys.argv[1:]])
