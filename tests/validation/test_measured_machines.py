"""Machines, chips, rates and precisions of measured steps, by the words and numbers of a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.validation.measured import Unpredicted
from clusim.validation.steps.cases import case_of
from clusim.validation.steps.predict import StepPoint, counted_flops, predict_row
from clusim.validation.steps.row_machines import machines_of
from clusim.validation.steps.rows import StepRow
from clusim.workload import make_plan
from support.measured_steps import GPT


def row(**changes: Any) -> StepRow:
    return StepRow(**(GPT | changes))


class TestMachines:
    @pytest.mark.parametrize(
        ("hardware", "topology", "chip"),
        [
            ("A100 80GB (DGX A100)", "dgx-a100", {}),
            ("A100 40GB", "azure-ndv4", {"base": "a100-sxm4-40gb"}),
            ("A100 PCIe 80GB", "a100-pcie-x8", {"base": "a100-pcie-80gb"}),
            ("A100 80GB, 300 W", "dgx-a100", {"base": "a100-sxm4-80gb", "power": 300.0}),
            (
                "H200 120GB (4.0 TB/s)",
                "dgx-h200",
                {"base": "h200-sxm5", "memory_rate": "4000 GB/s", "memory": "120GB"},
            ),
            ("V100 32GB (DGX-1)", "dgx-1v", {}),
        ],
    )
    def test_words_choose_the_chip(
        self, hardware: str, topology: str, chip: dict[str, Any]
    ) -> None:
        notes: list[str] = []
        found = machines_of(row(hardware=hardware), notes)
        assert (found.topology, dict(found.chip)) == (topology, chip)
        assert any(note.startswith("chip by the column hardware") for note in notes) == bool(chip)

    def test_the_chip_of_the_words_is_simulated(self) -> None:
        case = case_of(row(hardware="H100 96GB HBM2e (1.2 TB/s), 400 W limit", n_gpus=16))
        chip, usual = (
            make_plan(case.workload, machines.setup(2).known).chip
            for machines in (case.machines, machines_of(row(hardware="H100", n_gpus=16), []))
        )
        assert chip.memory_bytes == 96 * 10**9
        assert chip.memory_Bps / usual.memory_Bps == pytest.approx(1200 / 3350)
        assert chip.sustained < usual.sustained  # its clock under the power limit

    def test_words_that_are_not_used_are_said(self) -> None:
        notes: list[str] = []
        machines_of(row(hardware="H100 96GB HBM2e (2.4 TB/s), lower power"), notes)
        assert "hardware: HBM2e, lower, power not used" in notes
        machines_of(row(hardware="H100 turbo edition"), notes)
        assert notes[-1] == "hardware: turbo, edition not used"
        for words in ("A100 80GB (DGX A100)", "V100 32GB (DGX-1)", "DGX-H100 (Eos)", "B200 SXM"):
            notes = []
            machines_of(row(hardware=words), notes)
            assert notes == []

    def test_a_chip_of_another_form_is_refused(self) -> None:
        with pytest.raises(InputError, match="dgx-h100 has h100-sxm5, no h100-pcie"):
            case_of(row(hardware="H100 PCIe"))

    def test_a_memory_that_no_such_chip_has_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"has 80 GiB, not 64 GB; .* its memory rate"):
            case_of(row(hardware="H100 64GB"))

    def test_an_h100_with_hbm2e_is_assumed_as_its_users_publish_it(self) -> None:
        notes: list[str] = []
        found = machines_of(row(hardware="H100 94-96GB HBM2e, lower power", n_gpus=16), notes)
        chip = {"base": "h100-sxm5", "memory_rate": "2400 GB/s", "power": 500.0, "memory": "96GB"}
        assert dict(found.chip) == chip
        assert (
            "assumed, as TorchTitan's H100 with 96 GB of HBM2e: 2.4 TB/s, limit of 500 W" in notes
        )
        assert not any("not used" in note for note in notes)
        known: list[str] = []
        given = dict(machines_of(row(hardware="H100 96GB HBM2e (2.0 TB/s), 450 W"), known).chip)
        assert (given["memory_rate"], given["power"]) == ("2000 GB/s", 450.0)
        assert not any(note.startswith("assumed") for note in known)
        with pytest.raises(InputError, match="its memory rate"):
            machines_of(row(hardware="H100 96GB HBM3"), [])

    @pytest.mark.parametrize(
        ("gpus", "nodes", "each"), [(8, 1, 8), (64, 1, 64), (72, 1, 72), (128, 2, 64), (256, 4, 64)]
    )
    def test_racks_have_as_many_gpus_as_all_have_alike(
        self, gpus: int, nodes: int, each: int
    ) -> None:
        found = machines_of(row(hardware="DGX-GB200", n_gpus=gpus), [])
        assert (found.topology, found.nodes, found.each) == ("gb200-nvl72", nodes, each)
        assert found.place_gpus(gpus)[0] == nodes
        ranks = found.place_gpus(gpus)[1]
        if gpus == 72:
            assert ranks is None
        else:
            assert ranks == [72 * rack + gpu for rack in range(nodes) for gpu in range(each)]

    def test_part_of_a_rack_is_predicted(self) -> None:
        found = predict_row(row(hardware="DGX-GB200", n_gpus=16))
        assert isinstance(found, StepPoint), found


class TestRates:
    """TFLOP/s per GPU give a time, by what each source counts."""

    def test_megatron_of_2021_counts_recomputation_and_whole_attention(self) -> None:
        own = row(framework="Megatron-LM 2021", step_s=0.0, tflops_per_gpu=100.0)
        flops, how = counted_flops(own, case_of(own).workload, 1.0)
        b, s, layers, h, v = 8, 256, own.layers, own.hidden, own.vocab
        whole = 96 * b * s * layers * h**2
        assert flops == pytest.approx(whole * (1 + s / (6 * h) + v / (16 * layers * h)))
        assert "recomputation" in how

    def test_megatron_core_counts_three_quarters_of_it(self) -> None:
        """Forward and twice as much backward, where full recomputation adds a forward pass of all but the head."""
        own = row(framework="Megatron-LM 2021", step_s=0.0, tflops_per_gpu=1.0)
        newer = replace(own, framework="Megatron-Core r0.8.0")
        both = [counted_flops(item, case_of(item).workload, 1.0)[0] for item in (own, newer)]
        head = 6 * 8 * 256 * own.hidden * own.vocab
        assert both[1] - head == pytest.approx(0.75 * (both[0] - head))

    def test_others_count_what_is_useful(self) -> None:
        own = row(framework="Megatron-Bridge", step_s=0.0, tflops_per_gpu=1.0)
        assert counted_flops(own, case_of(own).workload, 7.0)[0] == 7.0

    def test_a_row_with_its_rate_alone_is_scored(self) -> None:
        timed = predict_row(row(framework="NeMo container 25.04"))
        assert isinstance(timed, StepPoint)
        rated = predict_row(row(framework="NeMo container 25.04", step_s=0.0, tflops_per_gpu=50.0))
        assert isinstance(rated, StepPoint)
        assert rated.predicted_s == timed.predicted_s
        assert any(note.startswith("measured: from TFLOP/s per GPU") for note in rated.notes)

    def test_how_others_count_is_not_guessed(self) -> None:
        found = predict_row(row(framework="Colossal-AI", step_s=0.0, tflops_per_gpu=50.0))
        assert isinstance(found, Unpredicted)
        assert "Colossal-AI of GPT: unknown count of operations" in found.reason


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("fp8", "fp8"),
        ("fp8 (FP8 (other scaling granularity))", "fp8"),
        ("fp8 (MXFP8)", "mxfp8"),
        ("fp8 (FP8-MX)", "mxfp8"),
        ("fp8 (FP8-CS)", "fp8-current"),
        ("fp8 (current scaling)", "fp8-current"),
        ("fp8 (tensorwise)", "fp8-current"),
    ],
)
def test_scales_of_8_bits_are_those_of_the_row(words: str, precision: str) -> None:
    found = case_of(row(precision=words))
    assert found.workload.precision == precision
    told = [note for note in found.notes if note.startswith("scales of 8-bit tensors")]
    assert bool(told) is ("other" in words)
