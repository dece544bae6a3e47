"""Sizes of collectives from the operations around their launch, of releases that noted nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from formats.recordings.kineto_traces import COMM, Writer
from formats.recordings.test_kineto import recording


def old(writer: Writer, kernel: str, ops: list[tuple[str, Any]]) -> None:
    """Append a call as releases without metadata note it: operations inside each other, the launch in the innermost."""
    ts = writer.now + 100
    for depth, (op, args) in enumerate(ops):
        category = "user_annotation" if op.startswith("nccl:") else "cpu_op"
        writer.add(category, op, ts - 40 + depth, 35 - 2 * depth, **args)
    writer.kernel(kernel, ts, 50, COMM)


REDUCED = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
MOVED = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
GATHERED = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def shapes(dims: Any, types: Any, concrete: Any = None) -> dict[str, Any]:
    found = {"Input Dims": dims, "Input type": types}
    return found if concrete is None else found | {"Concrete Inputs": concrete}


@pytest.mark.parametrize(
    ("kernel", "ops", "expected"),
    [
        (REDUCED, [("c10d::allreduce_", shapes([[], [], []], ["TensorList", "", ""])),
                   ("record_param_comms", shapes([[64, 4], [], []], ["float", "Scalar", ""]))], ("allreduce", 1024)),
        (REDUCED, [("c10d::allreduce_", shapes([[[64], [32]], [], []], ["TensorList", "", ""]))], ("allreduce", 384)),
        (REDUCED, [("record_param_comms", shapes([[[512]], [], []], ["TensorList", "Scalar", ""]))],
         ("allreduce", 2048)),
        (GATHERED, [("c10d::_allgather_base_", shapes([[16, 8], [8, 8], []], ["c10::BFloat16", "c10::BFloat16", ""])),
                    ("record_param_comms", {})], ("all_gather", 256)),
        (GATHERED, [("_c10d_functional::all_gather_into_tensor",
                     shapes([[8], [], []], ["c10::Half", "Scalar", ""], ["", "2", "0"]))], ("all_gather", 32)),
        (MOVED, [("c10d::alltoall_base_", shapes([[100], [120], [], []], ["unsigned char", "unsigned char", "", ""])),
                 ("nccl:all_to_all", shapes([[120]], ["unsigned char"]))], ("alltoall", 120)),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)",
         [("c10d::broadcast_", shapes([[[7]], [], [], []], ["TensorList", "", "Scalar", ""], ["", "", "1", ""])),
          ("nccl:broadcast", shapes([[7]], ["long int"]))], ("broadcast", 56)),
        (MOVED, [("c10d::send", shapes([[[8]], [], [], []], ["TensorList", "", "Scalar", "Scalar"],
                                       ["", "", "1", "0"])),
                 ("nccl:send 0->1", shapes([[8]], ["float"]))], ("send", 32)),
    ],
)  # fmt: skip
def test_sizes_come_from_the_operations_around_a_launch(
    tmp_path: Path, kernel: str, ops: list[tuple[str, Any]], expected: tuple[str, int]
) -> None:
    writer = Writer(0, 2)
    old(writer, kernel, ops)
    events = [e for e in recording(tmp_path, writer.trace()).events if e.rank == 0]
    assert [(e.operation or e.kind, e.bytes) for e in events] == [expected]
    if expected[0] in ("broadcast", "send"):
        assert 1 in (events[0].root, events[0].peer)


def test_messages_of_a_batch_that_are_noted_at_once_are_several(tmp_path: Path) -> None:
    """What one call inside another says belongs to it, unless each says a message by itself."""
    writer = Writer(0, 2)
    for way, peer in (("send", "Dst Rank"), ("recv", "Src Rank")):
        args = writer.comm(way, 8) | {peer: 1}
        writer.add(
            "cpu_op", "record_param_comms", 900, 40, **{"External id": 5 + len(way + peer)}, **args
        )
        writer.add("cpu_op", f"c10d::{way}", 899, 45, **shapes([[[8]], []], ["TensorList", ""]))
    writer.now = 1000
    writer.kernel(MOVED, 1000, 50, COMM)
    events = [e for e in recording(tmp_path, writer.trace()).events if e.rank == 0]
    assert sorted((e.kind, e.peer, e.bytes) for e in events) == [("recv", 1, 32), ("send", 1, 32)]


def test_a_size_of_its_own_is_not_replaced(tmp_path: Path) -> None:
    writer = Writer(0, 2)
    writer.collective("allreduce", 1000, 50, 100)
    writer.add("cpu_op", "c10d::allreduce_", 950, 45, **shapes([[[999]]], ["TensorList"]))
    assert recording(tmp_path, writer.trace()).events[0].bytes == 400


def test_operations_of_another_collective_tell_nothing(tmp_path: Path) -> None:
    writer = Writer(0, 2)
    ops = [
        ("c10d::allreduce_", shapes([[], []], ["TensorList", ""])),
        ("nccl:broadcast", shapes([[7]], ["float"])),
    ]
    old(writer, REDUCED, ops)
    event = recording(tmp_path, writer.trace()).events[0]
    assert (event.operation, event.bytes) == ("broadcast", 28)  # the innermost is the one
