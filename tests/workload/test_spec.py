from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.base.resources import cluster_workloads, find_workload, shipped_workloads
from clusim.workload import load_workload, loads_workload, make_plan

GOOD = "model: gpt2-xl\nsequence: 1024\nbatch: {global: 16, micro: 1}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "w.yaml:1:1: must be a mapping"),
        ("", "w.yaml:1:1: "),
        (GOOD + "bathc: 3\n", "w.yaml:4:1: bathc: unknown key; did you mean 'batch'?"),
        (
            GOOD + "data: {kind: dpd}\n",
            "w.yaml:4:14: data.kind: 'dpd' is not known; did you mean 'ddp'?",
        ),
        (
            GOOD + "data: {buket: 1MiB}\n",
            "w.yaml:4:8: data.buket: unknown key; did you mean 'bucket'?",
        ),
        (GOOD + "data: {bucket: 25M}\n", "w.yaml:4:16: data.bucket: '25M': ambiguous size"),
        (GOOD + "parallel: {tensor: two}\n", "w.yaml:4:20: parallel.tensor: 'two'"),
        (GOOD + "communicators: {dta: {channels: 4}}\n", "did you mean 'data'"),
        (GOOD + "communicators: {data: {chanels: 4}}\n", "did you mean 'channels'"),
        (GOOD + "precision: bf8\n", "w.yaml:4:12: precision"),
        (GOOD + "sequence: 4\n", "w.yaml:4:1: sequence: duplicate key; first given in line 2"),
        ("model: gpt2\n", "'batch' is missing"),
        ("model: [\n", "not valid YAML"),
    ],
)
def test_bad_files_are_told_where(text: str, message: str) -> None:
    with pytest.raises(ClusimError) as found:
        loads_workload(text, "w.yaml")
    assert message in str(found.value).splitlines()[0]
    assert found.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD + "parallel: {tensor: 3}\n",
            "w.yaml:4:11: parallel: tensor 3 x context 1 x pipeline 1 = 3 does not divide",
        ),
        (GOOD + "parallel: {tensor: 4}\n", "attention heads 25: cannot"),
        (GOOD + "parallel: {tensor: 2, data: 8}\n", "= 16 GPUs; dgx-a100 has 8"),
        (
            GOOD + "parallel: {pipeline: 8}\npipeline: {schedule: interleaved, chunks: 7}\n",
            "48 layers cannot be divided",
        ),
        (
            GOOD + "parallel: {pipeline: 8}\npipeline: {chunks: 2}\n",
            "w.yaml:5:20: pipeline.chunks: chunks need schedule",
        ),
        (GOOD.replace("16", "12"), "w.yaml:3:17: batch.global: 12 samples cannot be divided"),
        (GOOD + "parallel: {expert: 4}\n", "no experts"),
        (GOOD + "parallel: {expert: 3}\n", "expert 3: must divide"),
        (GOOD + "parallel: {order: [data, tensor]}\n", "must name each of"),
        (GOOD + "parallel: {ranks: [0, 1, 2, 99]}\n", "rank 99"),
        (
            GOOD + "parallel: {data: 4}\n",
            "w.yaml:4:11: parallel: tensor 1 x context 1 x pipeline 1 x data 4 = 4 GPUs, but dgx-a100 has 8",
        ),
        (
            GOOD + "data: {kind: parameter-server, servers: 2}\nparallel: {data: 5}\n",
            "w.yaml:5:11: parallel: tensor 1 x context 1 x pipeline 1 x data 5 = 5 GPUs and 2 servers, but dgx-a100",
        ),
        (
            GOOD + "data: {kind: parameter-server, servers: 8}\n",
            "w.yaml:4:41: data.servers: 8 servers use all of the 8 GPUs",
        ),
        (
            GOOD + "data: {kind: parameter-server, servers: 9, colocated: true}\n",
            "w.yaml:4:41: data.servers: 9 servers on 8 workers",
        ),
        (GOOD + "parallel: {pipeline: 8}\npipeline: {chunks: 7}\n", "w.yaml:5:20: pipeline.chunks"),
        (
            GOOD.replace("gpt2-xl", "{base: gpt2, layers: 4}") + "parallel: {pipeline: 8}\n",
            "w.yaml:4:11: parallel: 4 layers cannot be divided into 8 stages",
        ),
        (
            GOOD.replace("16,", "1099511627776,"),
            "w.yaml:3:17: batch.global: 137,438,953,472 microbatches",
        ),
        (
            GOOD.replace("gpt2-xl", "{base: gpt2-xl, heads: 7}"),
            "w.yaml:1:8: model: hidden size 1600 is not a multiple of 7 heads",
        ),
        (
            GOOD.replace("gpt2-xl", "{base: mixtral-8x7b, top_k: 9}"),
            "w.yaml:1:8: model: top_k 9: must be 1 to 8",
        ),
        (
            GOOD.replace("gpt2-xl", "{base: mixtral-8x7b, dense_layers: 40}"),
            "w.yaml:1:8: model: dense_layers 40: the model has 32",
        ),
        (
            GOOD.replace("gpt2-xl", "{base: llama3-8b, kv_heads: 5}"),
            "w.yaml:1:8: model: 32 attention heads cannot share 5",
        ),
        (GOOD.replace("gpt2-xl", "{base: mlp, sizes: [4]}"), "w.yaml:1:27: model.sizes"),
        (
            GOOD
            + "parallel: {pipeline: 8}\npipeline: {schedule: interleaved, chunks: 2, messages: blocking}\n",
            "w.yaml:5:56: pipeline.messages: blocking: interleaved stages would wait",
        ),
        (
            GOOD.replace("16,", "12,")
            + "parallel: {pipeline: 8}\npipeline: {schedule: interleaved, chunks: 2, rule: megatron}\n",
            "w.yaml:5:52: pipeline.rule: megatron needs microbatches (12) in multiples of the 8",
        ),
        (
            GOOD.replace("gpt2-xl", "gpt2-medium")
            + "parallel: {context: 8, tensor: 1}\ncontext: {style: ulisses}\n",
            "w.yaml:5:18: context.style: 'ulisses' is not known; did you mean 'ulysses'?",
        ),
        (
            GOOD + "parallel: {context: 2}\ncontext: {style: ulysses}\n",
            "context parallelism by ulysses: heads of a rank 25: cannot be cut into 2",
        ),
        (GOOD + "experts: {pad: true}\n", "w.yaml:4:16: experts.pad: needs a capacity"),
        (GOOD + "data: {shard: 2}\n", "w.yaml:4:15: data.shard: ddp cuts no states; use one of"),
        (
            GOOD + "data: {kind: fsdp, shard: 3}\n",
            "w.yaml:4:27: data.shard: shard 3: must divide context x data = 8",
        ),
        (GOOD + "parallel: {data: 4, ranks: [0, 1, 2]}\n", "4 ranks"),
        (
            GOOD.replace("1024", "4096"),
            "w.yaml:2:11: sequence: sequence 4096: gpt2-xl has 1024 positions",
        ),
        (
            GOOD.replace("gpt2-xl", "gpt2-xll"),
            "w.yaml:1:8: model: model 'gpt2-xll': unknown; did you mean 'gpt2-xl'?",
        ),
        (
            GOOD.replace("gpt2-xl", "{base: gpt2-xl, image: 64}"),
            "'image' is not a dimension of gpt2-xl",
        ),
        (GOOD + "parallel: {tensor: 2}\ndata: {kind: parameter-server}\n", "data parallelism only"),
        (GOOD + "precision: fp8\n", "w.yaml:4:12: precision"),
        (
            GOOD + "stragglers: {ranks: {99: 2}}\n",
            "w.yaml:4:26: stragglers.ranks.99: rank '99': dgx-a100 has 0..7",
        ),
        (GOOD + "stragglers: {ranks: {first: 2}}\n", "rank 'first'"),
        (
            GOOD + "hardware: {attention_library: flash9}\n",
            "w.yaml:4:31: hardware.attention_library: attention_library 'flash9' was not measured",
        ),
        (
            GOOD + "communicators: {data: {algorithm: {allredduce: ring}}}\n",
            "no operation; did you mean 'allreduce'?",
        ),
        (
            GOOD + "communicators: {data: {algorithm: {allreduce: rings}}}\n",
            "'rings': allreduce has ring, butterfly",
        ),
    ],
)
def test_impossible_plans_are_told_where(text: str, message: str) -> None:
    with pytest.raises(ClusimError) as found:
        make_plan(loads_workload(text, "w.yaml"), clusim.load("dgx-a100"))
    line = str(found.value).splitlines()[0]
    assert message in line
    assert line.startswith("w.yaml:")


