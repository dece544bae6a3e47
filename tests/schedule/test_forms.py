"""Text and array forms: content, round trips and errors."""

from __future__ import annotations

import numpy as np
import pytest

from clusim.base.errors import ScheduleError
from clusim.collectives import build
from clusim.collectives.api import REGISTRY
from clusim.schedule import (
    CollectiveWriter,
    Prim,
    ProgramBuilder,
    Schedule,
    from_arrays,
    to_arrays,
    to_text,
)
from support.collective_laws import fitting


@pytest.mark.parametrize("pair", list(REGISTRY), ids="/".join)
def test_arrays_round_trip(pair: tuple[str, str]) -> None:
    ranks = fitting(pair, 5, 4)[0]
    schedule = build(ranks, *pair, 0 if pair[0] == "barrier" else 5004, channels=2)
    arrays = to_arrays(schedule)
    assert from_arrays(arrays) == schedule
    assert all(isinstance(value, np.ndarray) and value.ndim == 1 for value in arrays.values())


def test_an_empty_schedule_round_trips() -> None:
    schedule = ProgramBuilder(3, 'nothing at "all"').build()
    assert from_arrays(to_arrays(schedule)) == schedule


def with_path() -> Schedule:
    """Return a message over an explicit path, with a landing place of its own."""
    writer = CollectiveWriter.create("send", 64, ranks=2)
    (part,) = writer.parts()
    pipe = writer.connect(0, 1, 0, path=("gpu 0", "nvs,1", "gpu=1"), policy="adaptive")
    writer.program(0, part, [Prim("send", send=0)], [pipe], nchunks=2)
    writer.program(1, part, [Prim("recv", recv=0, dst_base=-1, dst_coef=1)], [pipe], nchunks=2)
    return writer.schedule()


def test_odd_names_round_trip() -> None:
    schedule = with_path()
    assert from_arrays(to_arrays(schedule)) == schedule


def test_the_text_is_short_and_says_what_happens() -> None:
    text = to_text(build(8, "allreduce", "ring", 1 << 20, channels=1))
    assert "    recvReduceSend recv=0 send=1 base=-2 coef=1 step=-1 repeat=6\n" in text
    assert "call 0 operation=allreduce bytes=1048576 ranks=0-7 algorithm=ring" in text
    assert "connection 7 src=7 dst=0\n" in text


def test_damaged_arrays_are_refused() -> None:
    arrays = to_arrays(build(2, "send", None, 64))
    missing = {name: value for name, value in arrays.items() if name != "prims/op"}
    with pytest.raises(ScheduleError, match="damaged"):
        from_arrays(missing)
    short = dict(arrays, **{"tasks/rank": arrays["tasks/rank"][:-1]})
    with pytest.raises(ScheduleError, match="damaged"):
        from_arrays(short)
    with pytest.raises(ScheduleError, match="version 3; this reads 2"):
        from_arrays(dict(arrays, version=np.array([3])))
