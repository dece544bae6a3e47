"""Dimensions, kinds of data parallelism and schedules go together; every one of these steps ends."""

from __future__ import annotations

import pytest

import clusim
from support.workloads import tiny

A100 = clusim.load("dgx-a100")
MOE = (
    "{base: mixtral-8x7b, layers: 4, hidden: 256, heads: 8, kv_heads: 8, head_size: 32,"
    " expert_size: 256, vocab: 1024}"
)
DEEPSEEK = (
    "{base: deepseek-v3, layers: 4, hidden: 256, heads: 8, kv_heads: 8, intermediate: 512,"
    " expert_size: 256, vocab: 1024, experts: 16, top_k: 4, dense_layers: 1}"
)


@pytest.mark.parametrize(
    ("parallel", "rest", "model"),
    [
        ("{tensor: 2, pipeline: 2, context: 2}", "data: {kind: ddp}", ""),
        ("{tensor: 2, pipeline: 2}", "data: {kind: zero1}\ntensor: {sequence_parallel: true}", ""),
        ("{tensor: 2, context: 2}", "data: {kind: fsdp, prefetch: 2}", ""),
        ("{pipeline: 4}", "data: {kind: zero2, overlap: false}\npipeline: {schedule: gpipe}", ""),
        ("{pipeline: 2, tensor: 2}", "pipeline: {schedule: interleaved, chunks: 2}", ""),
        ("{pipeline: 2, context: 2}", "pipeline: {schedule: zero-bubble}\ndata: {kind: fsdp}", ""),
        ("{pipeline: 2, tensor: 4}", "pipeline: {schedule: pipedream}", ""),
        ("{pipeline: 2, tensor: 2}", "pipeline: {schedule: naive}\ndata: {kind: driver}", ""),
        ("{tensor: 2, expert: 4}", "data: {kind: distributed-optimizer}", MOE),
        ("{tensor: 2, expert: 2, pipeline: 2}", "tensor: {sequence_parallel: true}", MOE),
        ("{context: 2, expert: 8}", "experts: {skew: 1}\ndata: {kind: fsdp}", MOE),
        ("{expert: 4, pipeline: 2}", "recompute: full\ndata: {kind: zero1}", DEEPSEEK),
        ("{tensor: 2, expert: 4}", "recompute: selective\nattention: plain", DEEPSEEK),
        (
            "{pipeline: 2, tensor: 2}",
            "pipeline: {schedule: zb-v}\ndata: {kind: zero1, shard: 1}",
            "",
        ),
        ("{pipeline: 2, expert: 2, tensor: 2}", "pipeline: {schedule: dualpipe}", MOE),
        ("{pipeline: 2, expert: 4}", "pipeline: {schedule: dualpipe-v}\ndata: {kind: zero1}", MOE),
        ("{tensor: 2, context: 2}", "tensor: {sequence_parallel: true, overlap: true}", ""),
        (
            "{context: 4, pipeline: 2}",
            "context: {style: ulysses}\ndata: {kind: fsdp, shard: 2}",
            "",
        ),
        ("{context: 2, expert: 4}", "context: {style: all-gather}\nrecompute: full", MOE),
        ("{tensor: 4}", "tensor: {style: row}\nprecision: fp32\ndata: {kind: zero2}", ""),
    ],
)
def test_dimensions_go_together(parallel: str, rest: str, model: str) -> None:
    sequences = 16 if "dualpipe-v" in rest else 8
    replace = {"batch": f"{{global: {sequences}, micro: 1}}", **({"model": model} if model else {})}
    work = tiny(f"parallel: {parallel}\n{rest}", **replace)
    folded, plain = (
        clusim.train(work, A100, steps=1, granularity=65536, fold=fold) for fold in ("all", "none")
    )
    for result in (folded, plain):
        for row in result.ranks:
            assert row.total_ps == result.step_ps[-1]
        assert 0 < result.mfu < 1
    assert folded.traffic == plain.traffic
    assert folded.executed_flops == plain.executed_flops
    sizes = {"tensor", "context", "expert", "pipeline"}
    for dim in sizes:
        moves = getattr(plain.plan.mesh, dim) > 1
        assert (plain.to_json()["volume_bytes_per_gpu"].get(dim, 0) > 0) == moves
