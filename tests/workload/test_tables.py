"""DLRM's tables: whole on one rank each, or cut evenly."""

from __future__ import annotations

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.workload import Workload
from clusim.workload.models import Dlrm
from support.workloads import ideal, tiny

BATCH = "{global: 256, micro: 64}"


def dlrm(rows: str, tables: str = "", ranks: int = 4) -> Workload:
    model = f"{{base: dlrm, rows: [{rows}], bottom: [512, 128], top: [256, 1]{tables}}}"
    return tiny(f"parallel: {{expert: {ranks}}}\noptimizer: sgd", model=model, batch=BATCH)


def test_tables_are_whole_and_the_first_ranks_have_one_more() -> None:
    """26 tables on 16 ranks: ten ranks look up two, 23 % more than the mean."""
    whole, even = Dlrm(), Dlrm(tables="even")
    assert whole.table_loads(16) == [2 * 16 / 26] * 10 + [16 / 26] * 6
    assert max(whole.table_loads(16)) == pytest.approx(1.23, abs=0.001)
    assert even.table_loads(16) == [1.0] * 16
    assert whole.table_loads(13) == [1.0] * 13


def test_the_fullest_rank_has_the_rows_of_its_tables() -> None:
    kept = []
    for tables in ("", ", tables: even"):
        layer = clusim.train(dlrm("1000, 9000, 2000, 4000, 5000", tables), ideal(4)).plan.stages[0][
            0
        ][0]
        kept.append(next(t.elements for t in layer.tensors if t.name == "tables"))
    assert kept == [10_000 * 128, 5250 * 128]


@pytest.mark.parametrize("tables", ["", ", tables: even"])
def test_the_bytes_of_an_exchange_do_not_depend_on_the_placement(tables: str) -> None:
    """Of 5 tables a rank has two and the others one; each sends its own, and receives its gradients."""
    found = clusim.train(dlrm("1000, 1000, 1000, 1000, 1000", tables), ideal(4), steps=1)
    pooled = 64 * 5 * 128 * 2
    assert found.volume_bytes_per_gpu["expert"] == pytest.approx(2 * 3 / 4 * pooled, rel=0.001)
    sent = found.result.wires
    leaving = [
        sum(
            int(sent.counters["payload"][i])
            for i, name in enumerate(sent.names)
            if name.startswith(f"gpu{rank}->")
        )
        for rank in range(4)
    ]
    # To three others rank 0 sends two tables and one gradient each; the others one, and the gradient of two to rank 0.
    assert leaving[0] - leaving[1] == (0 if tables else (9 - 7) * 64 * 128 * 2)
    assert leaving[1] == leaving[2] == leaving[3]


def test_the_rank_with_more_tables_looks_up_longer() -> None:
    rows = {
        row.rank: row for row in clusim.train(dlrm("1000, 1000, 1000, 1000, 1000"), ideal(4)).ranks
    }
    assert rows[0].compute_ps > 1.01 * rows[3].compute_ps
    even = clusim.train(dlrm("1000, 1000, 1000, 1000, 1000", ", tables: even"), ideal(4)).ranks
    assert len({row.compute_ps for row in even}) == 1
    assert rows[1].compute_ps < even[0].compute_ps < rows[0].compute_ps


def test_an_unknown_placement_is_refused() -> None:
    with pytest.raises(ClusimError, match="tables: 'rows' is not known; there are whole, even"):
        dlrm("1000, 1000, 1000, 1000", ", tables: rows")
