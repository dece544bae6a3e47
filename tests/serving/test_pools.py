"""Laws of separate replicas for prompts and decoding, and of the transfers between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusim.base.errors import ClusimError
from clusim.serving.api import load_model
from clusim.serving.layout import ReplicaLayout
from clusim.serving.result import Serving
from clusim.serving.spec import ServingSpec
from clusim.serving.transfer import CacheTransfer, TransferTimes
from clusim.simulation.setup import Setup
from clusim.workload.models.presets import find_model

POOLS = {
    "model": "llama3-70b",
    "topology": "dgx-h100",
    "nodes": 2,
    "precision": {"weights": "fp8"},
    "pools": {"prefill": {"parallel": {"tensor": 8}}, "decode": {"parallel": {"tensor": 8}}},
    "transfer": {"setup": "0us"},
    "requests": {"input": 8192, "output": 32, "rate": 1.0, "count": 10},
}


def pooled(**changes: Any) -> Serving:
    return load_model(ServingSpec.model_validate({**POOLS, **changes})).run()


def layout(tensor: int, name: str = "llama3-70b") -> ReplicaLayout:
    return ReplicaLayout(find_model(name), tensor=tensor, weights="fp8")  # type: ignore[arg-type]


def network(have: int = 8, want: int = 8, name: str = "llama3-70b", **more: Any) -> TransferTimes:
    setup = Setup("dgx-h100", 2)
    return TransferTimes(setup, layout(have, name), layout(want, name), **more)


MOVED = CacheTransfer(0, 0, 8, 8192)


def test_a_transfer_takes_its_bytes_over_all_nics() -> None:
    """8,192 tokens of 327,680 bytes over 8 NICs of 50 GB/s: 6.71 ms."""
    assert network().alone_ps(MOVED) == pytest.approx(8192 * 327_680 / (8 * 50e9) * 1e12, rel=0.02)


def test_the_time_of_a_transfer_is_linear_in_its_tokens() -> None:
    times = network()
    between = replace(MOVED, tokens=6000)
    assert times.alone_ps(between) == pytest.approx(times._simulated_ps(between, 6000), rel=1e-3)
    assert times.simulated == 3


@pytest.mark.parametrize(("have", "want"), [(8, 8), (8, 4), (4, 8), (8, 2), (2, 8), (1, 8), (8, 1)])
def test_unequal_tensor_parallelism_keeps_the_bytes(have: int, want: int) -> None:
    flows = network(have, want).flows(MOVED)
    assert sum(flow.size_bytes for flow in flows) == 8192 * 327_680
    assert {flow.destination for flow in flows} == set(range(8, 8 + want))
    assert {flow.source for flow in flows} <= set(range(have))
    assert len({flow.source for flow in flows}) == min(have, want) if have <= want else have


@pytest.mark.parametrize(("have", "want"), [(2, 1), (1, 2), (2, 2), (4, 2), (3, 2)])
def test_unequal_pipelines_keep_the_bytes(have: int, want: int) -> None:
    """Stages send the layers that both have: 3 stages to 2 have four pairs."""
    one, two = (replace(layout(2), pipeline=stages) for stages in (have, want))
    flows = TransferTimes(Setup("dgx-h100", 2), one, two).flows(MOVED)
    assert sum(flow.size_bytes for flow in flows) == pytest.approx(8192 * 327_680, rel=1e-6)
    pairs = {(flow.source // 2, (flow.destination - 8) // 2) for flow in flows}
    assert len(pairs) == (4 if have == 3 else max(have, want))


def test_one_copy_of_attention_gets_the_cache_of_a_request() -> None:
    model = find_model("deepseek-v3")
    copies = ReplicaLayout(model, expert=8, attention_data=8, weights="fp8-block")  # type: ignore[arg-type]
    flows = TransferTimes(Setup("dgx-h200", 2), copies, copies).flows(MOVED)
    assert [flow.size_bytes for flow in flows] == [8192 * 70_272]


def test_many_lone_transfers_before_an_island_do_not_count_as_islands() -> None:
    alone = network().alone_ps(MOVED)
    lone = [replace(MOVED, start_ps=2 * alone * at) for at in range(60)]
    last = replace(MOVED, start_ps=200 * alone)
    times = network().times_ps([*lone, last, last])
    assert times[-1] == pytest.approx(2 * alone, rel=0.02)


def test_every_rank_gets_a_latent_cache() -> None:
    flows = network(8, 8, "deepseek-v3").flows(MOVED)
    assert [(flow.source, flow.destination - 8) for flow in flows] == [(at, at) for at in range(8)]
    assert {flow.size_bytes for flow in flows} == {8192 * 70_272}


@pytest.mark.parametrize("load", [0.2, 0.4])
def test_other_traffic_leaves_the_rest_of_the_nics(load: float) -> None:
    """A share s of the NICs' rate multiplies a transfer's time by 1 / (1 - s)."""
    spec = ServingSpec.model_validate({**POOLS, "beside": {"load": load}}).beside
    quiet, busy = (network(beside=item).alone_ps(MOVED) for item in (None, spec))
    assert busy / quiet == pytest.approx(1 / (1 - load), rel=0.1)


def test_two_transfers_at_a_time_take_twice_as_long() -> None:
    times = network().times_ps([MOVED, MOVED])
    assert times == pytest.approx([2 * network().alone_ps(MOVED)] * 2, rel=0.02)


def test_time_to_the_first_token_is_prefill_and_transfer() -> None:
    result = pooled(requests={"input": 8192, "output": 8, "rate": 0.5, "count": 2})
    prefill = result.records[0].end_ps - result.records[0].start_ps
    request_ps = 20 * 10**9
    assert result.ttft_ps[0] == request_ps + prefill + network().alone_ps(MOVED)


def test_decoding_does_not_depend_on_the_rate_of_arrivals() -> None:
    slow, fast = (
        pooled(requests={"input": 4096, "output": 16, "rate": rate, "count": 12})
        for rate in (0.5, 4.0)
    )
    assert fast.tpot.mean == pytest.approx(slow.tpot.mean, rel=0.05)


def test_transfers_by_layer_are_never_later() -> None:
    whole, layers = (
        pooled(transfer={"when": when, "setup": "0us"}) for when in ("whole", "layers")
    )
    assert all(a >= b for a, b in zip(whole.ttft_ps, layers.ttft_ps, strict=True))
    assert layers.ttft.mean < whole.ttft.mean


def test_other_traffic_is_seen_in_the_first_token() -> None:
    quiet, busy = pooled(), pooled(beside={"load": 0.45})
    more = busy.ttft.p50 - quiet.ttft.p50
    assert more == pytest.approx(network().alone_ps(MOVED) * 1e-12 * (1 / 0.55 - 1), rel=0.2)


def test_all_tokens_arrive_and_runs_are_equal() -> None:
    one, two = pooled(), pooled()
    assert one.to_json() == two.to_json()
    assert one.output_tokens == 10 * 32
    assert one.gpus == 16


def test_pools_need_their_gpus() -> None:
    with pytest.raises(ClusimError, match="replicas need 16 GPUs, and dgx-h100 has 8; set nodes"):
        pooled(nodes=1)
