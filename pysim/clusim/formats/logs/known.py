"""Cache of texts by their hash: a few hundred texts cover millions of lines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_MISSING = np.iinfo(np.int64).min
_MOST = 1 << 20


class KnownTexts:
    """A number for each text, looked up by many hashes at once."""

    def __init__(self) -> None:
        """Start empty."""
        self._keys = np.zeros(0, np.uint64)
        self._values = np.zeros(0, np.int64)

    def look(self, keys: NDArray[np.uint64], make: Callable[[int], int]) -> NDArray[np.int64]:
        """Return the number of each key; `make` computes a new one from the index of its row."""
        values = self._find(keys)
        missing = np.flatnonzero(values == _MISSING)
        if len(missing) == 0:
            return values
        unique, first, inverse = np.unique(keys[missing], return_index=True, return_inverse=True)
        made = np.array([make(int(missing[row])) for row in first], np.int64)
        values[missing] = made[inverse]
        if len(self._keys) + len(unique) > _MOST:  # texts do not repeat: restart
            self._keys, self._values = self._keys[:0], self._values[:0]
        both = np.concatenate([self._keys, unique[:_MOST]])
        order = np.argsort(both, kind="stable")
        self._keys = both[order]
        self._values = np.concatenate([self._values, made[:_MOST]])[order]
        return values

    def _find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        if len(self._keys) == 0:
            return np.full(len(keys), _MISSING, np.int64)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._values[at], _MISSING)
