"""File object for HDF5 whose file on disk is always consistent, even on a full disk.

HDF5 writes its metadata at any time, so a killed writer leaves an unreadable file; after a failed write the library
cannot close the file and crashes. Here `commit` moves the file from one consistent state to the next: writes over
committed data are kept in memory until then, and new data are written after them, where the file on disk does not
refer to. A failed write is recorded in `error`, and the library sees success. Space for new data is allocated before
old data are overwritten, so on a full disk the file keeps the state of the last commit.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clusim.base.files import keep_mode

SIGNATURE_BYTES = 8
"""Start of the file that is missing before the first commit: it does not look like HDF5 [bytes]."""


class Journal(io.RawIOBase):
    """File object for h5py."""

    def __init__(self, path: Path) -> None:
        # A new file: an old one may have other names, and somebody may be reading it.
        path.unlink(missing_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # In the order of writing; a write over exactly the same range replaces the older one.
        self._pending: dict[tuple[int, int], bytes] = {}
        self._position = self._size = self._committed = 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position; returns it."""
        base = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self._position,
            os.SEEK_END: self._size,
        }[whence]
        self._position = base + offset
        return self._position

    def write(self, data: Any) -> int:
        """Write `data` at the position; only data after the last commit are written to disk."""
        block, start = bytes(data), self._position
        self._position = start + len(block)
        self._size = max(self._size, self._position)
        protected_bytes = max(
            0, min(len(block), max(self._committed, SIGNATURE_BYTES) - start)
        )
        if protected_bytes:
            self._pending.pop((start, protected_bytes), None)
            self._pending[start, protected_bytes] = block[:protected_bytes]
        with self._record_error():
            self._write_all(start + protected_bytes, block[protected_bytes:])
        return len(block)

    def readinto(self, buffer: Any) -> int:
        """Read written data at the position, pending or not."""
        start = self._position
        end = min(start + len(buffer), self._size)
        result = bytearray(max(0, end - start))
        stored = os.pread(self._descriptor, len(result), start)
        result[: len(stored)] = stored
        for (offset, _), block in self._pending.items():
            low, high = max(offset, start), min(offset + len(block), end)
            if low < high:
                result[low - start : high - start] = block[
                    low - offset : high - offset
                ]
        buffer[: len(result)] = result
        self._position = start + len(result)
        return len(result)

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file at the next commit."""
        self._size = self._position if size is None else size
        return self._size

    @property
    def is_consistent(self) -> bool:
        """True if the file on disk is consistent: the first commit was done."""
        return self._committed > 0

    def commit(self) -> None:
        """Write all pending data; after a failure `error` is set and the file is unchanged, or not `is_consistent`."""
        with self._record_error():
            self._make_room()
            if self._size > self._committed:
                os.ftruncate(self._descriptor, self._size)
            if self.error is None:
                self._write_pending()
        self._pending.clear()

    def _write_pending(self) -> None:
        """Write over committed data, which are lost if that fails."""
        self._committed = 0
        for (offset, _), block in self._pending.items():
            self._write_all(offset, block)
        os.ftruncate(self._descriptor, self._size)
        self._committed = self._size

    def _make_room(self) -> None:
        """Let the disk set aside space for the file; raises `OSError` if it is full."""
        if self.error is not None or self._size <= self._committed:
            return
        try:
            os.posix_fallocate(self._descriptor, 0, self._size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise

    @contextmanager
    def _record_error(self) -> Iterator[None]:
        """Record an error, and return to the state of the last commit."""
        try:
            yield
        except OSError as error:
            self.error = error
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._committed)

    def _write_all(self, offset: int, block: bytes) -> None:
        view = memoryview(block)
        while view and self.error is None:
            count = os.pwrite(self._descriptor, view, offset)
            offset, view = offset + count, view[count:]

    def settle(self, target: Path) -> None:
        """Synchronise the file to disk, with the mode of `target`, which it is about to replace."""
        keep_mode(self._descriptor, target)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file without writing pending data."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()
