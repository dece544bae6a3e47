"""File object for HDF5 whose file on disk is always consistent, even on a full disk.

HDF5 writes its metadata at any time, so a killed writer leaves an unreadable file; after a failed write the library
cannot close the file and crashes. Here all writes are kept in memory until `commit`, which moves the file from one
consistent state to the next. A failed write is recorded in `error`, and the library sees success. Space for new data
is allocated before old data are overwritten, so on a full disk the file keeps the state of the last commit.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from clusim.base.files import keep_mode

MAX_PENDING_BYTES = 64 << 20
"""Limit of pending data; more is written early, to bound memory [bytes]."""


class Journal:
    """File object for h5py."""

    def __init__(self, path: Path) -> None:
        # A new file: an old one may have other names, and somebody may be reading it.
        path.unlink(missing_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # In the order of writing; a write over exactly the same range replaces the older one.
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
        """Read written data at the position, pending or not."""
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
        """Do nothing: only `commit` changes the file."""

    @property
    def whole(self) -> bool:
        """True if the file on disk is consistent: the first commit was done."""
        return self._committed > 0

    def commit(self) -> None:
        """Write all pending data; after a failure `error` is set and the file is unchanged."""
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
        """Write pending data after the end of the last commit, not referenced by data on disk.

        Before the first commit the start of the file stays pending, so that an incomplete file does not look like
        HDF5.
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
        """Synchronise the file to disk, with the mode of `target`, which it is about to replace."""
        keep_mode(self._descriptor, target)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file without writing pending data."""
        os.close(self._descriptor)