def test_an_empty_file_is_told() -> None:
    with pytest.raises(ClusimError, match="empty file; must be a mapping with 'model' and 'batch'"):
        loads_workload("\n", "w.yaml")


def test_keys_of_what_may_be_left_out_are_suggested() -> None:
    text = GOOD + "reliability: {gpu_mtbf: 5, restart_s: 1}\n"
    with pytest.raises(ClusimError) as found:
        loads_workload(text, "w.yaml")
    assert "gpu_mtbf: unknown key; did you mean 'gpu_mtbf_h'?" in str(found.value)


def test_what_is_left_is_data_parallel() -> None:
    plan = make_plan(loads_workload(GOOD + "parallel: {pipeline: 2}\n"), clusim.load("dgx-a100"))
    assert (plan.mesh.data, plan.microbatches) == (4, 4)
    assert plan.samples == 16 * 1024


def test_ranks_and_order_place_the_mesh() -> None:
    text = (
        GOOD + "parallel: {pipeline: 2, data: 4, order: [pipeline, tensor, context, data],"
        " ranks: [7, 6, 5, 4, 3, 2, 1, 0]}\n"
    )
    plan = make_plan(loads_workload(text), clusim.load("dgx-a100"))
    assert plan.mesh.stage(0) == [7, 5, 3, 1]
    assert plan.mesh.groups("replica", 1) == [(6, 4, 2, 0)]


