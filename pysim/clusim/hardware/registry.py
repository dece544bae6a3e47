"""Hardware is found, not listed: every module of a package holds objects of one kind, and is imported at the start."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from clusim.base.errors import InputError

T = TypeVar("T")


def objects_of(package: ModuleType, kind: type[T], attribute: str) -> Iterator[tuple[str, T]]:
    """Yield the objects in the modules of a package, each with the name of its file.

    A module has one object, or a tuple of them, called `attribute`.

    Raises
    ------
    InputError
        A file that cannot be read or that lacks the attribute, with its name.
    """
    for found in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name):
        module = _imported(f"{package.__name__}.{found.name}", found.name)
        file = Path(module.__file__ or found.name).name
        value = getattr(module, attribute, None)
        for item in value if isinstance(value, tuple) else (value,):
            if not isinstance(item, kind):
                raise InputError(f"{file}: {attribute} is missing; it must be a {kind.__name__}")
            yield file, item


def _imported(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (InputError, TypeError) as error:
        raise InputError(f"{_culprit(error, name)}: {error}") from error


def _culprit(error: BaseException, name: str) -> str:
    """Return the innermost file of the package that was being imported: one file may start from another."""
    found, here = f"{name}.py", error.__traceback__
    while here is not None:
        code = here.tb_frame.f_code
        if code.co_name == "<module>":
            found = Path(code.co_filename).name
        here = here.tb_next
    return found
