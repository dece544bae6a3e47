"""Software of rows from the texts and dates beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.nccl.constants import LATEST, RELEASE_MONTHS, release_of
from clusim.validation.collectives.measurements import read_measurements
from clusim.validation.collectives.software import infer_columns, release_of_date

HEADER = (
    "system,n_nodes,n_gpus,collective,nccl_version,gpus_per_process,size_bytes,time_us,note,date\n"
)


def inferred(text: str, **cells: str) -> dict[str, str]:
    return {item.column: item.value for item in infer_columns(cells, {"note": text})}


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("ROCm 6.2 era, -g 8", {"nccl_version": "2.20", "gpus_per_process": "8"}),
        ("NGC 25.04, -t 8", {"nccl_version": "2.26", "threads_per_process": "8"}),
        ("NCCL version 2.21.5+cuda12.4", {"nccl_version": "2.21.5"}),
        ("NGC 25.04 with NCCL 2.21.5", {"nccl_version": "2.21.5"}),
        ("aws-ofi-nccl v1.13.2-aws", {"plugin": "aws-ofi-nccl 1.13.2"}),
        ("NCCL_NET=gIB NCCL_CROSS_NIC=0", {"environment": "NCCL_CROSS_NIC=0"}),
        ("NCCL_NO_SUCH_NAME=1, measured 2024-03-01", {}),
        ("ROCm 4.5", {}),
    ],
)
def test_texts_name_software(text: str, columns: dict[str, str]) -> None:
    assert inferred(text) == columns


def test_given_cells_are_kept() -> None:
    assert inferred("NCCL 2.21.5, -g 8", nccl_version="2.18", gpus_per_process="1") == {}
    assert inferred("NGC 25.04", release="2.18 to 2.20") == {}


def test_a_date_has_the_release_before_its_month() -> None:
    """2.20 is of February 2024, 2.21 of March: in March 2024 2.20 is the newest of an earlier month."""
    assert [release_of_date(month) for month in ("2024-02", "2024-03", "2024-04")] == [
        "2.19",
        "2.20",
        "2.21",
    ]
    assert release_of_date("2019-01") == ""


def test_months_ascend_to_the_newest_release() -> None:
    assert list(RELEASE_MONTHS.values()) == sorted(RELEASE_MONTHS.values())
    assert max(map(release_of, RELEASE_MONTHS)) == LATEST[:2]


def test_rows_have_what_their_texts_show_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        HEADER
        + "mi300x,1,8,all_reduce,,,1024,45,ROCm 6.2 era; -g 8,\n"
        + "dgx-h100,1,8,all_reduce,,8,1024,35,,2024-03-15\n",
        encoding="utf-8",
    )
    first, second = read_measurements([path])
    assert (first.group.nccl_version, first.group.gpus_per_process) == ("2.20", 8)
    assert first.unused[1:] == (
        "nccl_version 2.20 inferred from 'ROCm 6.2'",
        "gpus_per_process 8 inferred from '-g 8'",
    )
    assert second.group.nccl_version == "2.20"
    plain = read_measurements([path], infer=False)
    assert [row.group.nccl_version for row in plain] == ["", ""]
