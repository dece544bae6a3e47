"""Expected times from the cache: equal to nccl-tests' tables, bounded between, and judged against measurements."""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.nccltests import expected as module
from clusim.programs.inductor import install
from clusim_cli.main import run

pytestmark = pytest.mark.usefixtures("without_proof")

TABLE = Path(__file__).resolve().parents[2] / "traces" / "nccl-tests-8xh100.txt"


def table_us(size: int, ranks: int = 8, nodes: int | None = None) -> float:
    flags = f"-b {size} -e {size}"
    table = clusim.nccl_tests(
        "all_reduce", "dgx-h100", flags, nodes=nodes, processes=ranks // (nodes or 1)
    )
    return table.lines[0].halves[0].time_us


@pytest.mark.parametrize(
    ("size", "ranks", "nodes"), [(1 << 20, 8, None), (2 << 20, 4, None), (1 << 16, 16, 2)]
)
def test_a_simulated_size_has_the_time_of_nccl_tests(
    size: int, ranks: int, nodes: int | None
) -> None:
    one = clusim.expected("dgx-h100", "allreduce", size, ranks)
    assert one.time_us == pytest.approx(table_us(size, ranks, nodes), rel=1e-3)
    assert one.bound_pct == 0
    assert one.busbw_GBps == pytest.approx(size / one.time_us / 1e3 * 2 * (ranks - 1) / ranks)
    assert one.low_us is not None
    assert one.high_us is not None
    assert one.low_us < one.time_us < one.high_us


@pytest.mark.parametrize("size", [48_640, 273_024, 501_568, 6_779_904])
def test_sizes_in_between_are_within_the_bound(size: int) -> None:
    one = clusim.expected("dgx-h100", "allreduce", size, 8)
    assert 0 < one.bound_pct < 25
    assert abs(one.time_us / table_us(size) - 1) * 100 <= one.bound_pct + 0.1


def test_later_sizes_of_a_range_are_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    clusim.expected("dgx-h100", "allreduce", 5 << 20, 8)
    monkeypatch.setattr(module, "kernel", None)
    assert clusim.expected("dgx-h100", "AllReduce", "6MiB", 8).time_us > 0
    with pytest.raises(TypeError):
        clusim.expected("dgx-1v", "allreduce", "6MiB", 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("dgx-h100", "allreduce", 1024, 9), "9 ranks of dgx-h100: must be 2 to 8 of a node"),
        (("dgx-h100", "allreduce", 0, 8), "size 0: must be from 1 B"),
        (("dgx-h100", "sum", 1024, 8), "'sum': not a program of nccl-tests"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, str, int, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        clusim.expected(*words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_gate_passes_fails_or_cannot_judge(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["expected", "dgx-h100", "8", "--against"]
    assert run([*words, str(TABLE), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["passed"]
    assert {row["verdict"] for row in data["rows"]} == {"passed"}
    # Every time doubled: half of the bandwidth is below every tolerance.
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    slow = tmp_path / "slow.txt"
    cells = [line.split() for line in lines]
    slow.write_text(
        "\n".join(
            line.replace(row[5], str(2 * float(row[5])), 1) if row and row[0].isdecimal() else line
            for line, row in zip(lines, cells, strict=True)
        ),
        encoding="utf-8",
    )
    assert run([*words, str(slow)]) == 1
    assert "failed" in capsys.readouterr().out
    assert run(["expected", "dgx-h100", "4", "--against", str(TABLE)]) == 2
    assert "8 GPUs, not 4" in capsys.readouterr().err


class Kind(IntEnum):
    """Kinds of collectives, as in Inductor."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    BROADCAST = 9


def analysis(unit: str) -> ModuleType:
    """Return a stand-in of Inductor's module, with the functions that it calls."""
    result = ModuleType("torch._inductor.comm_analysis")

    def estimate_nccl_collective_runtime(node: SimpleNamespace) -> float:
        return -1.0

    estimate_nccl_collective_runtime.__doc__ = f"Returns the runtime ({unit})."
    result.__dict__.update(
        estimate_nccl_collective_runtime=estimate_nccl_collective_runtime,
        get_collective_type=lambda node: node.kind,
        get_collective_group_size=lambda node: 8,
        get_collective_input_size_bytes=lambda node: node.size,
    )
    return result


@pytest.mark.parametrize(("unit", "per_us"), [("ns", 1e3), ("ms", 1e-3)])
def test_inductor_schedules_by_expected_times(unit: str, per_us: float) -> None:
    hooks = analysis(unit)
    restore = install("dgx-h100", hooks)
    reduce, gather, other = (SimpleNamespace(kind=kind, size=1 << 20) for kind in Kind)
    estimate = hooks.estimate_nccl_collective_runtime
    one = clusim.expected("dgx-h100", "allreduce", 1 << 20, 8)
    assert estimate(reduce) == pytest.approx(one.time_us * per_us)
    # The input of a rank is an eighth of the gathered buffer.
    whole = clusim.expected("dgx-h100", "all_gather", 8 << 20, 8)
    assert estimate(gather) == pytest.approx(whole.time_us * per_us)
    assert estimate(other) == -1
    restore()
    assert hooks.estimate_nccl_collective_runtime(reduce) == -1


def test_a_release_without_the_function_is_named() -> None:
    with pytest.raises(InputError, match="has no estimate_nccl_collective_runtime"):
        install("dgx-h100", ModuleType("torch._inductor.comm_analysis"))
