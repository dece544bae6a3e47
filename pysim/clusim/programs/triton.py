"""Package ``triton`` for programs that import it, where it is not installed.

A CUDA build of PyTorch requires Triton, so libraries import it unconditionally and define kernels that a program may
never call. Names of this package exist, decorators return kernels, and a kernel that is launched is refused.
**Not modelled** The kernels; tests of libraries for Triton see that it is installed, as on the simulated system.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

from clusim.base.errors import InputError
from clusim.programs.failures import AS_OPERATOR

RELEASE = "3.4.0"
"""Release that the package states."""


class _Named(type):
    """Type of the names of the package: their attributes are names, too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _name(f"{cls.__qualname__}.{name}")

    def __getitem__(cls, _item: object) -> Any:
        return cls


class TritonName(metaclass=_Named):
    """Any name of the package: a decorator, a type, or a value."""

    def __new__(cls, *given: Any, **_more: Any) -> Any:
        """Return a kernel for a function or a kernel, and the name otherwise."""
        if len(given) == 1 and isinstance(given[0], FunctionType | TritonKernel):
            return TritonKernel(given[0].__name__)
        return cls


class TritonKernel:
    """A kernel; its launch is refused."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getitem__(self, _grid: object) -> Callable[..., Any]:
        return self

    def __call__(self, *_given: Any, **_more: Any) -> Any:
        """Raise `InputError`."""
        raise InputError(
            f"{self.__name__}: kernels of Triton do not run; {AS_OPERATOR}"
        )

    run = warmup = __call__


def _name(qualified: str) -> Any:
    """Return a name of the package."""
    return _Named(
        qualified.rpartition(".")[2], (TritonName,), {"__qualname__": qualified}
    )


class _TritonModule(ModuleType):
    """Module of the package."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _HOST.get(name) or _name(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


_HOST: dict[str, Callable[..., int]] = {
    "cdiv": lambda x, y: -(-x // y),
    "next_power_of_2": lambda n: 1 << max(0, n - 1).bit_length(),
}
"""Functions of the package that compute grids on the host."""


class _TritonFinder(MetaPathFinder, Loader):
    """Finds the package and its modules."""

    def find_spec(
        self,
        name: str,
        _path: Sequence[str] | None = None,
        _target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "triton":
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _TritonModule(spec.name)
        module.__version__ = RELEASE  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None:
        return None


def install() -> None:
    """Let programs import the package if it is not installed; PyTorch's tests for it run first."""
    if find_spec("triton") is not None:
        return
    from torch.utils import _triton

    for test in (
        _triton.has_triton_package,
        _triton.has_triton,
        _triton.get_triton_version,
    ):
        test()
    sys.meta_path.append(_TritonFinder())
