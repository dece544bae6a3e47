from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.base.resources import cluster_workloads, shipped_workloads
from clusim.collectives import ScheduleBuilder
from clusim.results.intervals import Union
from clusim.results.replicated import RankPattern
from clusim.simulation.setup import Setup
from clusim.topology.arrays import arrays_of
from clusim.training import scaling, training_report
from clusim.training.breakdown import Spans, breakdown
from clusim.training.request import TrainRequest
from clusim.training.run import relaxed
from clusim.workload import Workload, load_workload, make_plan
from clusim_cli.main import run
from support.workloads import tiny

A100 = clusim.load("dgx-a100")
H100 = clusim.load("dgx-h100")


def spans(*pairs: tuple[int, int]) -> Any:
    return np.array(pairs, np.int64).reshape(-1, 2)


def moved(*pairs: tuple[int, int]) -> Any:
    return np.insert(spans(*pairs), 2, 0, axis=1)


class TestBreakdown:
    def test_unions(self) -> None:
        assert Union.of(spans((5, 9), (0, 3), (2, 4), (9, 10))).spans.tolist() == [[0, 4], [5, 10]]
        assert Union.of(spans((0, 10), (2, 3), (4, 12))).spans.tolist() == [[0, 12]]

    def test_every_picosecond_is_one_thing(self) -> None:
        own = Spans(spans((0, 40), (60, 80)), moved((30, 50)), spans((20, 50)), [])
        ((row,),) = breakdown({0: own}, [0], [(0, 100)], 90)
        assert (row.compute_ps, row.exposed_ps, row.bubble_ps, row.idle_ps) == (60, 10, 20, 10)
        assert row.communication_ps == 20
        assert row.total_ps == 100

    def test_the_window_cuts(self) -> None:
        own = Spans(spans((0, 40)), moved((30, 50)), spans((30, 50)), [])
        ((row,),) = breakdown({0: own}, [0], [(35, 45)])
        assert (row.compute_ps, row.exposed_ps, row.bubble_ps, row.idle_ps) == (5, 5, 0, 0)

    def test_phases_of_a_step_add_up_to_it(self) -> None:
        pattern = RankPattern(spans((0, 20)), moved((15, 30)), 30)
        folded = [(np.array([10, 50]), pattern)]
        own = Spans(spans((90, 95)), moved((35, 60)), spans(), folded, spans((78, 90)))
        (whole,), *parts = breakdown({0: own}, [0], [(0, 100), (0, 40), (40, 80), (80, 100)], 85)
        # Computes 10-30, 50-70 and 90-95; data move 25-40, 35-60 and 65-80; the host is waited for 80-90.
        assert astuple(whole) == (0, 45, 30, 10, 5, 50, 10, 30, *[0] * 7)
        sums = np.sum([astuple(row) for (row,) in parts], axis=0)
        assert tuple(sums) == astuple(whole)


def quick(work: Workload, fabric: Any, **options: Any) -> Any:
    """Train in bursts of 32 KiB: fast, and good enough to compare."""
    return clusim.train(work, fabric, **{"granularity": 32768, **options})


def small(text: str = "", **replace: str) -> Workload:
    model = (
        "{base: gpt3-1.3b, layers: 4, hidden: 1024, heads: 16, head_size: 64, kv_heads: 16,"
        " intermediate: 4096, vocab: 8192}"
    )
    return tiny(text, **{"model": model, "sequence": "512", **replace})


def test_the_parts_of_a_step_add_up() -> None:
    for text in ("", "parallel: {pipeline: 4}", "parallel: {tensor: 4}", "data: {kind: fsdp}"):
        result = quick(small(text), A100)
        assert len(result.step_ps) == 2
        for row in result.ranks:
            assert row.total_ps == result.step_ps[-1]
        assert 0 < result.mfu < 1
        assert result.samples_per_s == pytest.approx(8 * 512 / result.step_time_s)
        assert all(0 < busy <= 1 for _, busy in result.wires)
        assert training_report(result)


