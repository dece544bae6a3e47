"""Measured steps: rows as workloads, scores by hand, and the command."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.hardware.calibration import ROW_SETS
from clusim.simulation.residuals import data_of, known_campaigns
from clusim.training.estimate import estimate
from clusim.training.expected import StepClass, expected_step, expected_text
from clusim.validation.measured import Unpredicted
from clusim.validation.steps.cases import case_of
from clusim.validation.steps.predict import (
    StepPoint,
    kendall_tau,
    predict_row,
    step_score,
)
from clusim.validation.steps.rows import StepRow, is_step_table, model_spec, read_steps
from clusim.validation.steps.validate import (
    HEADING,
    StepReport,
    step_lines,
    write_section,
)
from clusim.workload.models import Transformer
from clusim.workload.parallel.plan import model_of
from clusim.workload.spec import ModelSpec
from clusim_cli.main import run
from support.covering import THOROUGH
from support.measured_steps import GPT, table

BARE: dict[str, Any] = {"layers": 0, "hidden": 0, "heads": 0, "vocab": 0}
"""What a table leaves out that has only a model's name."""


def row(**changes: Any) -> StepRow:
    return StepRow(**(GPT | changes))


SWEEP = {"framework": "llm-foundry", "hardware": "H100 80GB", "n_gpus": 128, "attention": "flash2"}
"""A row of LLM Foundry's sweep, whose attention differs by model."""


class TestRows:
    def test_numbers_words_and_blanks(self, tmp_path: Path) -> None:
        path = table(tmp_path / "a.csv", {}, {"micro_batch": "", "step_s": "", "vocab": "padded"})
        one, two = read_steps([path])
        assert (one.hidden, one.step_s, one.model) == (512, 0.1, "GPT")
        assert (two.micro_batch, two.vocab, two.measured_s) == (0, 0, 0.0)
        assert one.where == f"{path}:2"
        assert (one.unread, two.unread) == ((), (("vocab", "padded"),))

    @pytest.mark.parametrize("name", ["n_gpus", "seq", "global_batch", "step_s"])
    @pytest.mark.parametrize("text", ["eight", "-1", "nan", "1e400"])
    def test_a_needed_number_that_is_none_is_named(
        self, tmp_path: Path, name: str, text: str
    ) -> None:
        (own,) = read_steps([table(tmp_path / "a.csv", {name: text})])
        with pytest.raises(InputError, match=f"{name} '{text}': must be a valid number"):
            case_of(own)

    def test_another_is_as_if_not_given_and_said(self, tmp_path: Path) -> None:
        (own,) = read_steps([table(tmp_path / "a.csv", {"vocab": "padded"})])
        assert "vocab 'padded': no number, as if not given" in case_of(own).notes

    def test_tokens_per_second_are_a_time(self) -> None:
        # 8 sequences of 256 tokens on 2 GPUs that do 512 tokens a second each.
        assert row(step_s=0.0, tokens_per_s_per_gpu=512.0).measured_s == 2.0

    def test_which_table_it_is(self, tmp_path: Path) -> None:
        assert is_step_table(table(tmp_path / "a.csv", {}))
        other = tmp_path / "b.csv"
        other.write_text("system,n_gpus,collective,size_bytes,time_us\n", encoding="utf-8")
        assert not is_step_table(other)
        with pytest.raises(InputError, match="no column hardware"):
            read_steps([other])

    def test_rows_that_calibrated_figures_are_known(self) -> None:
        own = {"source": "VIA-Research/vTrain", "hidden": 1024, "pipeline": 1}
        assert row(**own).row_sets == ("hosts-vtrain",)
        assert row(**own | {"micro_batch": 2}).row_sets == ()
        assert row(**own | {"pipeline": 2}).row_sets == ()
        assert ROW_SETS["hosts-vtrain"].selectors


