from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.collectives import ScheduleBuilder
from clusim.training import training_report
from clusim.workload.parallel.volumes import SpannedMachines, sent_bytes
from support.wires import leaving_gpus
from support.workloads import tiny

SIZE = 4 << 20


def leaving(topology: str, nodes: int, operation: str, algorithm: str, ranks: Sequence[int]) -> float:  # fmt: skip
    """Return the payload that leaves all GPUs [bytes]."""
    fabric = clusim.load(topology, nodes=nodes) if nodes > 1 else clusim.load(topology)
    builder = ScheduleBuilder(fabric)
    builder.collective(operation, SIZE, algorithm=algorithm, ranks=tuple(ranks))
    assert builder.last_call.algorithm == algorithm
    return leaving_gpus(clusim.simulate(fabric, builder.build(), granularity=65536, bins=2).wires)


@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [
        ("allreduce", "ring"),
        ("allreduce", "tree"),
        ("allreduce", "nvls"),
        ("allreduce", "multimem"),
        ("allreduce", "oneshot"),
        ("allreduce", "twoshot"),
        ("allreduce", "butterfly"),
        ("allreduce", "driver"),
        ("all_gather", "nvls"),
        ("reduce_scatter", "nvls"),
        ("reduce_scatter", "ring"),
        ("alltoall", "direct"),
        ("broadcast", "ring"),
    ],
)
def test_the_volumes_of_reports_are_those_on_wires(operation: str, algorithm: str) -> None:
    for count in (4, 8):
        found = leaving("dgx-h100", 1, operation, algorithm, range(count))
        assert sent_bytes(operation, algorithm, SIZE, count) == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize(("topology", "nodes"), [("dgx-h100", 2), ("dgx-a100", 2)])
def test_sharp_moves_less_than_rings(topology: str, nodes: int) -> None:
    for ranks in (range(16), (0, 8)):
        found = leaving(topology, nodes, "allreduce", "sharp", ranks)
        machines = SpannedMachines(nodes, topology == "dgx-h100")
        assert sent_bytes("allreduce", "sharp", SIZE, len(ranks), machines) == found
        assert found <= sent_bytes("allreduce", "ring", SIZE, len(ranks))


def test_what_switches_take_off_gpus_is_said() -> None:
    text = "communicators: {data: {algorithm: {allreduce: %s}}}\ndata: {kind: naive}"
    fabric = clusim.load("dgx-h100")
    nvls = clusim.train(tiny(text % "nvls"), fabric, steps=2, granularity=32768)
    ring = clusim.train(tiny(text % "ring"), fabric, steps=2, granularity=32768)
    assert ring.switching is None
    assert ring.to_json()["in_switch"] is None
    found = nvls.switching
    assert found is not None
    assert found.collectives == 1
    assert found.switch.sms == nvls.sharing.sms < found.ring.sms == ring.sharing.sms
    # Every gradient is read and stored once, whoever adds.
    assert found.switch.memory_bytes == pytest.approx(found.ring.memory_bytes, rel=0.02)
    size = 2 * sum(layer.parameters for layer in nvls.plan.stages[0][0])
    assert found.ring.sent_bytes == pytest.approx(2 * 7 / 8 * size, rel=1e-3)
    assert found.switch.sent_bytes == pytest.approx(9 / 8 * size, rel=1e-3)
    assert nvls.to_json()["volume_bytes_per_gpu"]["data"] == round(found.switch.sent_bytes)
    assert nvls.to_json()["in_switch"]["ring"]["sms"] == found.ring.sms
    assert "in switches" in training_report(nvls)
    assert "in switches" not in training_report(ring)


@pytest.mark.parametrize(("nodes", "algorithm"), [(1, "nvls"), (2, "nvlstree")])
def test_what_nccl_leaves_to_switches_is_compared_with_its_rings(
    nodes: int, algorithm: str
) -> None:
    fabric = clusim.load("dgx-h100", nodes=nodes)
    work = tiny(
        "data: {kind: naive}", batch=f"{{global: {8 * nodes}, micro: 1}}", collectives="nccl"
    )
    result = clusim.train(work, fabric, steps=1, granularity=65536)
    found = result.switching
    assert found is not None
    kind = next(iter(result.traffic["data"].switched))
    assert (kind.algorithm, kind.nccl_dtype) == (algorithm, "bfloat16")
    assert found.switch.sms < found.ring.sms or nodes > 1
    assert found.switch.memory_bytes == pytest.approx(found.ring.memory_bytes, rel=0.02)
    assert found.switch.sent_bytes < found.ring.sent_bytes
    on_wires = leaving_gpus(result.result.wires) / 8 / nodes
    assert result.to_json()["volume_bytes_per_gpu"]["data"] == pytest.approx(on_wires, rel=1e-3)


def test_collectives_wait_for_kernels_that_fill_the_gpu() -> None:
    ran = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "contention.py"))
    contention, Streams = ran["contention"], ran["Streams"]
    fabric = clusim.load("a100x4-mesh")
    streams = Streams("allreduce", 256 << 20, 3_716_000_000, 400 << 20, collectives=20, kernels=8)
    found = contention(fabric, streams, granularity=1 << 17)
    assert found.collective_slowdown == pytest.approx(1.48, rel=0.1)
    assert found.kernel_slowdown == pytest.approx(1.16, rel=0.1)
    with pytest.raises(InputError, match="at least one"):
        contention(fabric, Streams("allreduce", 1 << 20, 1, kernels=0))
