"""Quantities: what is read, what is refused and with which words, and that nothing is lost on the way."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusim.base.errors import ClusimError, UnitError
from clusim.base.units import (
    Rate,
    format_rate,
    format_size,
    format_time,
    parse_rate,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64MiB", 64 << 20),
        ("64 MiB", 64 << 20),
        ("64MB", 64_000_000),
        ("64KB", 64_000),
        ("1.5KiB", 1536),
        ("8GiB", 8 << 30),
        ("4096", 4096),
        ("4096 B", 4096),
        ("1e3", 1000),
        ("0", 0),
        (4096, 4096),
    ],
)
def test_sizes(text: str | int, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("64M", 64 << 20), ("8G", 8 << 30), ("8k", 8192), ("1MB", 10**6)]
)
def test_binary_suffixes_of_the_command_line(text: str, size_bytes: int) -> None:
    assert parse_size(text, binary_suffix=True) == size_bytes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("64M", "ambiguous size; write 64MiB (67108864 bytes) or 64MB (64000000 bytes)"),
        ("8Gi", "ambiguous size; write 8GiB"),
        ("64Mb", "'Mb' are bits, not bytes; write 64MB"),
        ("5 bits", "are bits, not bytes"),
        ("0.3B", "must be an integer number of bytes"),
        ("-3", "not a size"),
        ("", "not a size"),
        ("1,024", "not a size"),
        ("3 cows", "unknown unit 'cows'"),
        ("1e30 GiB", "too large"),
        (True, "not a size"),
        (3.5, "not a size"),
    ],
)
def test_refused_sizes(text: str | int, words: str) -> None:
    with pytest.raises(UnitError) as error:
        parse_size(text)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("25 GB/s", 25e9),
        ("25GB/s", 25e9),
        ("400 Gb/s", 50e9),
        ("400Gb/s", 50e9),
        ("400Gbps", 50e9),
        ("100 Mbit/s", 12.5e6),
        ("12 x 25GB/s", 300e9),
        ("12x25 GB/s", 300e9),
        ("25.78125 GB/s", 25.78125e9),
        ("1 GiB/s", 1 << 30),
        ("5 B/s", 5),
        ("0 GB/s", 0),
    ],
)
def test_rates(text: str, bytes_per_s: float) -> None:
    assert parse_rate(text).bytes_per_s == bytes_per_s


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("25G", "ambiguous rate; write 25 GB/s (bytes) or 25 Gb/s (bits)"),
        ("3", "needs a unit; write 3 GB/s (bytes) or 3 Gb/s (bits)"),
        ("32.0 GT/s PCIe", "transfers are not bytes"),
        ("1 cow/s", "unknown unit 'cow/s'"),
        ("GB/s", "not a rate"),
        (25, "not a rate"),
    ],
)
def test_refused_rates(text: str, words: str) -> None:
    with pytest.raises(UnitError) as error:
        parse_rate(text)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "time_ps"),
    [
        ("500ns", 500_000),
        ("1.2us", 1_200_000),
        ("1.2 µs", 1_200_000),
        ("3 ms", 3_000_000_000),
        ("1s", 10**12),
        ("250ps", 250),
        ("0", 0),
        (0, 0),
    ],
)
def test_times(text: str | int, time_ps: int) -> None:
    assert parse_time(text) == time_ps


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("500", "needs a unit; write 500ns"),
        ("5m", "did you mean ms or 60s?"),
        ("3NS", "did you mean 'ns'?"),
        ("2h", "did you mean"),
        ("0.5ps", "integer number of ps"),
        ("500nss", "unknown unit 'nss'"),
        (500, "needs a unit"),
    ],
)
def test_refused_times(text: str | int, words: str) -> None:
    with pytest.raises(UnitError) as error:
        parse_time(text)
    assert words in str(error.value)


@given(st.integers(0, 2**62))
def test_sizes_read_back_exactly(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes, exact=True)) == size_bytes


@given(st.integers(0, 2**62))
def test_times_read_back_exactly(time_ps: int) -> None:
    assert parse_time(format_time(time_ps, exact=True)) == time_ps


@given(st.integers(1, 10**15), st.sampled_from([1, 2, 4, 8, 64, 1280]))
def test_rates_read_back_exactly(num: int, den: int) -> None:
    rate = Rate.from_bytes_per_s(Fraction(num, den))
    assert parse_rate(format_rate(rate, exact=True)) == rate


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    refusals = []
    for parse in (parse_size, parse_rate, parse_time):
        try:
            parse(text)
        except ClusimError as error:
            refusals.append(str(error))
    assert not any("\n" in refusal for refusal in refusals)


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(0, 10**9))
def test_rate_time_is_rounded_up(num: int, den: int, size_bytes: int) -> None:
    rate = Rate(num, den)
    time_ps = rate.time_ps(size_bytes)
    assert (time_ps - 1) * rate.num < size_bytes * rate.den <= time_ps * rate.num


def test_people_read_short_numbers() -> None:
    assert format_size(123_456_789) == "117.7 MiB"
    assert format_size(0) == "0 B"
    assert format_time(1_234_567) == "1.235 us"
    assert format_rate(Rate(33, 1280)) == "25.78 GB/s"
    assert str(Rate(1, 40) * 12) == "300 GB/s"