class TestCases:
    @pytest.mark.parametrize(
        ("word", "recompute", "detail"),
        [
            ("none", "none", {}),
            ("full (paper)", "full", {}),
            ("selective", "selective", {}),
            ("selective (every other layer)", "full", {"every": 2}),
            ("selective (every 4 layers)", "full", {"every": 4}),
            ("selective (mla_up_proj, mlp)", "selective", {"modules": ["mla_up_proj", "mlp"]}),
            ("selective (op)", "selective", {"operators": "torchtitan"}),
        ],
    )
    def test_words_on_recomputation_are_obeyed(
        self, word: str, recompute: str, detail: dict[str, Any]
    ) -> None:
        workload = case_of(row(recompute=word, attention="flash")).workload
        assert workload.recompute == recompute
        assert workload.recomputation.model_dump(exclude_unset=True) == detail

    def test_selective_recomputation_of_torchtitan_is_by_operators(self) -> None:
        titan = {"framework": "TorchTitan 9dec370", "attention": "flash", "recompute": "selective"}
        case = case_of(row(**titan))
        assert case.workload.recomputation.operators == "torchtitan"
        assert any("TorchTitan's default" in note for note in case.notes)

    def test_words_without_effect_are_named(self) -> None:
        words = {
            "recompute": "selective (gelu only)",
            "precision": "fp8 (rowwise)",
        }
        notes = " ".join(case_of(row(**words, hardware="H100", attention="flash")).notes)
        for word in ("gelu only", "scales by rows"):
            assert word in notes

    @pytest.mark.parametrize("notes", ["async TP", "MFU 46%; TP, PP and DP overlap on"])
    def test_overlap_of_tensor_parallelism_is_obeyed(self, notes: str) -> None:
        overlapped = case_of(row(notes=notes, sequence_parallel="not stated")).workload.tensor
        assert overlapped.overlap
        assert overlapped.sequence_parallel

    @pytest.mark.parametrize("notes", ["TP off; DP overlap on", "TP overlap off, DP overlap on"])
    def test_overlap_of_other_dimensions_is_none_of_tensors(self, notes: str) -> None:
        assert not case_of(row(notes=notes)).workload.tensor.overlap

    def test_parameters_overlap_with_the_distributed_optimiser_only(self) -> None:
        words = "data-parallel overlap of gradients and parameters"
        case = case_of(row(framework="Megatron-Core r0.8.0", sharding=words, n_gpus=8))
        assert case.workload.data.kind == "distributed-optimizer"

    def test_a_row_is_a_workload(self) -> None:
        case = case_of(row(pipeline=2, n_gpus=8, chunks=1))
        own = case.workload
        assert (case.machines.topology, case.nodes) == ("dgx-a100", 1)
        assert (own.parallel.tensor, own.parallel.pipeline, own.parallel.data) == (2, 2, 2)
        assert (own.precision, own.recompute, own.attention) == ("fp16", "full", "plain")
        assert (own.host.framework, own.loss, own.accumulation) == (
            "megatron-deepspeed",
            "plain",
            "added",
        )
        assert not own.data.overlap
        assert not own.tensor.sequence_parallel

    @pytest.mark.parametrize(
        ("framework", "mode", "expected"),
        [
            ("llm-foundry (Composer)", "unknown", "pytorch"),
            ("torchtitan", "compile", "torch-compile"),
            ("torchtitan", "eager", "pytorch"),
            ("Megatron-Core r0.8.0", "", "megatron"),
            ("NeMo container 24.07", "unknown", "megatron"),
            ("Megatron-Bridge", "cuda-graph", "cuda-graph"),
            ("Megatron-Bridge", "cuda-graph (router parts)", "megatron"),
            ("MaxText (JAX)", "", "jax"),
        ],
    )
    def test_frameworks(self, framework: str, mode: str, expected: str) -> None:
        own = case_of(row(framework=framework, compile=mode)).workload
        assert own.host.framework == expected

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seq": 0}, "seq is not given"),
            ({"global_batch": 0}, "global_batch is not given"),
            ({"n_gpus": 0}, "0 GPUs are not a multiple"),
            ({"micro_batch": 10**13}, "batch.micro: input should be less"),
            ({"hidden": 10**14}, "model.hidden: input should be less"),
        ],
    )
    def test_numbers_that_no_step_has_are_told(self, change: dict[str, int], message: str) -> None:
        with pytest.raises(InputError, match=message):
            case_of(row(**change))

    def test_an_unknown_framework_is_said(self) -> None:
        found = case_of(row(framework="Colossal-AI"))
        assert found.workload.host.framework == "pytorch"
        assert "framework 'Colossal-AI': issued as PyTorch's assumed" in found.notes
        assert not any("issued as" in note for note in case_of(row(framework="PyTorch FSDP")).notes)

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, None),
            ({"framework": "llm-foundry", "attention": "flash2"}, "flash-triton"),
            ({**SWEEP, "model": "MPT-30b"}, "flash-triton"),
            ({**SWEEP, "model": "MPT-7b"}, "flash2"),
            ({**SWEEP, "model": "MPT-7b", "n_gpus": 64}, "flash-triton"),
            ({"framework": "torchtitan", "attention": "flash2"}, "flash2"),
            ({"framework": "torchtitan", "attention": ""}, "flash2"),
            ({"framework": "megatron", "attention": "flash3"}, "flash3"),
            ({"framework": "megatron", "attention": "unknown"}, None),
            ({"framework": "NeMo container 24.07", "attention": "unknown"}, "cudnn"),
            (
                {"framework": "NeMo container 24.07", "attention": "", "context": 2, "n_gpus": 16},
                "flash2",
            ),
            ({"framework": "NeMo container 25.04", "attention": "unknown"}, None),
        ],
    )
    def test_whose_attention(self, changes: dict[str, Any], expected: str | None) -> None:
        own = case_of(row(**changes)).workload.hardware
        assert own.attention_library == expected

    def test_gradients_of_mosaics_default_mode_are_reduced_with_32_bits(self) -> None:
        for notes, bits in (("FSDP mixed-precision mode DEFAULT", 32), ("mode PURE", 16)):
            found = case_of(row(framework="llm-foundry", attention="flash", notes=notes)).workload
            assert found.gradient_bits == bits

    @pytest.mark.parametrize(
        ("framework", "precision", "sharding", "expected"),
        [
            ("NeMo container 24.07", "fp8", "", (16, "bf16")),
            ("NeMo container 24.03.01", "fp8", "", (16, "bf16")),
            ("NeMo container 24.03", "fp8", "", (32, "bf16")),
            ("Megatron-Bridge", "fp8 (FP8-CS)", "", (16, "fp8")),
            ("Megatron-Bridge", "bf16", "", (16, "bf16")),
            ("Megatron-Bridge", "fp8", "fsdp (group 8)", (16, "bf16")),
            ("Megatron-Core r0.8.0", "fp8", "", (32, "bf16")),
        ],
    )
    def test_gradients_and_weights_of_published_scripts(
        self, framework: str, precision: str, sharding: str, expected: tuple[int, str]
    ) -> None:
        changes = {"framework": framework, "precision": precision, "sharding": sharding}
        own = case_of(row(**changes, hardware="DGX-H100")).workload
        assert (own.gradient_bits, own.primary_weights) == expected

    def test_recomputation_of_published_scripts(self) -> None:
        said = {
            name: [
                note
                for note in case_of(row(framework=name, recompute="")).notes
                if "recomp" in note
            ]
            for name in ("NeMo container 24.07", "NeMo container 24.03")
        }
        assert ["none, as in the scripts" in notes[0] for notes in said.values()] == [True, False]

    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            ("GPT3-20B", (44, 6144, 48)),
            ("GPT3-175B", (96, 12288, 96)),
            ("bert-large", (24, 1024, 16)),
        ],
    )
    def test_a_name_gives_the_size_of_its_model(
        self, model: str, expected: tuple[int, int, int]
    ) -> None:
        found = model_of(ModelSpec.model_validate(model_spec(row(**BARE, model=model))))
        assert isinstance(found, Transformer)
        assert (found.layers, found.hidden, found.heads) == expected

    @pytest.mark.parametrize("model", ["GPT3-5B", "GPT", "LLAMA2-13B", "Mixtral-8x7B"])
    def test_a_name_without_a_known_size_is_not_taken_for_another(self, model: str) -> None:
        with pytest.raises(InputError, match=f"model '{model}': set layers and hidden size"):
            case_of(row(**BARE, model=model))

    def test_what_is_not_said_is_noted(self) -> None:
        found = case_of(row(micro_batch=0, precision="", recompute="unknown", attention=""))
        assert [note.partition(":")[0].partition(" not given")[0] for note in found.notes] == [
            "microbatch",
            "precision",
            "attention",
            "recomputation",
            "sharding",
        ]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"hardware": "TPU v4"}, "no matching preset"),
            ({"model": "LLAMA2-7B [LoRA]"}, "'lora' is not modelled"),
            ({"precision": "int8"}, "not modelled"),
            ({"n_gpus": 3}, "not a multiple of 2"),
            ({"step_s": 0.0}, "no time of a step"),
            ({"step_s": 1e-6}, "of the peak"),
        ],
    )
    def test_what_cannot_be_predicted_says_why(self, changes: dict[str, Any], words: str) -> None:
        found = predict_row(row(**changes))
        assert isinstance(found, Unpredicted)
        assert words in found.reason

    @pytest.mark.parametrize("gpus", [16, 32])
    def test_a_row_is_the_estimate_of_its_step(self, gpus: int) -> None:
        """Two and four nodes, with all replicas."""
        measured = row(n_gpus=gpus, tensor=8, global_batch=16)
        found = predict_row(measured)
        assert isinstance(found, StepPoint)
        case = case_of(measured)
        step = estimate(case.workload, "dgx-a100", nodes=gpus // 8, steps=1)
        assert found.predicted_s == step.step_time_s
        assert step.plan.mesh.size == gpus


class TestScores:
    def points(self, *pairs: tuple[float, float], **changes: Any) -> list[StepPoint]:
        return [StepPoint(row(**changes), was, now) for was, now in pairs]

    def test_errors_by_hand(self) -> None:
        # +10 %, -30 %, +20 %: mean of sizes 20, median 20, bias 0.
        found = step_score(self.points((1.0, 1.1), (1.0, 0.7), (2.0, 2.4)))
        assert (found.n, found.mean_abs_pct, found.median_abs_pct) == (3, 20.0, 20.0)
        assert found.bias_pct == pytest.approx(0.0)

    def test_tau_by_hand(self) -> None:
        # Of six pairs of four plans one is the wrong way round: (5 - 1) / 6.
        assert kendall_tau(self.points((1, 1), (2, 3), (3, 2), (4, 4))) == pytest.approx(0.6667)
        assert kendall_tau(self.points((1, 4), (2, 3))) == -1.0
        assert kendall_tau(self.points((1, 1), (2, 1))) == 0.0
        assert kendall_tau(self.points((1, 1), (1, 2))) is None

    def test_tau_compares_plans_of_one_model_on_one_number_of_gpus(self) -> None:
        one, two = self.points((1, 1)), self.points((2, 0.5), n_gpus=4)
        assert kendall_tau([*one, *two]) is None

    def test_tau_is_of_throughput(self) -> None:
        # Twice the samples in one and a half times the time is faster.
        one, two = self.points((1, 1)), self.points((1.5, 1.6), global_batch=16)
        assert kendall_tau([*one, *two]) == 1.0


def report() -> StepReport:
    calibration = {"source": "VIA-Research/vTrain", "hidden": 1024, "pipeline": 1}
    points = [StepPoint(row(), 1.0, 1.1, chip="a100-sxm4-80gb") for _ in range(4)]
    points.append(StepPoint(row(**calibration), 1.0, 3.0, chip="a100-sxm4-80gb"))
    return StepReport(points, [Unpredicted(row(), "no")])


def test_calibration_rows_are_scored_apart() -> None:
    found = report().to_json()
    assert found["overall"]["n"] == 4
    assert found["overall"]["mean_abs_pct"] == pytest.approx(10.0)
    assert found["calibration"]["n"] == 1
    assert all(group["n"] <= 4 for group in found["groups"])
    assert {group["by"] for group in found["groups"]} == {
        *("place", "chip", "framework", "micro_batch", "parallelism", "source")
    }
    assert "1 rows failed: no (row)" in "\n".join(step_lines(report()))


def test_the_section_replaces_itself_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nBefore.\n", encoding="utf-8")
    for _ in range(2):
        write_section(report(), page, "clusim validate steps.csv")
        text = page.read_text(encoding="utf-8")
        assert text.startswith("# Title\n\nBefore.\n")
        assert text.count(HEADING) == 1
    assert "| **held-out rows** | 4 | 10.0 | 10.0 | +10.0 |  |" in text


def step_points(source: str, error: float, count: int = 8, **changes: Any) -> list[StepPoint]:
    """Return predictions of a source with an error, as a share, on an A100 with PyTorch."""
    chip = changes.pop("chip", "a100-sxm4-80gb")
    own = row(**{"source": source, "framework": "PyTorch", **changes})
    return [StepPoint(own, 1.0, 1 + error, chip=chip) for _ in range(count)]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that ships the expected errors of some points."""
    table, target = tmp_path / "steps.csv", tmp_path / "accuracy.json"
    table.write_text("", encoding="utf-8")
    monkeypatch.setattr("clusim.training.expected.STEP_DATA", target)

    def ship(*points: StepPoint) -> None:
        StepReport(list(points)).write_data(target, [table])
        known_campaigns.cache_clear()
        data_of.cache_clear()

    return ship


class TestExpected:
    def test_two_sources_on_the_gpu_first_then_on_others(
        self, shipped: Callable[..., None]
    ) -> None:
        variant = step_points("b", -0.3, chip="a100-sxm4-80gb-as-said")
        shipped(*step_points("a", 0.1), *variant)
        found = expected_step("a100-sxm4-80gb", "pytorch")
        assert found == StepClass("a100-sxm4-80gb", "pytorch", 2, 16, 20.0, -10.0, 30.0)
        assert found.text() == (
            "20% either way, at most 30%, mean of 2 sources with 16 published steps on a100-sxm4-80gb and pytorch"
            " (bias -10%)"
        )
        other = expected_step("h100-sxm5", "pytorch")
        assert other == replace(found, chip="")
        assert expected_step("a100-sxm4-80gb", "jax") is None
        assert expected_step("a100-sxm4-80gb", "none") is None

    def test_one_source_or_few_rows_are_not_enough(self, shipped: Callable[..., None]) -> None:
        shipped(
            *step_points("a", 0.1, 99),
            *step_points("a", 0.1, chip="b200-sxm"),
            *step_points("b", 0.1, 7),
        )
        assert expected_step("h100-sxm5", "pytorch") is None
        assert expected_step("a100-sxm4-80gb", "pytorch") is None
        assert expected_text("a100-sxm4-80gb", "pytorch") == (
            "not known (no measurements of comparable systems)"
        )

    def test_a_source_that_calibrated_the_framework_is_omitted(
        self, shipped: Callable[..., None]
    ) -> None:
        # Its other steps calibrated the host costs of Megatron-DeepSpeed, which PyTorch does not use.
        source = "VIA-Research/vTrain"
        for framework, known in (("Megatron-DeepSpeed", False), ("PyTorch", True)):
            points = step_points(source, 0.1, framework=framework)
            shipped(*points, *step_points("other", 0.1, framework=framework))
            name = framework.lower()
            assert (expected_step("a100-sxm4-80gb", name) is not None) == known


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("none", "not known without a host model"),
        ("pytorch", "16 published steps on a100-sxm4-80gb and pytorch (bias"),
        ("jax", "not known (no measurements of comparable systems)"),
    ],
)
def test_every_output_of_train_says_the_error_to_expect(
    host: str,
    said: str,
    tmp_path: Path,
    shipped: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Text and JSON; where steps are comparable also both of --scaling, and what is told of a trace."""
    shipped(*step_points("a", 0.1), *step_points("b", 0.1))
    path = tmp_path / "job.yaml"
    path.write_text(
        "topology: dgx-a100\nmodel: {base: gpt2, layers: 1}\nsequence: 128\nbatch: {global: 8}\n"
        f"collectives: clusim\nhost: {{framework: {host}}}\n"
    )
    words = ["train", str(path), "--steps", "1", "--no-progress"]

    def shown(*more: str) -> str:
        capsys.readouterr()
        assert run([*words, *more]) == 0
        return capsys.readouterr().out

    data = json.loads(shown("--json"))
    texts = [shown(), data["expected_error_text"]]
    assert (data["expected_error"] is None) == (host != "pytorch")
    if host == "pytorch" or THOROUGH:
        trace, page = tmp_path / "trace.h5", tmp_path / "page.html"
        shown("--trace-out", str(trace))
        assert run(["report", str(trace), "-o", str(page)]) == 0
        texts.append(html.unescape(page.read_text(encoding="utf-8")))
        scaled = ("--scaling", "weak", "--replicas", "2")
        (row,) = json.loads(shown(*scaled, "--json"))
        texts += [shown(*scaled), row["expected_error_text"]]
        assert data["expected_error"] == row["expected_error"]
    for text in texts:
        assert said in " ".join(text.split())
