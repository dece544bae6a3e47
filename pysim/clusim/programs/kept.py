"""Proofs of symmetry in the cache: valid for one program, its modules, arguments, system and packages.

A second run of a program compares no ranks if the files of all its modules are unchanged, and if the running ranks'
operations equal the first run's.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from clusim.base.kept import SampleCache, file_digest
from clusim.programs.symmetry import ComparedRanks, ProgramSymmetry


class KeptSymmetry:
    """Cached comparison of a program's ranks.

    Parameters
    ----------
    program : str
        Its file or module.
    given : tuple
        Arguments, system, ranks and options.
    """

    def __init__(self, program: str, given: tuple[Any, ...]) -> None:
        self._cache = SampleCache()
        packages = [_version(name) for name in ("torch", "numpy")]
        words = program, file_digest(program)
        self._question = (
            "program ranks",
            words,
            os.getcwd(),
            given,
            packages,
            platform.python_version(),
        )

    def ranks(self, compared: Sequence[int]) -> ComparedRanks:
        """Return the ranks to be compared, with the result of an earlier comparison if it is valid."""
        answer = self._cache.get(self._question)
        if answer is None or any(
            file_digest(f) != text for f, text in answer["files"].items()
        ):
            return ComparedRanks(tuple(compared))
        return ComparedRanks(tuple(compared), answer["digest"], answer["operations"])

    def keep(
        self, proof: ProgramSymmetry, digest: str, files: Sequence[str]
    ) -> None:
        """Keep a comparison without differences."""
        if proof.differences or proof.cached or not proof.equal:
            return
        answer = {
            "files": {name: file_digest(name) for name in files},
            "digest": digest,
            "operations": proof.operations,
        }
        self._cache.put(self._question, answer)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
