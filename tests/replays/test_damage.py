"""Damaged logs are replayed as far as they are understood, and never give a call that was not made."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim.base.errors import ClusimError
from clusim.formats.logs import read_logs
from clusim.formats.logs.calls import CallTable, LoggedCall, call_table
from clusim.formats.logs.jobranks import job_ranks
from clusim.formats.recordings.nccl_log import recording_of
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from replays.samples import damaged, job
from support.covering import examples

LINES = job().lines
HOWS = ("dropped", "shuffled", "spliced", "cut")


def table_of(lines: list[str]) -> CallTable | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nccl.log"
        path.write_text("".join(f"{line}\n" for line in lines))
        try:
            log = read_logs([str(path)])
        except ClusimError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
            return None
        table, ranks = call_table(log), job_ranks(log)
        recording_of(log, table, ranks)
        return table


def essence(call: LoggedCall) -> tuple[object, ...]:
    return call.operation, call.bytes, call.dtype, call.root


ORIGINAL = table_of(LINES)
assert ORIGINAL is not None
KNOWN = {essence(call) for call in ORIGINAL.distinct if not call.messages}
MESSAGES = {message for call in ORIGINAL.distinct for message in call.messages}


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 10**6), how=st.sampled_from(HOWS))
def test_damage_invents_no_call(seed: int, how: str) -> None:
    table = table_of(damaged(LINES, seed, how=how))
    for call in table.distinct if table is not None else ():
        if call.messages:
            assert set(call.messages) <= MESSAGES
        else:
            assert essence(call) in KNOWN


@pytest.mark.covering
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_left_is_replayed(how: str, seed: int, tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text("".join(f"{line}\n" for line in damaged(LINES, seed, how=how)))
    found = replay(ReplayRequest((str(path),), topology="dgx-h100", calls=3))
    assert 1 <= found.total_calls <= 3
    assert found.total_ps > 0