def test_placement_says_what_leaves_the_machine() -> None:
    text = GOOD.replace("gpt2-xl", "gpt3-6.7b") + "parallel: {tensor: 8, pipeline: 2}\n"
    fabric = clusim.load("dgx-a100", nodes=2)
    plan = make_plan(loads_workload(text), fabric)
    assert plan.placement()["tensor"] == "inside"
    assert plan.placement()["pipeline"] == "across"
    turned = text.replace("pipeline: 2", "pipeline: 2, order: [pipeline, tensor, context, data]")
    plan = make_plan(loads_workload(turned), fabric)
    assert plan.placement() == {
        "tensor": "across", "context": "none", "expert": "none", "data": "none", "pipeline": "inside",
    }  # fmt: skip


@pytest.mark.parametrize(("shard", "where"), [(8, "inside"), (16, "across"), (4, "inside")])
def test_shards_that_leave_the_machine_are_hinted_at(shard: int, where: str) -> None:
    text = GOOD.replace("gpt2-xl", "gpt3-6.7b") + f"data: {{kind: fsdp, shard: {shard}}}\n"
    plan = make_plan(loads_workload(text), clusim.load("dgx-a100", nodes=2))
    assert plan.placement()["shard"] == where
    assert ["span nodes" in hint for hint in plan.hints()] == [True] * (where == "across")


@pytest.mark.parametrize("name", sorted(shipped_workloads()))
def test_shipped_workloads_have_a_plan_that_fits(name: str) -> None:
    workload = load_workload(name)
    assert workload.description
    assert workload.topology is not None
    plan = make_plan(workload, clusim.load(workload.topology, nodes=workload.nodes))
    assert all(not plan.memory(stage).missing for stage in range(plan.mesh.pipeline))


def test_workloads_of_clusters_are_found_apart_from_those_that_are_run() -> None:
    apart = cluster_workloads()
    assert "llama3-405b-16k" in apart
    assert {path.parent.name for path in apart.values()} == {"clusters"}
    rest = {name: path for name, path in shipped_workloads().items() if name not in apart}
    assert {path.parent.name for path in rest.values()} == {"traces"}
    assert all(find_workload(name) == path for name, path in (apart | rest).items())


