"""Settings among the regular lines of a block; equal texts of ranks are read once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clusim.formats.logs.columns import NONE
from clusim.formats.logs.digits import hashes, word
from clusim.formats.logs.known import KnownTexts
from clusim.formats.logs.messages import note_setting, setting_of
from clusim.formats.logs.raw_log import RawLog
from clusim.formats.logs.scan import Scan

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
            found = setting_of(scan.buffer[start[i] : end[i]].tobytes().decode("utf-8", "replace"))
            if found is None:
                return NONE
            self._settings.append(found)
            return len(self._settings) - 1

        setting = self._texts.look(hashes(scan.buffer, start, end, _BYTES), make)
        own = setting >= 0
        rows, setting, process = rows[own], setting[own], processes[rows[own]]

        def note(i: int) -> int:
            return int(note_setting(self._facts, int(process[i]), *self._settings[setting[i]]))

        both = setting.astype(np.uint64) << np.uint64(32) | process.astype(np.uint64)
        taken[rows[self._noted.look(both, note) > 0]] = True
        return taken
