"""Extensions by other installed distributions, found by their entry points.

An entry point has a group, a name and a module. The groups are ``clusim.recordings`` and ``clusim.topologies`` (readers
of formats, by kind), ``clusim.algorithms`` (modules with algorithms of collectives), ``clusim.policies`` (classes of
policies, as ``module:Class``) and ``clusim.gpus`` (packages with files of GPUs). The distribution ``clusim-formats``
also has ``clusim.plans`` and ``clusim.measurements``. Installed distributions are searched only if clusim itself does
not define a name or recognise a file, and when names are listed: the search lasts longer than a small run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from clusim.base.errors import ClusimError, InputError, lacking, one_line
from clusim.base.records import dataclass

FORMATS = "clusim-formats"
"""Distribution with clusim's readers of rare formats; errors in it are errors of clusim."""


@dataclass(frozen=True, slots=True)
class Extension:
    """An entry point: its group, name and module, and the name of its distribution."""

    group: str
    name: str
    target: str
    distribution: str

    def module(self) -> ModuleType:
        """Import the module; raises `InputError` with the distribution if that fails."""
        try:
            return import_module(self.target)
        except Exception as error:
            raise self.failure(f"{type(error).__name__}: {error}") from None

    def attribute(self, name: str, expected: type[Any]) -> Any:
        """Return an attribute of the module; raises `InputError` if it is absent or of another class."""
        value = getattr(self.module(), name, None)
        if not isinstance(value, expected):
            raise self.failure(f"{self.target}.{name} must be a {expected.__name__}")
        return value

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the module, with the errors of `guard`."""
        function = getattr(self.module(), name, None)
        if not callable(function):
            raise self.failure(f"{self.target} has no function {name}")
        return self.guard(function)

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that raises `InputError` with distribution and line for an unexpected error."""
        if self.distribution == FORMATS:
            return function

        @wraps(function)
        def call(*values: Any, **options: Any) -> Any:
            try:
                return function(*values, **options)
            except ClusimError:
                raise
            except Exception as error:
                raise self.failure(
                    f"{type(error).__name__}: {error}{_line_of(error)}"
                ) from error

        return call

    def failure(self, problem: str) -> InputError:
        """Return an error that names the distribution and the entry point."""
        return InputError(
            f"{self.distribution}: entry point {self.name} of {self.group}: {one_line(problem)}"
        )


def _line_of(error: Exception) -> str:
    """Return file and line of the innermost call of an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"


@cache
def extensions(group: str) -> dict[str, Extension]:
    """Return the extensions of a group by name.

    Raises
    ------
    InputError
        Two distributions define the same name, or the list of entry points of one is damaged.
    """
    from importlib.metadata import distributions

    result: dict[str, Extension] = {}
    searched: set[str] = set()
    for distribution in distributions():
        text = distribution.read_text("entry_points.txt")
        if not text or f"[{group}]" not in text or distribution.name in searched:
            continue
        searched.add(distribution.name)
        try:
            points = distribution.entry_points.select(group=group)
        except Exception as error:
            message = f"entry_points.txt: {type(error).__name__}: {error}"
            raise InputError(f"{distribution.name}: {one_line(message)}") from None
        for point in points:
            new = Extension(group, point.name, point.value, distribution.name)
            other = result.setdefault(point.name, new)
            if other is not new:
                raise new.failure(
                    f"{other.distribution} defines the same name; uninstall one"
                )
    return dict(sorted(result.items()))


def find_extension(group: str, name: str, subject: str) -> Extension:
    """Return an extension of `FORMATS`.

    Raises
    ------
    EnvironmentFailure
        It is not installed: the message has the subject, such as a file and its format, the distribution and its extra.
    """
    result = extensions(group).get(name)
    if result is None:
        raise lacking(subject, FORMATS, "formats")
    return result


def further_extensions(group: str, names: Collection[str]) -> dict[str, Extension]:
    """Return the extensions of a group that add to the names that clusim defines.

    Raises
    ------
    InputError
        An extension has one of these names, and is not of `FORMATS`.
    """
    result = extensions(group)
    for name in result.keys() & set(names):
        if result[name].distribution != FORMATS:
            raise result[name].failure(
                "clusim has a kind of this name; choose another"
            )
    return {
        name: extension for name, extension in result.items() if name not in names
    }