def test_gpt3_of_data_parallelism_is_the_published_model_on_every_gpu() -> None:
    workload = load_workload("gpt3-1.3b-ddp")
    plan = make_plan(workload, clusim.load("dgx-h100", nodes=workload.nodes))
    assert (plan.mesh.data, plan.mesh.size, plan.microbatches) == (1024, 1024, 1)
    # arXiv 2005.14165, table 2.1: GPT-3 XL has 24 layers and 1.3 billion parameters.
    layers = [layer for stage in plan.stages for part in stage for layer in part]
    assert sum(layer.kind == "block" for layer in layers) == 24
    assert sum(layer.parameters for layer in layers) == pytest.approx(1.3e9, rel=0.02)


def test_llama3_405b_is_laid_out_as_published() -> None:
    workload = load_workload("llama3-405b-16k")
    plan = make_plan(workload, clusim.load("dgx-h100", nodes=workload.nodes))
    mesh = plan.mesh
    assert (mesh.tensor, mesh.context, mesh.pipeline, mesh.data) == (8, 1, 16, 128)
    # arXiv 2407.21783, table 4: 16 million tokens a step, a sequence in each of 16 microbatches.
    assert workload.batch.all * workload.sequence == 16 * 2**20
    assert plan.microbatches == 16
    # One layer less at both ends: of 16 stages with 4 parts, the first and the last have 7, the others 8.
    blocks = [
        sum(layer.kind == "block" for part in stage for layer in part) for stage in plan.stages
    ]
    assert blocks == [7, *[8] * 14, 7]
    assert sum(blocks) == 126
    parameters = [layer.parameters for stage in plan.stages for part in stage for layer in part]
    assert sum(parameters) * mesh.tensor == pytest.approx(405e9, rel=0.01)


def test_a_configuration_is_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "run.yaml").write_text("model: {huggingface: config.json}\nbatch: {global: 8}\n")
    with pytest.raises(ClusimError, match="hidden_size"):
        make_plan(load_workload(tmp_path / "run.yaml"), clusim.load("dgx-a100"))
    with pytest.raises(ClusimError, match="no such file"):
        load_workload(tmp_path / "other.yaml")
    with pytest.raises(ClusimError, match="did you mean 'dlrm-16'"):
        load_workload("dlrm-61")


def test_a_configuration_can_be_made_smaller(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu",
        "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = "model: {huggingface: config.json, layers: 2}\nbatch: {global: 8}\n"
    (tmp_path / "run.yaml").write_text(text)
    plan = make_plan(load_workload(tmp_path / "run.yaml"), clusim.load("dgx-a100"))
    assert plan.model.layers == 2
    assert plan.model.parameters == 8_030_261_248 - 30 * 218_112_000


MANGLED = GOOD + (
    "parallel: {tensor: 2, pipeline: 2, order: [tensor, context, data, pipeline]}\n"
    "pipeline: {schedule: interleaved, chunks: 2}\ndata: {kind: fsdp, bucket: 25MiB}\n"
    "stragglers: {ranks: {1: 2.0}, jitter: 0.1}\nexperts: {capacity: 2, pad: true}\n"
    "communicators: {data: {algorithm: {allreduce: ring}}}\nhardware: {memory: 80GiB}\n"
)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_files_are_one_line(seed: int) -> None:
    chance = random.Random(seed)
    fabric, found = clusim.load("dgx-a100"), []
    pieces = [
        "0",
        "-1",
        "null",
        "[]",
        "{}",
        "1e9",
        "99999999999999",
        ".nan",
        "x",
        "\t",
        "[1, 2]",
        ":",
        "#",
        "}",
    ]
    for _ in range(40):
        text = MANGLED
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice(pieces) + text[at + chance.randint(0, 4) :]
        try:
            make_plan(loads_workload(text, "w.yaml"), fabric)
        except ClusimError as error:
            found.append(error)
    assert len(found) > 20
    for error in found:
        assert str(error).startswith("w.yaml:")
        assert error.exit_code == 2
