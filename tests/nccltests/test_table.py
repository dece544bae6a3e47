"""The layout of nccl-tests, byte by byte, and what the flags mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.formats.logs import read_logs
from clusim.nccltests.options import FLAGS, PerfOptions, parse_flags
from clusim.nccltests.sweep import TESTS, program_named
from clusim.nccltests.table import (
    Half,
    PerfDevice,
    PerfLine,
    config_json,
    float_text,
    foot,
    head,
    results_json,
    table_head,
)

GOLDEN = Path(__file__).with_name("all_reduce_golden.txt")


def lines() -> list[PerfLine]:
    small = Half(28.2, 0.0000001, 0.0000002, 0)
    large = Half(31750.23, 270.551, 473.465, None)
    return [
        PerfLine(8, 2, "float", "sum", -1, (small, small)),
        PerfLine(8589934592, 2147483648, "float", "sum", -1, (large, large)),
    ]


def device(rank: int) -> PerfDevice:
    return PerfDevice(
        rank, 0, 1000, "node0", rank, f"0000:{0x1B + rank:02x}:00", "NVIDIA H100 80GB HBM3"
    )


def output() -> str:
    options = PerfOptions(ngpus=2, minbytes=8, maxbytes=8 << 30, stepfactor=2, check=1)
    text = head("all_reduce_perf", options, 22703, [device(0), device(1)], ["clusim: simulated x"])
    text += [*table_head(options), *(line.text() for line in lines())]
    return "\n".join([*text, *foot("all_reduce_perf", lines())]) + "\n"


def test_layout_is_that_of_nccl_tests() -> None:
    assert output() == GOLDEN.read_text(encoding="utf-8")


def test_our_own_reader_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(output(), encoding="utf-8")
    (run,) = read_logs([str(path)]).runs
    assert (run.test, run.n_ranks, run.config["nGpus"]) == ("all_reduce_perf", 2, 2)
    assert run.sizes == [8, 8589934592]
    assert run.column("time").tolist() == [28.2, 31750.2]
    assert run.column("busbw_in_place").tolist() == [0.0, 473.46]
    assert run.broken == 0
    assert run.wrong == 0


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.0, 7, "   0.00"),
        (28.2, 7, "  28.20"),
        (9999.994, 7, "9999.99"),
        (10718.11, 7, "10718.1"),
        (682007.4, 7, " 682007"),
        (1234567.0, 7, "1234567"),
        (12345678.0, 7, "1.2e+07"),
        (473.46, 6, "473.46"),
        (12345.6, 6, " 12346"),
        (1e8, 6, " 1e+08"),
    ],
)
def test_numbers_keep_their_width(value: float, width: int, text: str) -> None:
    assert float_text(value, width) == text


def test_json_has_the_keys_of_output_file() -> None:
    options = PerfOptions(ngpus=2, stepfactor=2)
    config, data = (
        config_json(options, [device(0)]),
        results_json("all_reduce_perf", options, lines()),
    )
    assert list(data) == ["results", "out_of_bounds", "average_bus_bandwidth", "errors"]
    row = data["results"][1]
    assert row["out_of_place"] == {
        "time": 31750.23,
        "alg_bw": 270.551,
        "bus_bw": 473.465,
        "nwrong": None,
    }
    assert row["root"] == "    -1"
    assert config["step_factor"] == 2
    assert "step_bytes" not in config
    assert data["out_of_bounds"] == {"count": 0, "okay": "true"}


def test_wrong_data_fail_the_run() -> None:
    bad = Half(1.0, 1.0, 1.0, 3)
    text = foot("reduce_perf", [PerfLine(8, 2, "float", "sum", 0, (bad, bad))])
    assert text[0] == "# Out of bounds values : 2 FAILED"


def test_sizes_by_step_and_by_factor() -> None:
    by_factor = parse_flags({"minbytes": "8", "maxbytes": "1K", "stepfactor": "4"})
    assert by_factor.sizes() == [8, 32, 128, 512]
    by_step = parse_flags({"minbytes": "1M", "maxbytes": "3.5M", "stepbytes": "1M"})
    assert by_step.sizes() == [1 << 20, 2 << 20, 3 << 20]
    assert parse_flags({}).sizes() == [32 << 20]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"minbytes": "8Q"}, "-b '8Q': not a size"),
        ({"minbytes": "2M", "maxbytes": "1M"}, "the smallest size is above the largest"),
        ({"ngpus": "0"}, "-g '0': not an integer of at least 1"),
        ({"op": "xor"}, "-o 'xor': not known"),
        ({"datatype": "int7"}, "-d 'int7': not known"),
        ({"device_implementation": "1"}, "-D 1: only NCCL's own"),
    ],
)
def test_bad_flags_are_explained(flags: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_flags(flags)
    assert message in str(caught.value)


def test_zero_times_a_factor_is_refused() -> None:
    with pytest.raises(InputError, match="stays zero"):
        parse_flags({"minbytes": "0", "maxbytes": "8", "stepfactor": "2"}).sizes()


def test_flags_are_distinct() -> None:
    assert len({flag.letter for flag in FLAGS}) == len(FLAGS)


def test_counts_are_nccl_tests_counts() -> None:
    assert TESTS["all_reduce"].count(1024, 4, 8) == 256
    gather = TESTS["all_gather"]
    assert gather.count(1024, 4, 8) == 32
    assert gather.count(100, 4, 8) == 0
    assert gather.size(gather.count(1000, 4, 8), 4, 8) == 896
    assert gather.count(1000, 8, 3) == 40


@pytest.mark.parametrize(
    ("test", "factor"),
    [("all_reduce", 1.75), ("reduce_scatter", 0.875), ("broadcast", 1.0), ("sendrecv", 1.0)],
)
def test_bus_factors(test: str, factor: float) -> None:
    assert TESTS[test].of.bus_factor(8) == factor


def test_names_of_programs() -> None:
    assert program_named("./build/all_reduce_perf").name == "all_reduce"
    assert program_named("AllGather").name == "all_gather"
    with pytest.raises(InputError, match="did you mean 'all_reduce_perf'"):
        program_named("all_redcue_perf")