def test_folded_blocks_take_what_they_take_alone() -> None:
    work = small("parallel: {tensor: 2, pipeline: 2, data: 2}")
    folded = clusim.train(work, A100, steps=1, granularity=512, fold="all")
    plain = clusim.train(work, A100, steps=1, granularity=512, fold="none")
    # By stage, replica, microbatch and direction the blocks and embedding or head; the last backward passes overlap
    # with reductions; and the optimiser of each stage.
    assert folded.fold.folded == 2 * 2 * 4 * 2 * 2 - 2 * 2 * 2 + 2
    assert folded.fold.alone == folded.fold.folded
    assert folded.fold.simulated < folded.fold.folded
    assert plain.fold.folded == 0
    assert folded.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=2e-3)
    for name in ("compute", "exposed"):
        assert folded.mean(name) == pytest.approx(plain.mean(name), rel=1e-2)
    assert folded.traffic == plain.traffic
    assert folded.executed_flops == plain.executed_flops


def test_long_stages_are_folded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusim.workload.parallel.passes.BLOCK_LAYERS", 2)
    work = small("parallel: {tensor: 8}\ndata: {kind: naive}", batch="{global: 2, micro: 1}")
    folded = clusim.train(work, A100, steps=1, granularity=512, fold="all")
    plain = clusim.train(work, A100, steps=1, granularity=512, fold="none")
    # Embedding, two pairs of layers, head; two microbatches, forward and backward; the optimiser.
    assert folded.fold.folded == 2 * 2 * 4 + 1
    # The embedding communicates nothing backwards: there is nothing to simulate.
    assert folded.fold.simulated == 2 * 3 - 1
    assert folded.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=5e-3)


def test_folded_blocks_that_follow_each_other() -> None:
    work = small("parallel: {tensor: 8}\ndata: {kind: naive}", batch="{global: 1, micro: 1}")
    folded = clusim.train(work, A100, steps=1, granularity="packet", fold="all")
    plain = clusim.train(work, A100, steps=1, granularity="packet", fold="none")
    assert folded.fold.folded == 2 * 4 + 1
    assert folded.fold.proved_identical >= 1
    assert folded.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=1e-3)


def test_folding_looks_through_machines_that_are_alike() -> None:
    work = small("parallel: {tensor: 8, pipeline: 2, data: 1}", batch="{global: 4, micro: 1}")
    fabric = clusim.load("dgx-a100", nodes=2)
    result = quick(work, fabric, steps=1, fold="all")
    assert result.fold.folded == 2 * (2 * 2 * 4) + 2
    assert "more ranks" not in training_report(result)
    # Forward and backward of layers at the start and behind a message, of embedding and head.
    assert result.fold.simulated <= 8
    busy = dict(result.wires)
    assert any(name.startswith("n1/") for name in busy) or any(
        name.startswith("n0/") for name in busy
    )


def test_only_what_was_proved_identical_stays_folded() -> None:
    work = small("parallel: {tensor: 8}\ndata: {kind: naive}", batch="{global: 1, micro: 1}")
    every = clusim.train(work, A100, steps=1, granularity=256, fold="all")
    proved = clusim.train(work, A100, steps=1, granularity=256, fold="proved")
    plain = clusim.train(work, A100, steps=1, granularity=256, fold="none")
    assert 0 < proved.fold.folded < every.fold.folded
    assert proved.fold.proved_identical == proved.fold.folded
    # What is left is the state of arbiters and wires, which no task sees.
    assert proved.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=1e-4)
    assert proved.traffic == plain.traffic
    assert proved.executed_flops == plain.executed_flops


def test_without_a_wish_small_runs_fold_only_what_was_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = small("parallel: {tensor: 8}\ndata: {kind: naive}", batch="{global: 1, micro: 1}")
    proved = clusim.train(work, A100, steps=1, granularity=65536, fold="proved")
    found = clusim.train(work, A100, steps=1, granularity=65536)
    assert (found.step_ps, found.fold) == (proved.step_ps, proved.fold)
    monkeypatch.setattr("clusim.training.proof.AFFORDABLE", 1000)
    large = clusim.train(work, A100, steps=1, granularity=65536)
    assert large.fold == clusim.train(work, A100, steps=1, granularity=65536, fold="all").fold
    assert large.fold.proved_identical < large.fold.folded


def test_kernels_alone_need_no_simulation_to_be_folded() -> None:
    work = small("parallel: {data: 1}", batch="{global: 2, micro: 1}")
    folded = clusim.train(work, A100, granularity="packet")
    plain = clusim.train(work, A100, granularity="packet", fold="none")
    assert folded.fold.simulated == 0
    assert folded.fold.proved_identical == folded.fold.folded > 0
    assert folded.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=1e-7)


