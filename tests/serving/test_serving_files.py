"""Serving files and traces of requests: mistakes and their lines; tables of measured runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import ClusimError
from clusim.serving.api import load_model, serve
from clusim.serving.layout import place_replicas
from clusim.serving.requests import draw_requests
from clusim.serving.spec import ServingSpec, load_serving
from clusim.validation.serving.rows import is_serving_table, read_serving_rows
from clusim.validation.serving.validate import validate_serving
from clusim_cli.main import run

FILE = """topology: dgx-a100
model: {base: llama3-8b, layers: 2}
requests: {input: 64, output: 8, concurrency: 2, count: 4}
"""

WRONG = {
    "requests: {concurency: 2}": "unknown key",
    "requests: {input: 0, concurrency: 2}": "requests.input",
    "requests: {input: {uniform: [9, 3]}, concurrency: 2}": "the first length must not be greater",
    "requests: {input: {uniform: [9]}, concurrency: 2}": "requests.input",
    "requests: {concurrency: 2, rate: 3}": "set one of concurrency, rate and file",
    "requests: {input: 8}": "set one of concurrency, rate and file, not nothing",
    "engine: {name: vlm}\nrequests: {concurrency: 1}": "did you mean 'vllm'",
    "parallel: {tensor: 3}\nrequests: {concurrency: 1}": "does not divide the 32 attention heads",
    "parallel: {expert: 2}\nrequests: {concurrency: 1}": "has no experts",
    "parallel: {pipeline: 9}\nrequests: {concurrency: 1}": "has 2 layers",
    "parallel: {tensor: 4}\nreplicas: 3\nrequests: {concurrency: 1}": "has 8; set nodes",
    "beside: {load: 0.3}\nrequests: {concurrency: 1}": "beside needs pools",
    "pools: {}\nreplicas: 2\nrequests: {concurrency: 1}": "replicas is not for pools, which have theirs",
    "cache: {blocks: 2}\nrequests: {input: 64, concurrency: 1}": "the cache has 2",
    "precision: {weights: fp8}\nrequests: {concurrency: 1}": "precision fp8: unsupported",
    "precision: {weights: nvfp4}\nrequests: {concurrency: 1}": "precision",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "topology: dgx-a100\nmodel: {base: llama3-8b, layers: 2}\n" + text, encoding="utf-8"
    )
    assert run(["serve", str(path)]) == 2
    error = capsys.readouterr().err.strip()
    assert WRONG[text] in error
    assert "\n" not in error


def test_a_model_that_does_not_fit_names_ranks_that_do() -> None:
    spec = {"model": "llama3-70b", "topology": "dgx-h100", "requests": {"concurrency": 1}}
    with pytest.raises(ClusimError, match="of memory on each; use more ranks, such as tensor 4"):
        serve(ServingSpec.model_validate(spec))


def test_a_trace_of_requests(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.csv", tmp_path / "a.yaml"
    path.write_text(FILE, encoding="utf-8")
    trace.write_text("arrival,input,output\n0,64,4\n0.5,32,8\n", encoding="utf-8")
    changes = {"requests.file": str(trace), "requests.concurrency": None, "requests.count": None}
    model = load_model(path, changes=changes)
    assert draw_requests(model.spec.requests) == [(0, 64, 4), (5 * 10**11, 32, 8)]
    result = model.run()
    assert result.output_tokens == 12
    assert result.sequences[1].arrival_ps == 5 * 10**11


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("time,input,output\n", ":1: columns must be arrival,input,output"),
        ("arrival,input,output\n1,2,3\n0,2,3\n", ":3: arrival is before the line above"),
        ("arrival,input,output\nx,2,3\n", ":2: must be a time"),
        ("arrival,input,output\n1,0,3\n", ":2: both numbers of tokens must be at least 1"),
        ("arrival,input,output\nnan,1,3\n", ":2: must be a time"),
    ],
)
def test_a_mistake_in_a_trace_names_its_line(text: str, word: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text, encoding="utf-8")
    spec = {"model": "llama3-8b", "topology": "dgx-a100", "requests": {"file": str(trace)}}
    with pytest.raises(ClusimError, match=word):
        serve(ServingSpec.model_validate(spec))


def test_a_shipped_file_is_found_by_name() -> None:
    assert load_serving("llama3-70b-vllm").model.base == "llama3-70b"
    with pytest.raises(ClusimError, match="did you mean 'llama3-70b-vllm'"):
        load_serving("llama3-70b-vlm")


def test_measured_runs_are_scored(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "hardware,engine,model,precision,tp,input_len,output_len,concurrency_or_batch,ttft_ms,tpot_ms\n"
        "A100 SXM,vllm,Llama-3.1-8B,bf16,1,64,8,1,30,10\nTPU,vllm,Llama-3.1-8B,bf16,1,64,8,1,30,10\n"
        "A100,vllm,other,bf16,1,64,8,1,30,10\n",
        encoding="utf-8",
    )
    assert is_serving_table(path)
    report = validate_serving([*read_serving_rows([path])], jobs=1)
    assert [point.row.model for point in report.points] == ["Llama-3.1-8B"]
    assert 8 < report.points[0].predicted_tpot_ms < 16
    assert [item.reason.partition(": ")[2] for item in report.unpredicted] == [
        "hardware 'TPU' is unknown",
        "model 'other' is unknown",
    ]
    assert report.to_json()["scores"][0]["n"] == 1


def test_copies_of_attention_are_ranks_of_the_tensor_group(tmp_path: Path) -> None:
    """Eight GPUs with tp 8 and dp 8 have eight copies of attention, each on one GPU."""
    path = tmp_path / "runs.csv"
    path.write_text(
        "hardware,gpus,engine,model,precision,tp,ep,dp,input_len,output_len,concurrency_or_batch,ttft_ms,tpot_ms\n"
        "H200,8,sglang,DeepSeek-R1,fp8,8,8,8,64,8,1,30,10\nH200,16,sglang,DeepSeek-R1,fp8,2,8,8,64,8,1,30,10\n",
        encoding="utf-8",
    )
    shapes = [(row.tensor, row.attention_data) for row in read_serving_rows([path])]
    assert shapes == [(1, 8), (2, 8)]


HEAD = "hardware,gpus,engine,model,precision,tp,ep,dp,input_len,output_len,concurrency_or_batch,ttft_ms,tpot_ms,note\n"


def test_the_note_of_a_disaggregated_row_names_its_pools(tmp_path: Path) -> None:
    """One prefill worker of 8 ranks and four of 16: 72 GPUs, 9 nodes of 8."""
    assert place_replicas([4, 8, 8, 2, 2], 8) == [0, 8, 16, 24, 26, 28]
    assert place_replicas([4, 16, 4], 8) == [0, 8, 24, 28]
    path = tmp_path / "runs.csv"
    note = "disaggregated; prefill 1 workers tp1 pp1 dp8 ep8 batch 1; decode 4 workers tp16 pp1 dp1 ep0 batch 9; x"
    row = "H200,72,trtllm,DeepSeek-R1,fp8,16,8,1,64,8,4,30,10,"
    path.write_text(f"{HEAD}{row}{note}\n{row}disaggregated\n", encoding="utf-8")
    good, bad = read_serving_rows([path])
    spec = good.spec()
    assert spec.nodes == 9
    assert spec.pools is not None
    assert spec.pools.prefill.replicas == 1
    assert spec.pools.prefill.parallel.attention_data == spec.pools.prefill.parallel.expert == 8
    assert (spec.pools.decode.replicas, spec.pools.decode.parallel.tensor) == (4, 16)
    assert spec.pools.decode.parallel.expert == 1
    with pytest.raises(ClusimError, match="does not name the workers of prefill and decode"):
        bad.spec()


def test_a_disaggregated_row_is_predicted(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    note = "disaggregated; prefill 2 workers tp1 pp1 dp1 ep0 batch 1; decode 1 workers tp2 pp1 dp1 ep0 batch 1"
    path.write_text(
        f"{HEAD}H100,4,vllm,Llama-3.1-8B,fp8,2,0,1,64,4,1,30,10,{note}\n", encoding="utf-8"
    )
    (point,) = validate_serving([*read_serving_rows([path])], jobs=1).points
    alone = point.row.spec()
    assert any("transfers last" in note for note in point.notes)
    assert 1 < point.predicted_tpot_ms < 10
    assert alone.nodes is None


def test_lengths_and_steps_of_a_row_are_those_of_its_benchmark(tmp_path: Path) -> None:
    """InferenceX draws 80 to 100 % of 1,024 and 8,192; aiconfigurator's have equal lengths and short steps."""
    path = tmp_path / "runs.csv"
    row = "H100,4,vllm,Llama-3.1-8B,fp8,4,0,1,{},8,30,10,{}\n"
    rows = [
        ("1024,8192", "measured 2025-10-29"),
        ("1024,8192", ""),
        ("2000,500", "measured 2026-03-23"),
    ]
    path.write_text(HEAD + "".join(row.format(*cells) for cells in rows), encoding="utf-8")
    specs = [item.spec() for item in read_serving_rows([path])]
    lengths = [(spec.requests.input.uniform, spec.requests.output.uniform) for spec in specs]
    assert lengths == [
        ([819, 1024], [6554, 8192]),
        ([1024] * 2, [8192] * 2),
        ([2000] * 2, [500] * 2),
    ]
    assert [spec.batching.max_batched_tokens for spec in specs] == [
        8192,
        8 + 1024 + 1500,
        8 + 2000 + 1500,
    ]


def test_experts_on_all_ranks_are_not_counted_twice(tmp_path: Path) -> None:
    """Tables with tp 64 and ep 8 of one server of 8 GPUs multiply the two."""
    path = tmp_path / "runs.csv"
    row = "B200,{0},sglang,DeepSeek-R1,fp4,{0},{1},1,64,8,1,30,10,moe_tp {2}\n"
    rows = [row.format(64, 8, 8), row.format(16, 4, 4), row.format(4, 2, 2), row.format(8, 8, 1)]
    path.write_text(HEAD + "".join(rows), encoding="utf-8")
    read = [(item.tensor, item.expert) for item in read_serving_rows([path])]
    assert read == [(8, 8), (4, 4), (4, 2), (8, 8)]
