"""Choice of a policy by name or file, and its record for a flow, a receiver or an output.

A file is run only if the user names it: on the command line, in Python or in a topology.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError, suggest
from clusim.base.extensions import extensions, further_extensions
from clusim.base.records import dataclass
from clusim.policies.kinds import KINDS
from clusim.policies.sender import DEFINED, SenderPolicy, read_class

GROUP = "clusim.policies"
"""Entry points of policies in other distributions."""


@cache
def shipped() -> dict[str, SenderPolicy]:
    """Return the shipped policies by name."""
    from clusim.policies import dcqcn, hpcc, nscc, paths, rccc, timely, windows

    classes = {
        "dcqcn-policy": dcqcn.Dcqcn,
        "swift": windows.Swift,
        "dctcp": windows.Dctcp,
        "timely": timely.Timely,
        "nscc": nscc.Nscc,
        "hpcc": hpcc.Hpcc,
        "plb": paths.Plb,
        "reps": paths.Reps,
        "rccc": rccc.Rccc,
        "adaptive-policy": paths.Adaptive,
    }
    return {name: read_class(name, cls) for name, cls in classes.items()}


def is_policy(name: str) -> bool:
    """True if a policy has this name, or if it is ``file.py:Class``."""
    return ":" in name or name in shipped() or name in extensions(GROUP)


def find_policy(name: str) -> SenderPolicy:
    """Return a policy by its name, also of another distribution, or by ``file.py:Class``; a file is run.

    Raises
    ------
    InputError
        An unknown name, a missing file or class, or a file that fails.
    """
    if name in DEFINED:
        return DEFINED[name]
    path, colon, class_name = name.rpartition(":")
    if not colon:
        if name in shipped():
            return shipped()[name]
        points = further_extensions(GROUP, shipped())
        if name not in points:
            hint = suggest(name, [*shipped(), *points])
            raise InputError(f"policy {name!r}: unknown{hint}, or file.py:Class")
        module, _, class_name = points[name].target.partition(":")
        cls = replace(points[name], target=module).attribute(class_name, type)
        DEFINED[name] = read_class(name, cls)
        return DEFINED[name]
    members = vars(_run_file(Path(path).resolve(), name))
    cls = members.get(class_name)
    if not isinstance(cls, type):
        classes = [
            key for key, value in members.items() if hasattr(value, "clusim_policy")
        ]
        raise InputError(
            f"policy {name}: no class {class_name!r}{suggest(class_name, classes)}"
        )
    DEFINED[name] = read_class(name, cls)
    return DEFINED[name]


def _run_file(path: Path, name: str) -> Any:
    """Run a policy's file and return its module."""
    if not path.is_file():
        raise InputError(
            f"policy {name}: no file {path.name!r}; write file.py:Class"
        )
    spec = spec_from_file_location(f"clusim_policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"policy {name}: {path.name} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        line = getattr(error, "lineno", None) or _line_of(error, path)
        raise InputError(
            f"policy {name}: line {line}: {type(error).__name__}: {error}"
        ) from error
    return module


def _line_of(error: BaseException, path: Path) -> int:
    """Return the last line of a file in an error's traceback."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


@dataclass(frozen=True, slots=True)
class Sender:
    """Choice of a policy: its name, and constants in place of the class's."""

    name: str
    constants: tuple[tuple[str, int], ...] = ()

    def check(self, *kinds: str) -> None:
        """Raise `InputError` for an unknown policy or constant, or one of other kinds than `kinds`."""
        of = find_policy(self.name)
        if of.kind.name not in kinds:
            marks = (KINDS[kind].mark or "acked" for kind in kinds)
            raise InputError(
                f"policy {self.name}: is of {of.kind.of}; use a class with {' or '.join(marks)}"
            )
        for key, _ in self.constants:
            if key not in of.constants:
                raise InputError(
                    f"policy {self.name}: no constant {key!r}{suggest(key, of.constants)}"
                )


@dataclass(frozen=True, slots=True)
class BoundSender:
    """A policy for the flows of one rate control: names and values of a flow's record at its start."""

    sender: Sender
    rates: tuple[tuple[str, int], ...]

    @property
    def policy(self) -> SenderPolicy:
        """The policy."""
        return find_policy(self.sender.name)

    @property
    def record(self) -> tuple[int | tuple[int, ...], ...]:
        """Values of a flow's fields at its start."""
        return self.policy.record(dict(self.rates), dict(self.sender.constants))

    @property
    def words(self) -> list[int]:
        """The record, word by word."""
        parts = (
            value if isinstance(value, tuple) else (value,) for value in self.record
        )
        return [word for part in parts for word in part]

    @property
    def flow_words(self) -> list[int]:
        """Words of a flow's record at a receiver."""
        parts = self.policy.flow.values()
        return [
            word
            for part in parts
            for word in (part if isinstance(part, tuple) else (part,))
        ]

    @property
    def identity(self) -> str:
        """Text that differs for policies with other results: source of the functions, and the record."""
        of = self.policy
        return "\0".join([*of.fields, repr(self.record), _module_source(of)])


def _module_source(of: SenderPolicy) -> str:
    """Return the source of the file in which a policy is defined, or of all functions of its notebook."""
    module = inspect.getmodule(of.cls)
    assert module is not None
    if hasattr(module, "__file__"):
        return inspect.getsource(module)
    helpers = filter(inspect.isfunction, vars(module).values())
    functions: list[Callable[..., Any]] = [*of.functions.values(), *helpers]
    return "".join(map(inspect.getsource, functions))


def option_of(name: str) -> str:
    """Return the text of a policy for the option ``--policy``: its kind and name."""
    return f"{find_policy(name).kind.name}={name}"


def source_digest(text: str) -> str:
    """Return a text that differs for policies with other results: names and digest of the sources of `text`."""
    chosen = [one.name for one in parse_policy(text).values() if one is not None]
    if not chosen:
        return text
    source = "".join(_module_source(find_policy(name)) for name in chosen).encode()
    return f"{text} {blake2b(source, digest_size=8).hexdigest()}"


def parse_policy(text: str) -> dict[str, Sender | None]:
    """Return the policies of ``KIND=NAME``, such as ``sender=NAME``, by kind, several after commas.

    None is ``KIND=none``, without a policy.

    Raises
    ------
    InputError
        Another kind of policy, an unknown one, or two of one kind.
    """
    chosen: dict[str, Sender | None] = {}
    for part in _BEFORE_KIND.split(text):
        kind, sender = _parse_one(part)
        if kind in chosen:
            raise InputError(f"policy {text!r}: two of kind {kind}; name one")
        chosen[kind] = sender
    return {kind: chosen[kind] for kind in KINDS if kind in chosen}


_BEFORE_KIND = re.compile(r",(?=\s*\w+=)")


def _parse_one(text: str) -> tuple[str, Sender | None]:
    """Return kind and policy of ``KIND=NAME``."""
    kind, equals, name = text.partition("=")
    kind = kind.strip()
    if not equals or kind not in KINDS:
        raise InputError(
            f"policy {text!r}: must be KIND=NAME, such as sender=swift; kinds: {', '.join(KINDS)}"
        )
    if name.strip() == "none":
        return kind, None
    result = Sender(name.strip())
    result.check(kind)
    return kind, result
