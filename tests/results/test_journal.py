from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusim.results.trace.journal import Journal

WRITES = st.lists(
    st.tuples(st.integers(0, 60), st.binary(min_size=1, max_size=30), st.booleans()), max_size=40
)


@given(WRITES)
def test_reads_back_what_was_written_last(writes: list[tuple[int, bytes, bool]]) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"clusim-journal-{os.getpid()}"
    journal, plain = Journal(path), bytearray()
    try:
        for offset, data, commit in writes:
            journal.seek(offset)
            journal.write(data)
            plain.extend(bytes(max(0, offset + len(data) - len(plain))))
            plain[offset : offset + len(data)] = data
            if commit:
                journal.commit()
            journal.seek(0)
            assert journal.read(200) == bytes(plain)
        journal.commit()
        assert path.read_bytes() == bytes(plain)
    finally:
        journal.close()
        path.unlink()


def test_the_file_changes_only_at_a_commit(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "x")
    journal.write(b"first")
    journal.commit()
    journal.seek(0)
    journal.write(b"second")
    assert (tmp_path / "x").read_bytes() == b"first"
    journal.truncate(6)
    journal.commit()
    assert (tmp_path / "x").read_bytes() == b"second"
    journal.close()


def test_a_failed_write_is_remembered_and_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal(tmp_path / "x")
    journal.write(b"data")
    monkeypatch.setattr(os, "pwrite", full)
    journal.commit()
    journal.write(b"more")
    journal.commit()
    assert journal.error is not None
    assert journal.error.errno == errno.ENOSPC
    journal.close()


def test_on_a_full_disk_the_file_stays_as_the_last_commit_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal(tmp_path / "x")
    journal.write(b"whole state")
    journal.commit()
    monkeypatch.setattr(os, "posix_fallocate", full)
    journal.seek(0)
    journal.write(b"half of another, and longer")
    journal.commit()
    assert journal.error is not None
    assert journal.is_consistent
    assert (tmp_path / "x").read_bytes() == b"whole state"
    journal.close()


def test_what_is_written_early_leaves_the_committed_state_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "x")
    journal.write(b"0123456789")
    journal.commit()
    journal.seek(2)
    journal.write(b"##")
    journal.seek(10)
    journal.write(b"a" * 30)
    journal.seek(8)
    journal.write(b"####")
    journal.seek(10)
    journal.write(b"aa")
    assert (tmp_path / "x").read_bytes() == b"0123456789" + b"a" * 30
    journal.seek(0)
    assert journal.read(12) == b"01##4567##aa"
    journal.commit()
    assert (tmp_path / "x").read_bytes() == b"01##4567##" + b"a" * 30
    journal.close()


def test_what_is_written_before_the_first_commit_does_not_look_like_a_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "x")
    journal.write(b"signature")
    journal.write(b"a" * 30)
    journal.write(b"b" * 30)
    assert not journal.is_consistent
    assert (tmp_path / "x").read_bytes() == bytes(8) + b"e" + b"a" * 30 + b"b" * 30
    journal.commit()
    assert journal.is_consistent
    assert (tmp_path / "x").read_bytes() == b"signature" + b"a" * 30 + b"b" * 30
    journal.close()


def test_a_new_journal_is_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    with (tmp_path / "x").open("rb") as reader:
        Journal(tmp_path / "x").close()
        assert reader.read() == b"old"
