"""Compressed files beyond a ratio of expansion."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.formats import opened as opener
from clusim.formats.opened import (
    MOST_EXPANSION,
    TRUST,
    _BoundedStream,
    _CountedInput,
    open_file,
    unpack_stream,
)
from clusim.formats.recordings.source import lines
from clusim_cli.main import run

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
LINE = b"node:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0\n"


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opener, "FREE_BYTES", 1 << 16)


def _bomb(suffix: str, folder: Path) -> Path:
    path = folder / f"log.{suffix}"
    path.write_bytes(PACKERS[suffix](LINE * (1 << 15)))
    return path


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_file_is_read_up_to_a_ratio_and_in_full_if_it_is_trusted(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _bomb(suffix, tmp_path)
    texts: list[str] = []
    with pytest.raises(InputError, match="--trust"):
        texts.extend(text for _number, text in lines(str(path)))
    # A decompressor has read at most one buffer ahead.
    limit = (1 << 16) + MOST_EXPANSION * (path.stat().st_size + 8192)
    assert 0 < sum(len(text) + 1 for text in texts) <= limit
    monkeypatch.setenv(TRUST, "1")
    assert sum(1 for _ in lines(str(path))) == 1 << 15


@pytest.mark.parametrize("suffix", PACKERS)
def test_every_way_to_read_has_the_limit(suffix: str, tmp_path: Path) -> None:
    path = _bomb(suffix, tmp_path)
    ways: list[Callable[[Any], object]] = [
        lambda stream: stream.read(),
        lambda stream: list(iter(lambda: stream.read1(1 << 16), b"")),
        lambda stream: list(iter(lambda: stream.readline(1 << 16), b"")),
    ]
    for way in ways:
        with open_file(str(path)) as stream, pytest.raises(InputError, match="expands"):
            way(stream)
    pipe = io.BufferedReader(io.BytesIO(path.read_bytes()))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="standard input: expands"):
        unpack_stream(pipe, "standard input").read()


def test_the_limit_is_the_free_bytes_and_a_hundred_times_the_input() -> None:
    counted = _CountedInput(io.BytesIO(b"packed data"))
    assert counted.size == 0
    assert counted.read(4) == b"pack"
    assert counted.size == 4
    most = opener.FREE_BYTES + MOST_EXPANSION * 4
    assert _BoundedStream(io.BytesIO(bytes(most)), counted, "log").read() == bytes(most)
    with pytest.raises(InputError, match=r"^log: expands to more than 100 times its size"):
        _BoundedStream(io.BytesIO(bytes(most + 1)), counted, "log").read()
    stream = _BoundedStream(io.BytesIO(b"data"), counted, "log")
    assert (stream.read(0), stream.read(1), stream.read()) == (b"", b"d", b"ata")


def test_a_file_that_is_not_there_or_cannot_be_opened_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = socket.socket(socket.AF_UNIX)
    place.bind("socket")
    told = {
        "nccl-8xh10.log": "no such file; did you mean 'nccl-8xh100.log'?",
        "unlike anything": "no such file",
        f".{os.sep}nccl-8xh10.log": "no such file",
        "socket": "No such device or address",
    }
    for name, why in told.items():
        with pytest.raises(InputError) as error, open_file(name):
            pass
        assert str(error.value) == f"{name}: {why}"
    place.close()


@pytest.mark.parametrize("suffix", PACKERS)
def test_ordinary_logs_are_below_the_limit(suffix: str, tmp_path: Path) -> None:
    """Contents of the shipped log, as often as a long job repeats it with other numbers."""
    text = (Path(__file__).resolve().parents[2] / "traces/nccl-8xh100.log").read_bytes()
    many = b"".join(text.replace(b"8192", b"%d" % number) for number in range(8192, 8192 + 40))
    path = tmp_path / f"log.{suffix}"
    path.write_bytes(PACKERS[suffix](many))
    if len(many) < MOST_EXPANSION * path.stat().st_size:
        with open_file(str(path)) as stream:
            assert stream.read() == many


def test_the_option_applies_to_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(_bomb("gz", tmp_path))
    codes = [run([*words, "log", "summary", path]) for words in ([], ["--trust"], [])]
    assert codes == [2, 0, 2]
    lines_ = capsys.readouterr().err.splitlines()
    assert len(lines_) == 2
    assert all("expands to more than 100 times its size" in line for line in lines_)
