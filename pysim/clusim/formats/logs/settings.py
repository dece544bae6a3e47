"""Settings among the regular lines of a block, and a cache of texts by their hash.

Ranks write equal texts: each is read once, and a few hundred texts cover millions of lines.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from clusim.formats.logs.digits import hashes, word
from clusim.formats.logs.messages import note_setting, setting_of
from clusim.formats.logs.raw_log import RawLog
from clusim.formats.logs.repeating import NONE
from clusim.formats.logs.scan import Scan

_MISSING = np.iinfo(np.int64).min
_MOST = 1 << 20


class KnownTexts:
    """A number for each text, looked up by many hashes at once."""

    def __init__(self) -> None:
        """Start without known texts."""
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


_NAME = word(b"NCCL_")
_BYTES = 128


class SettingLines:
    """Recorder of settings in `facts`; repeated settings of a process are skipped."""

    def __init__(self, facts: RawLog) -> None:
        """Start without known texts."""
        self._facts = facts
        self._texts, self._noted = KnownTexts(), KnownTexts()
        self._settings: list[tuple[str, str]] = []

    def take(
        self, scan: Scan, processes: NDArray[np.int64], among: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Note the settings among these rows; return the mask of their rows."""
        taken = np.zeros(len(among), np.bool_)
        rows = np.flatnonzero(among)
        start, end = scan.message[rows], scan.ends[scan.regular[rows]]
        short = ((scan.head_words(start) & _NAME[1]) == _NAME[0]) & (end - start <= _BYTES)
        rows, start, end = rows[short], start[short], end[short]
        if len(rows) == 0:
            return taken

        def make(i: int) -> int:
            result = setting_of(scan.buffer[start[i] : end[i]].tobytes().decode("utf-8", "replace"))
            if result is None:
                return NONE
            self._settings.append(result)
            return len(self._settings) - 1

        setting = self._texts.look(hashes(scan.buffer, start, end, _BYTES), make)
        own = setting >= 0
        rows, setting, process = rows[own], setting[own], processes[rows[own]]

        def note(i: int) -> int:
            return int(note_setting(self._facts, int(process[i]), *self._settings[setting[i]]))

        both = setting.astype(np.uint64) << np.uint64(32) | process.astype(np.uint64)
        taken[rows[self._noted.look(both, note) > 0]] = True
        return taken
