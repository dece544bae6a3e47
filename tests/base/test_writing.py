"""What is written is whole or not there, and what was there before stays until the new file is complete."""

from __future__ import annotations

import csv
import errno
import io
import os
import resource
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusim.base import files
from clusim.base.errors import EnvironmentFailure, InputError


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("old")
    return path


def nothing_left(target: Path) -> bool:
    """Return whether the old file is as it was and alone."""
    return target.read_text() == "old" and os.listdir(target.parent) == [target.name]


@contextmanager
def small_disk(limit_bytes: int) -> Iterator[None]:
    """Make writes beyond a size fail, as those on a full disk do."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_new_file_takes_the_place_of_the_old_one_at_the_end(target: Path) -> None:
    with files.replacing(target) as out:
        out.write(b"new")
        out.flush()
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert os.listdir(target.parent) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
def test_an_exception_leaves_the_old_file_and_nothing_else(
    target: Path, error: type[BaseException]
) -> None:
    def write() -> None:
        with files.replacing(target) as out:
            out.write(b"half")
            raise error

    with pytest.raises(error):
        write()
    assert nothing_left(target)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(target: Path) -> None:
    with small_disk(1000), pytest.raises(EnvironmentFailure, match="file: cannot be written"):
        files.write_bytes(target, bytes(5000))
    assert nothing_left(target)


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_disk_that_fails_late_leaves_the_old_file_and_nothing_else(
    target: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        with pytest.raises(EnvironmentFailure, match="No space left"):
            files.write_text(target, "new")
    assert nothing_left(target)


def test_data_and_name_are_on_the_disk_before_it_is_done(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def replaced(source: Path, place: Path) -> None:
        steps.append("rename")
        replace(source, place)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    files.write_text(target, "new")
    assert steps == ["file", "rename", "folder"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_the_mode_of_a_file_is_kept(target: Path, mode: int) -> None:
    target.chmod(mode)
    files.write_text(target, "new")
    assert stat.S_IMODE(target.stat().st_mode) == mode


def test_a_new_file_has_the_mode_that_others_would_have(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "new", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_link_stays_and_what_it_names_is_written(target: Path) -> None:
    (target.parent / "deep").mkdir()
    link = target.parent / "deep" / "link"
    link.symlink_to("../file")
    files.write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    (target.parent / "ahead").symlink_to("deep/missing")
    files.write_text(target.parent / "ahead", "found")
    assert (target.parent / "deep" / "missing").read_text() == "found"


def test_other_names_of_the_old_file_keep_what_they_had(target: Path) -> None:
    other = target.parent / "other"
    other.hardlink_to(target)
    files.write_text(target, "new")
    assert other.read_text() == "old"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    files.write_text(pipe, "through")
    reader.join(timeout=30)
    assert got == [b"through"]
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_device_is_written_to_and_its_failure_is_one_line() -> None:
    files.write_text("/dev/null", "nothing")
    with pytest.raises(EnvironmentFailure, match=r"^/dev/full: cannot be written: No space left"):
        files.write_text("/dev/full", "much")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "LINK"])
def test_standard_output_is_written_to_by_all_its_names(
    name: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "link").symlink_to("/dev/stdout")
    path = str(tmp_path / "link") if name == "LINK" else name
    sys.stdout.write("before ")
    files.write_text(path, "text")
    assert capsysbinary.readouterr().out == b"before text"
    assert files.is_stream(path)


def test_another_open_file_is_written_to_by_its_number(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        log.write(b"line\n")
        log.flush()
        files.write_text(f"/dev/fd/{log.fileno()}", "more\n")
    assert (tmp_path / "log").read_text() == "line\nmore\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing/file", "No such file or directory"), (".", "Is a directory"), ("", "Is a directory"),
     ("file/file", "Not a directory")],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_one_line(
    target: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.chdir(target.parent)
    with pytest.raises(EnvironmentFailure, match=reason):
        files.write_text(name, "text")
    with pytest.raises(EnvironmentFailure):
        files.check_place(name)
    assert nothing_left(target)


def test_a_file_that_may_not_be_written_is_not_replaced_either(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(EnvironmentFailure, match="Permission denied"):
        files.write_text(target, "new")
    assert nothing_left(target)


def test_several_files_take_their_places_together_or_not_at_all(target: Path) -> None:
    other = target.parent / "new" / "folder"

    def write(error: type[Exception] | None) -> None:
        with files.Staging() as staging:
            staging.folder(other)
            for place in (target, other / "second"):
                with staging.open(place) as out:
                    out.write(b"new")
            if error is not None:
                raise error

    with pytest.raises(RuntimeError):
        write(RuntimeError)
    assert nothing_left(target)
    write(None)
    assert target.read_text() == (other / "second").read_text() == "new"
    assert len(list(target.parent.rglob("*"))) == 4


def test_what_a_file_is_made_from_is_not_replaced_under_any_name(target: Path) -> None:
    (target.parent / "link").symlink_to(target)
    (target.parent / "hard").hardlink_to(target)
    for name in ("file", "link", "hard", "../" + target.parent.name + "/file"):
        with pytest.raises(InputError, match="would be replaced; use another output file"):
            files.write_text(target.parent / name, "new", [target])
    assert target.read_text() == "old"


def test_what_was_read_is_not_replaced_while_it_is_guarded(target: Path) -> None:
    with files.guard_inputs():
        files.note_input(target)
        with pytest.raises(InputError, match="file: is an input"):
            files.write_text(target, "new")
    files.write_text(target, "new")
    assert target.read_text() == "new"


def test_standard_input_is_an_input(target: Path) -> None:
    saved = os.dup(0)
    try:
        with target.open("rb") as file:
            os.dup2(file.fileno(), 0)
        with files.guard_inputs():
            files.note_input("-")
            with pytest.raises(InputError, match="is the input - under another name"):
                files.write_text(target, "new")
    finally:
        os.dup2(saved, 0)
        os.close(saved)


def test_a_device_may_be_read_and_written() -> None:
    files.write_text("/dev/null", "text", ["/dev/null"])


def test_two_options_do_not_write_one_file(target: Path) -> None:
    (target.parent / "link").symlink_to(target)
    files.distinct([("--one", target), ("--two", "-"), ("--three", "-")])
    with pytest.raises(InputError, match=r"--two .*link: is written by --one, too"):
        files.distinct([("--one", target), ("--two", target.parent / "link")])


def test_a_lock_is_held_once_and_says_by_whom(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = files.Lock(path)
    with pytest.raises(files.LockedError) as caught:
        files.Lock(path)
    assert caught.value.holder == os.getpid()
    lock.release()
    assert not path.exists()
    files.Lock(path).release()


def test_a_lock_left_behind_by_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("4194303\n")
    lock = files.Lock(path)
    assert path.read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_lock_whose_file_went_while_it_was_taken_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    take, times = files.Lock._take, 0

    def late(descriptor: int) -> None:
        nonlocal times
        times += 1
        if times == 1:
            path.unlink()  # as the holder before does just now
        take(descriptor)

    monkeypatch.setattr(files.Lock, "_take", staticmethod(late))
    lock = files.Lock(path)
    assert times == 2
    with pytest.raises(files.LockedError):
        files.Lock(path)
    lock.release()


def test_a_lock_does_not_write_through_a_link(target: Path) -> None:
    (target.parent / "lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        files.Lock(target.parent / "lock")
    assert target.read_text() == "old"


def test_texts_that_a_spreadsheet_would_run_are_quoted_in_csv() -> None:
    out = io.StringIO()
    files.write_csv(out, [["=cmd|' /C calc'!A0", "+1", "-2", "@SUM(A1)", "\tx", "plain", -5, 2.5]])
    (row,) = csv.reader(io.StringIO(out.getvalue()))
    assert row == ["'=cmd|' /C calc'!A0", "'+1", "'-2", "'@SUM(A1)", "'\tx", "plain", "-5", "2.5"]


def test_what_a_killed_process_left_is_removed_and_what_another_one_writes_stays(
    tmp_path: Path,
) -> None:
    orphan = tmp_path / f".clusim-{'0' * 16}.tmp"
    orphan.write_bytes(b"half")
    with files.replacing(tmp_path / "a") as first:
        assert not orphan.exists()
        first.write(b"a")
        files.write_bytes(tmp_path / "b", b"b")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"a", "b": b"b"}
