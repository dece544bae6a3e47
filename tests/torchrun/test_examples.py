"""Examples of the page on programs: collectives by arithmetic, and uneven exchanges as messages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from clusim.formats.recordings.model import Event, Group
from clusim.programs.step import RankRecord, recording_of
from support.torch_programs import calls
from support.warm_torch import clusim

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch: not installed")


def example(name: str, *options: str) -> tuple[dict[str, Any], str]:
    """Return the JSON output of an example, and the text that it printed."""
    run = clusim("torchrun", "--json", *options, EXAMPLES / name, check=True)
    *lines, last = run.stdout.splitlines()
    return json.loads(last), "\n".join(lines)


@needs_torch
def test_experts_exchange_their_tokens_forth_and_back_in_both_passes() -> None:
    """The larger buffer of rank 0 is that of its received tokens: its expert is the most popular."""
    done, text = example("experts.py", "--nproc-per-node", "4")
    received = [int(found) for found in re.findall(r"(\d+) tokens for expert 0", text)]
    assert len(received) == 3
    # Zipf's first of four, of the tokens of four ranks.
    assert sum(received) == pytest.approx(3 * 4 * 4096 / (1 + 1 / 2 + 1 / 3 + 1 / 4), rel=0.02)
    count, size = calls(done)["alltoall", 4]
    assert (count, size) == (3 * 5, 3 * 4 * 8 + 4 * sum(received) * 4096 * 2)
    assert len(done["others"]) == 3
    kernels = [done["kernels"], *(other["kernel_us"] for other in done["others"])]
    assert sum(k["time_us"] for k in kernels[0]) > max(kernels[1:])


@needs_torch
def test_tensor_parallel_blocks_reduce_twice_per_pass_and_shards_are_gathered() -> None:
    done, _ = example("tensor_parallel.py", "--compare", "1,7")
    assert done["symmetry"]["equal"] == [1, 7]
    layers, steps, width, tokens = 2, 3, 4096, 2 * 2048
    # Outputs in the forward pass; in the backward pass the gradients of the inputs of q, k, v and up.
    reduced = layers * (2 + 4) * steps
    assert calls(done)["allreduce", 4] == (reduced, reduced * tokens * width * 2)
    # A quarter of the products' weights in 16 bits, gathered in both passes, and the norms.
    shard = (12 * width * width // 4 + 2 * width) * 2
    gathered = calls(done)["all_gather", 2]
    assert gathered == (2 * layers * steps, 2 * layers * steps * shard)
    assert calls(done)["reduce_scatter", 2] == (layers * steps, layers * steps * 2 * shard)


def test_a_copy_of_a_recording_adds_no_group_twice() -> None:
    """Ranks 0 to 3 in pairs: rank 1 is in the group of rank 0, and ranks 2 and 3 have a second one."""
    call = Event(
        "collective", 0, "nccl 0", "allreduce", group=0, sequence=1, operation="allreduce", bytes=40
    )
    found = recording_of({0: RankRecord(0, [call], [Group("pair", (0, 1))])}, [0] * 4)
    copy = replace(found, events=list(found.events), groups=list(found.groups)).finish()
    assert [group.ranks for group in copy.groups] == [(0, 1), (2, 3)]
    assert [event.group for event in copy.events] == [0, 0, 1, 1]


def test_an_uneven_exchange_is_messages_if_all_its_ranks_run() -> None:
    """Rank 0 sends 30 bytes and receives 10; its own part is no message, and later operations wait for both."""

    def record(rank: int, splits: tuple[tuple[int, ...], ...]) -> RankRecord:
        events = [
            Event("compute", rank, "stream 0", "before", duration_ps=5),
            Event("collective", rank, "nccl 0", "alltoall", (0,), group=0, sequence=1, operation="alltoall", bytes=40),
            Event("compute", rank, "stream 0", "after", (1,), duration_ps=5),
        ]  # fmt: skip
        return RankRecord(rank, events, [Group("pair", (0, 1))], splits={1: splits})

    records = {0: record(0, ((10, 30), (10, 10))), 1: record(1, ((10, 10), (30, 10)))}
    found = recording_of(records, [0, 1])
    moved = [(e.kind, e.rank, e.bytes, e.peer) for e in found.events if e.kind in ("send", "recv")]
    assert moved == [("send", 0, 30, 1), ("recv", 0, 10, 1), ("send", 1, 10, 0), ("recv", 1, 30, 0)]
    assert [e.deps for e in found.events] == [(), (0,), (0,), (1, 2), (), (4,), (4,), (5, 6)]
    alone = recording_of({0: records[0]}, [0, 0])
    assert [e.kind for e in alone.events] == ["compute", "collective", "compute"]