def test_overlapped_reductions_are_hidden() -> None:
    exposed = {}
    for text in (
        "{kind: ddp, first_bucket: 1MiB, bucket: 4MiB}",
        "{kind: ddp, overlap: false}",
        "{kind: naive}",
    ):
        result = quick(small(f"data: {text}", sequence="2048"), A100, steps=1)
        exposed[text] = result.mean("exposed")
    first, second, third = exposed.values()
    assert first < 0.7 * second
    assert third < second < 2 * third  # every bucket has a start and an end of its own


def test_prefetching_hides_gathers() -> None:
    times = [
        quick(small(f"data: {{kind: fsdp, prefetch: {depth}}}", sequence="2048"), A100).mean(
            "exposed"
        )
        for depth in (0, 1)
    ]
    assert times[1] < 0.8 * times[0]


SCARCE = """
name: scarce
architecture: ampere
protocols: {simple: {crowding: 0}}
chips: {slow-memory: {base: a100-sxm4-80gb, memory_rate: 600 GB/s}}
nodes:
  gpu0..3: {kind: gpu, chip: slow-memory}
  nvswitch: {kind: switch, latency: 100ns}
links:
  - {from: gpu0..3, to: nvswitch, count: 12, type: nvlink3}
"""


def contend(
    fabric: Any, algorithm: str, *, kernel: bool = True, collective: bool = True
) -> tuple[int, int]:
    """Return the times of a memory-bound kernel and of an all-reduce, beside each other or alone [ps]."""
    builder = ScheduleBuilder(fabric)
    ranks = range(fabric.num_ranks)
    own: list[int] = []
    others: tuple[int, ...] = ()
    node = fabric.nodes[arrays_of(fabric).node_of(0)].endpoint
    if kernel:
        hbm_bytes = int(400e-6 * node.mem_Bps * node.mem_efficiency * 0.98)
        own = [builder.kernel(r, compute_ps=400_000_000, hbm_bytes=hbm_bytes) for r in ranks]
    if collective:
        others = builder.collective("allreduce", 64 << 20, algorithm=algorithm)
    result = clusim.simulate(fabric, builder.build(), granularity=8192)
    length = result.tasks.end_ps - result.tasks.start_ps
    return max((int(length[t]) for t in own), default=0), max(
        (int(length[t]) for t in others), default=0
    )


def slowdown(fabric: Any, algorithm: str) -> tuple[float, float]:
    """Return by how much a kernel and an all-reduce are slower beside each other."""
    kernel, _ = contend(fabric, algorithm, collective=False)
    _, collective = contend(fabric, algorithm, kernel=False)
    both = contend(fabric, algorithm)
    return both[0] / kernel, both[1] / collective


def test_overlap_slows_both_where_memory_is_scarce(tmp_path: Path) -> None:
    (tmp_path / "scarce.yaml").write_text(SCARCE)
    kernel, collective = slowdown(clusim.load(tmp_path / "scarce.yaml"), "ring")
    assert kernel > 1.2
    assert collective > 1.1


def test_reductions_in_the_switches_leave_more_to_kernels() -> None:
    """They need fewer CTAs; the data move as many bytes of memory."""
    ring, nvls = slowdown(H100, "ring"), slowdown(H100, "nvls")
    assert ring[0] > 1.1
    assert nvls[0] - 1 < 0.9 * (ring[0] - 1)


def test_communication_takes_sms_from_kernels() -> None:
    work = small("data: {kind: ddp, first_bucket: 1MiB, bucket: 4MiB}")
    alone = quick(small("parallel: {data: 1}", batch="{global: 1, micro: 1}"), A100, steps=1)
    beside = quick(work, A100, steps=1)
    assert beside.mean("compute") > 1.005 * alone.mean("compute")


def test_a_slow_rank_holds_all_up() -> None:
    even = quick(small(), A100, steps=1)
    slow = quick(small("stragglers: {ranks: {3: 1.5}}"), A100, steps=1)
    assert slow.step_ps[-1] > 1.2 * even.step_ps[-1]
    rows = {row.rank: row for row in slow.ranks}
    assert rows[3].compute_ps > 1.3 * rows[0].compute_ps
    assert rows[0].idle_ps > rows[3].idle_ps


