"""A file for HDF5 to write into that is whole at every moment, and that survives a full disk.

HDF5 writes its metadata whenever it likes, so a killed writer leaves a file nobody can open; and after a
failed write the library cannot close the file, it crashes. Here everything it writes is held back until
`commit`, which brings the file from one whole state to the next in one go, and a failed write is remembered
in `error` while the library is told that all is well. Room for what is new is made before anything old is
overwritten, so on a full disk the file stays as the last commit left it.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from clusim.base.files import keep_mode

MAX_PENDING_BYTES = 64 << 20
"""More than this is not held back but written early, to bound memory [bytes]."""


class Journal:
    """A file object as h5py takes it."""

    def __init__(self, path: Path) -> None:
        # A new file: an old one may have other names, and somebody may be reading it.
        path.unlink(missing_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # In the order of writing; what is written anew over exactly the same place replaces the old.
        self._pending: dict[tuple[int, int], bytes] = {}
        self._pending_bytes = 0
        self._position = 0
        self._size = 0
        self._committed = 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position; returns it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def write(self, data: bytes | memoryview) -> int:
        """Hold `data` back for the position."""
        block, start = bytes(data), self._position
        if self._pending.pop((start, len(block)), None) is None:
            self._pending_bytes += len(block)
        self._pending[start, len(block)] = block
        self._position = start + len(data)
        self._size = max(self._size, self._position)
        if self._pending_bytes > MAX_PENDING_BYTES:
            self._spill()
        return len(data)

    def readinto(self, buffer: memoryview) -> int:
        """Read at the position what has been written, held back or not."""
        start = self._position
        end = min(start + len(buffer), self._size)
        result = bytearray(max(0, end - start))
        stored = os.pread(self._descriptor, len(result), start)
        result[: len(stored)] = stored
        for (offset, _), block in self._pending.items():
            low, high = max(offset, start), min(offset + len(block), end)
            if low < high:
                result[low - start : high - start] = block[low - offset : high - offset]
        buffer[: len(result)] = result
        self._position = start + len(result)
        return len(result)

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes from the position on."""
        buffer = bytearray(count)
        return bytes(buffer[: self.readinto(memoryview(buffer))])

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file at the next commit."""
        self._size = self._position if size is None else size
        return self._size

    def flush(self) -> None:
        """Do nothing: `commit` decides when the file changes."""

    @property
    def whole(self) -> bool:
        """True if the file on disk is in a whole state: the first commit was done."""
        return self._committed > 0

    def commit(self) -> None:
        """Write everything held back; a failure is in `error` afterwards, and the file as it was."""
        try:
            if self.error is None:
                self._make_room(self._size)
                for (offset, _), block in self._pending.items():
                    self._write_all(offset, block)
                os.ftruncate(self._descriptor, self._size)
                self._committed = self._size
        except OSError as error:
            self._fail(error)
        self._pending.clear()
        self._pending_bytes = 0

    def _spill(self) -> None:
        """Write what lies behind the last commit, where nothing on disk refers to it.

        Before the first commit the start is held back, so that the file does not look like HDF5 before it is.
        """
        first = self._committed == 0
        end = max(1, self._committed)
        kept = {place: block for place, block in self._pending.items() if place[0] < end}
        if not first and any(offset + size > self._committed for offset, size in kept):
            self.commit()
            return
        try:
            if self.error is None:
                for place, block in self._pending.items():
                    if place not in kept:
                        self._write_all(place[0], block)
        except OSError as error:
            self._fail(error)
        self._pending = kept
        self._pending_bytes = sum(size for _, size in kept)

    def _make_room(self, size: int) -> None:
        """Let the disk set aside a file of `size` bytes; raises `OSError` if it is full."""
        if size <= self._committed or not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise

    def _fail(self, error: OSError) -> None:
        self.error = error
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._committed)

    def _write_all(self, offset: int, block: bytes) -> None:
        view = memoryview(block)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            offset, view = offset + written, view[written:]

    def settle(self, target: Path) -> None:
        """Bring the file to the disk for good, with the mode of the `target` whose place it is about to take."""
        keep_mode(self._descriptor, target)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file without writing what is held back."""
        os.close(self._descriptor)
