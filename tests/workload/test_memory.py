from __future__ import annotations

from typing import Any

import pytest

from clusim.workload.kernels import PRECISIONS
from clusim.workload.layers import Activations, Layer, Tensor
from clusim.workload.memory import in_flight, megatron_activation_bytes, stage_memory
from clusim.workload.optimizers import find_optimizer

P = 1_000_000
LAYER = Layer("layer", "block", (Tensor("w", P),), activations=Activations(100, 60, 10))
ADAM = find_optimizer("adam", PRECISIONS["bf16"])


@pytest.mark.parametrize(
    ("zero", "expected"),
    [(0, 16 * P), (1, 4 * P + 12 * P / 8), (2, 2 * P + 14 * P / 8), (3, 16 * P / 8)],
)
def test_zero_cuts_states_as_its_paper_says(zero: int, expected: float) -> None:
    memory = stage_memory([[LAYER]], ADAM, zero=zero, data=8)
    assert memory.weights + memory.gradients + memory.optimizer == expected


def test_the_other_accounting_has_a_copy_of_the_gradients() -> None:
    wide = find_optimizer("adam", PRECISIONS["bf16"], 32)
    memory = stage_memory([[LAYER]], wide)
    assert memory.weights + memory.gradients + memory.optimizer == (2 + 2 + 16) * P


def test_experts_are_replicated_less() -> None:
    layer = Layer("moe", "moe", (Tensor("w", 800), Tensor("e", 800, True)))
    assert stage_memory([[layer]], ADAM, zero=3, data=8, expert_data=2).weights == 2 * (100 + 400)


@pytest.mark.parametrize(("recompute", "kept"), [("none", 100), ("selective", 60), ("full", 10)])
def test_activations_are_those_of_microbatches_under_way(recompute: Any, kept: int) -> None:
    memory = stage_memory([[LAYER, LAYER]], ADAM, recompute=recompute, held=3)
    assert memory.activations == 2 * 3 * kept
    chunked = stage_memory([[LAYER], [LAYER]], ADAM, recompute=recompute, held=3)
    assert chunked.activations == 3 * kept


@pytest.mark.parametrize(
    ("schedule", "stage", "held"),
    [
        ("naive", 0, 1),
        ("gpipe", 0, 16),
        ("gpipe", 3, 16),
        ("1f1b", 0, 4),
        ("1f1b", 3, 1),
        ("zero-bubble", 1, 3),
    ],
)
def test_microbatches_under_way(schedule: str, stage: int, held: int) -> None:
    assert in_flight(schedule, stage, 4, 16) == held


def test_interleaving_costs_the_published_memory() -> None:
    # Narayanan et al.: the first stage holds 1 + (p - 1) / (p v) times the activations of 1F1B.
    stages, chunks = 8, 3
    held = in_flight("interleaved", 0, stages, 64, chunks)
    assert held / chunks == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)), rel=1e-9)


@pytest.mark.parametrize(
    ("hidden", "heads", "shares"),
    [
        (6144, 64, (66.8, 49.4, 16.2, 7.6)),
        (12288, 96, (62.0, 56.5, 18.5, 8.7)),
        (20480, 128, (58.3, 62.0, 20.3, 9.4)),
        (25600, 160, (58.3, 62.0, 20.3, 9.4)),
    ],
)
def test_the_published_shares_of_activation_memory(
    hidden: int, heads: int, shares: tuple[float, ...]
) -> None:
    def kept(**how: Any) -> float:
        return megatron_activation_bytes(2048, 1, hidden, heads, 8, **how)

    ways: list[dict[str, Any]] = [
        {"sequence_parallel": True},
        {"recompute": "selective"},
        {"sequence_parallel": True, "recompute": "selective"},
        {"recompute": "full"},
    ]
    found = [100 * kept(**how) / kept() for how in ways]
    assert found == pytest.approx(shares, abs=0.13)


def test_what_is_missing_is_said_in_bytes() -> None:
    memory = stage_memory([[LAYER]], ADAM, capacity=10 * P)
    assert memory.missing == memory.total - 10 * P > 0
    assert memory.to_json()["fits"] is False
    assert stage_memory([[LAYER]], ADAM).missing == 0