def test_asynchronous_servers_do_not_hold_fast_workers_up() -> None:
    text = "data: {kind: parameter-server, servers: 4, mode: %s}\nstragglers: {ranks: {1: 3}}"
    batch = "{global: 4, micro: 1}"
    bsp, free = (
        quick(small(text % mode, batch=batch, sequence="2048"), A100, steps=3)
        for mode in ("bsp", "async")
    )
    assert not bsp.worker_ps
    assert free.worker_ps[1] > 1.2 * max(free.worker_ps[i] for i in (0, 2, 3))
    assert free.samples_per_s > 1.1 * bsp.samples_per_s
    assert free.mfu > 1.1 * bsp.mfu
    assert "asynchronous workers need" in training_report(free)


def test_jitter_follows_its_seed() -> None:
    text = "stragglers: {jitter: 0.1, seed: %d}"
    times = [quick(small(text % seed), A100, steps=1).step_ps[-1] for seed in (1, 1, 2)]
    assert times[0] == times[1] != times[2]


def test_scaling_loses_efficiency() -> None:
    work = small("parallel: {data: 8}")
    request = TrainRequest(Setup(A100), work, steps=1, granularity=32768)
    rows = scaling(request, (1, 2, 8), "weak")
    assert [row.replicas for row in rows] == [1, 2, 8]
    assert [row.step.plan.workload.batch.all for row in rows] == [1, 2, 8]
    efficiency = [row.efficiency for row in rows]
    assert efficiency[0] == 1.0 > efficiency[1] > efficiency[2] > 0.3
    strong = scaling(request, (1, 8), "strong")
    assert [row.step.plan.microbatches for row in strong] == [8, 1]
    assert strong[1].step.step_ps[-1] < strong[0].step.step_ps[-1] / 3


def test_memory_that_does_not_suffice_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    work = small("hardware: {memory: 1MiB}")
    result = quick(work, A100, steps=1)
    assert "too little" in result.notes[0]
    with pytest.raises(
        ClusimError, match=r"tiny.yaml:\d+:\d+: model: memory: stage 0 .* GiB too little"
    ):
        clusim.train(work, A100, steps=1, strict_memory=True)


REDUCED: dict[str, dict[str, Any]] = {
    "gpt3-175b-megatron": {
        "model": {"layers": 24, "hidden": 1536, "heads": 16}, "sequence": 256, "global": 8, "nodes": 8,
    },
    "megatron-22b": {
        "model": {"layers": 2, "hidden": 1024, "heads": 16}, "sequence": 256, "global": 4, "nodes": None,
    },
    "llama3-70b-fsdp": {
        "model": {"layers": 3, "hidden": 1024, "heads": 16, "kv_heads": 8, "intermediate": 2048},
        "sequence": 512, "global": 16, "nodes": 2,
    },
    "mixtral-8x7b-ep8": {
        "model": {"layers": 2, "hidden": 512, "heads": 8, "expert_size": 1024},
        "sequence": 256, "global": 32, "nodes": 2,
    },
    "dlrm-16": {"model": {}, "sequence": 1, "global": 16384, "micro": 1024, "nodes": 2},
    "resnet50-dgx1v": {"model": {"image": 64}, "sequence": 1, "global": 64, "micro": 8, "nodes": None},
    "bert-parameter-server": {"model": {"layers": 4}, "sequence": 128, "global": 28, "nodes": None},
    "bert-allreduce": {"model": {"layers": 4}, "sequence": 128, "global": 28, "nodes": None},
}  # fmt: skip


def test_every_sample_is_run() -> None:
    assert set(REDUCED) == set(shipped_workloads()) - set(cluster_workloads())


@pytest.mark.parametrize("name", REDUCED)
def test_samples_run_at_reduced_size(name: str) -> None:
    own = REDUCED[name]
    work = load_workload(name)
    batch = {"all": own["global"], "micro": own.get("micro", work.batch.micro)}
    work = work.model_copy(
        update={
            "model": work.model.model_copy(update=own["model"]),
            "sequence": own["sequence"],
            "batch": work.batch.model_copy(update=batch),
        }
    )
    assert work.topology is not None
    fabric = clusim.load(work.topology, nodes=own["nodes"])
    result = clusim.train(work, fabric, steps=1, granularity="coarse", fold="all")
    data = json.loads(json.dumps(result.to_json()))
    assert data["step_time_s"] > 0
    assert 0 < data["mfu"] < 1
    for row in result.ranks:
        assert row.total_ps == result.step_ps[-1]
    for key in (
        "exposed_comm_s",
        "bubble_fraction",
        "memory_GiB",
        "volume_bytes_per_gpu",
        "busiest_wires",
    ):
        assert key in data


