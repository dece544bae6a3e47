"""What nvbandwidth measured, JSON and text, beside what machines carry."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest

import clusim
from clusim.base.errors import TopologyError
from clusim.formats.topologies import import_text
from clusim.formats.topologies.kinds import is_nvbandwidth
from clusim_cli.main import run
from clusim_formats.topologies.nvbandwidth import compare_tests, read_nvbandwidth

SAMPLE = Path(__file__).resolve().parents[3] / "traces" / "nvbandwidth-8xa100.json"
TEXT = """\
nvbandwidth Version: v0.6
Built from Git version: v0.6

Device 0: NVIDIA A100-SXM4-80GB (00000000:07:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1         2         3
 0     26.03     25.94     12.97     26.00

SUM host_to_device_memcpy_ce 90.94

Waived:
Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1         2         3
 0       N/A     92.07     92.36     92.14
 1     92.19      0.00     92.29     92.29
 2     92.33     92.29      0.00     92.38
 3     92.19     60.62     92.24      0.00

SUM device_to_device_memcpy_write_ce 1074.6
"""


def said(machine: str, path: Path) -> list[str]:
    return [
        f"{f.level}: {f.what}" for f in compare_tests(clusim.load(machine), read_nvbandwidth(path))
    ]


def test_the_sample_is_of_its_machine() -> None:
    found = said("dgx-a100", SAMPLE)
    assert [text for text in found if text.startswith("warning")] == [
        "warning: host_to_device_memcpy_ce: below 90% of the median of 25.8369 GB/s: host->gpu5 12.8898"
    ]
    assert sum("97% of the wires' payload rate" in text for text in found) == 2
    assert found[-1] == "info: not compared: host_to_device_bidirectional_memcpy_ce"


def test_another_machine_is_told() -> None:
    found = said("dgx-h100", SAMPLE)
    assert "another system was measured, or links run slower than described" in found[0]
    assert any("faster than this system" in text for text in said("dgx-1v", SAMPLE))
    assert said("a100x4-mesh", SAMPLE)[0].endswith("8 GPUs; the system has 4")


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(TEXT)
    assert is_nvbandwidth(TEXT)
    tests = read_nvbandwidth(path)
    assert [(test.name, len(test.rows), test.line) for test in tests] == [
        ("host_to_device_memcpy_ce", 1, 6),
        ("device_to_device_memcpy_write_ce", 4, 14),
    ]
    found = said("a100x4-mesh", path)
    # What a table calls row <- column goes from the column to the row.
    assert any("gpu1->gpu3 60.62" in text for text in found)
    assert any("host->gpu2 12.97" in text for text in found)
    assert any(
        "60.62 to 92.38 GB/s measured, 98% of the wires' payload rate" in text for text in found
    )


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topo", "check", "dgx-a100", "--measured", str(SAMPLE)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "97% of the wires' payload rate (median)" in printed
    assert run(["topo", "import", str(SAMPLE), "-o", "-"]) == 2
    assert "clusim topo check TOPOLOGY --measured FILE" in capsys.readouterr().err


def bent(**case: object) -> str:
    test = {"name": "host_to_device_memcpy_ce", "bandwidth_matrix": [["1", "2"]], **case}
    return json.dumps({"nvbandwidth": {"testcases": [test]}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "invalid JSON"),
        ("nothing", "no bandwidths of nvbandwidth"),
        ("[" * 100_000, "no bandwidths|invalid JSON"),
        ("{" * 100_000, "invalid JSON"),
        (bent(bandwidth_matrix=[]), "0 x 0 values"),
        (bent(bandwidth_matrix=[["1", "2"], ["3"]]), "1 of 2 values"),
        (bent(bandwidth_matrix=[["1"], ["2"], ["3"]]), "3 x 1 values"),
        (bent(bandwidth_matrix=[["1", "x"]]), "'x'; must be GB/s or N/A"),
        (bent(bandwidth_matrix=[["1", "-1"]]), "'-1'; must be GB/s"),
        (bent(bandwidth_matrix=[["1", "1e400"]]), "must be GB/s"),
        (bent(bandwidth_matrix=["ab", None]), "2 x 0 values"),
        (bent(bandwidth_matrix=[["1"] * 5000]), "1 x 5000 values"),
        (json.dumps({"nvbandwidth": {"testcases": [None, 3]}}), "no bandwidths"),
        (json.dumps({"nvbandwidth": []}), "no bandwidths"),
        (TEXT.replace(" 26.00", " 1.2.3"), "'1.2.3'"),
    ],
)
def test_nonsense_is_refused_on_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(TopologyError, match=message) as failure:
        read_nvbandwidth(path)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("seed", range(80))
def test_damage_is_refused_or_compared(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(SAMPLE.read_bytes() if seed % 2 else TEXT.encode())
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path = tmp_path / "x"
    path.write_bytes(bytes(data))
    with suppress(TopologyError):
        said("dgx-a100", path)
    with pytest.raises(TopologyError):
        import_text(data.decode("utf-8", "replace"), "x")
