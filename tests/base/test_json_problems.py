"""Problems of JSON files, without words of Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from clusim.base.errors import ClusimError
from clusim.base.limits import json_problem
from clusim.formats.recordings import kineto
from clusim.hardware.kernels.measured_tables import load_file
from clusim.workload.models.huggingface import read_config
from clusim_cli.main import run
from clusim_formats.topologies import nvbandwidth

DEEP, LONG = "[" * 100_000, "9" * 5_000
PYTHONS = ("recursion", "int_max_str", "Exceeds the limit", "<class", "decimal", "codec")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (DEEP, "its lists and objects are nested too deeply"),
        (LONG, "a number has too many digits"),
        ("{", "Expecting property name enclosed in double quotes at line 1, column 2"),
    ],
)
def test_problems_are_in_words_of_files(text: str, problem: str) -> None:
    with pytest.raises((ValueError, RecursionError)) as caught:
        json.loads(text)
    assert json_problem(caught.value) == problem  # type: ignore[arg-type]


def test_a_decimal_number_out_of_range_is_no_class_name() -> None:
    with pytest.raises(ArithmeticError) as caught:
        Decimal("1e99999999999999999999")
    assert json_problem(caught.value) == "a number has too many digits"


READERS: dict[str, Callable[[Path], object]] = {
    "model": read_config,
    "kernels": load_file,
    "kineto": lambda path: kineto.read(str(path)),
    "nvbandwidth": lambda path: nvbandwidth.read_nvbandwidth(path),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("value", [DEEP, LONG, f"-{LONG}", f"1e{LONG}"])
def test_messages_of_readers_have_no_words_of_python(
    reader: str, value: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"hidden_size": {value}, "traceEvents": [{{"ts": {value}}}]}}')
    problem = ""
    try:
        READERS[reader](path)
    except ClusimError as error:
        problem = str(error)
    assert not any(word in problem for word in PYTHONS), problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    "words",
    [
        ("calibrate", "--from"),
        ("topo", "check"),
        ("info",),
        ("replay",),
        ("log", "summary"),
        ("train",),
        ("sweep",),
    ],
)
@pytest.mark.parametrize("value", [DEEP, LONG])
def test_messages_of_commands_have_no_words_of_python(
    words: tuple[str, ...], value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.json"
    path.write_text(f'{{"nodes": {value}, "format": 1}}')
    code = run([*words, str(path)])
    err = capsys.readouterr().err
    assert code == 2, err
    assert len(err.splitlines()) == 1
    assert not any(word in err for word in PYTHONS), err