def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


SMALL_FILE = """
topology: dgx-a100
model: {base: gpt2, layers: 2, vocab: 4096}
sequence: 128
batch: {global: 8, micro: 1}
"""


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = command(capsys)
    path, trace = tmp_path / "w.yaml", tmp_path / "w.h5"
    path.write_text(SMALL_FILE)
    code, out, err = call("train", path, "--granularity", "256KiB", "--json", "--trace-out", trace)
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["gpus"] == 8
    assert len(data["steps_s"]) == 2
    assert trace.is_file()
    code, out, err = call("train", path, "--granularity", "256KiB", "dgx-h100", "--steps", "1")
    assert code == 0
    assert "8 GPUs of dgx-h100" in out
    code, out, _ = call(
        "train",
        path,
        "--granularity",
        "256KiB",
        "--scaling",
        "weak",
        "--replicas",
        "1,4",
        "--steps",
        "1",
    )
    assert code == 0
    assert "efficiency" in out


def test_the_command_and_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = command(capsys)
    path = tmp_path / "w.yaml"
    path.write_text(SMALL_FILE + "parallel: {tensr: 2}\n")
    code, out, err = call("train", path)
    assert (code, out) == (2, "")
    assert "w.yaml:6:12: parallel.tensr: unknown key; did you mean 'tensor'?" in err
    assert len(err.splitlines()) == 1
    path.write_text(SMALL_FILE + "hardware: {memory: 1MiB}\n")
    code, out, err = call("train", path, "--granularity", "256KiB", "--strict-memory")
    assert code == 2
    assert "too little" in err
    assert err.startswith("clusim: ")
    assert "w.yaml:3:8: model: memory: stage 0 needs" in err
    path.write_text(SMALL_FILE + "communicators: {data: {algorithm: {allreduce: nvls}}}\n")
    code, out, err = call("train", path, "--granularity", "256KiB")
    assert (code, out) == (2, "")
    assert "w.yaml:6:23: communicators.data: nvls: dgx-a100 lacks reduction units" in err
    path.write_text(SMALL_FILE.replace("topology: dgx-a100\n", ""))
    assert call("train", path)[0] == 2
    assert call("train", "nothing-like-it")[0] == 2
    assert call("train", path, "--granularity", "256KiB", "dgx-a100", "--scaling", "weak")[0] == 2


def test_what_sharing_costs_is_said() -> None:
    text = "data: {kind: ddp, first_bucket: 1MiB, bucket: 4MiB}\ncommunicators: {data: {algorithm: {allreduce: %s}}}"
    ring, nvls = (quick(small(text % name), H100, steps=1) for name in ("ring", "nvls"))
    assert ring.sharing.sms == 24.0
    assert nvls.sharing.sms < ring.sharing.sms
    assert 0 < nvls.kernel_slowdown_s < ring.kernel_slowdown_s
    assert "SM sharing" in training_report(ring)
    alone = quick(small("data: {kind: naive}"), A100, steps=1)
    assert alone.kernel_slowdown_s < 1e-9


def test_a_schedule_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "docs" / "examples" / "training_schedule.py"))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    named = {" ".join(row[4:]): (int(row[0]), int(row[2])) for row in rows}
    reductions = [(int(row[0]), int(row[2])) for row in rows if row[4] == "allreduce"]
    assert len(reductions) == 3
    # Reduced beside the backward pass of the layer before, which that slows; the optimiser waits for the last one.
    assert reductions[0][0] == named["backward 1"][0] == named["backward 2"][1]
    assert named["backward 1"][1] - named["backward 1"][0] > 600
    assert named["optimizer"][0] == reductions[-1][1]


def test_long_runs_share_memory_out_less_often() -> None:
    assert relaxed(A100, make_plan(small("parallel: {tensor: 8}"), A100), 1) is A100
    long = relaxed(A100, make_plan(load_workload("megatron-22b"), A100), 1)
    endpoint = long.nodes[arrays_of(long).node_of(0)].endpoint
    assert endpoint is not None
    assert 2_000_000 < endpoint.mem_quantum_ps <= 50_000_000
