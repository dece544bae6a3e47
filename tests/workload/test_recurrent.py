"""LSTM networks, derived by hand: parameters, operations, waves over layers and time, what is kept and handed on."""

from __future__ import annotations

from itertools import pairwise

import pytest

from clusim.base.errors import ClusimError
from clusim.training import TrainingResult, train
from clusim.workload.kernels import Kernel
from clusim.workload.layers import Shard
from clusim.workload.models import Recurrent, find_model
from support.workloads import ancestors, ideal, tiny, written

SLOW = "optimizer: sgd\nhardware: {gemm_fraction: 0.000001}\n"


def wave(stages: int, pieces: int, *, sequences: int = 1) -> TrainingResult:
    """Return a step of like layers of 24 steps in so many pieces; embedding and head are next to nothing."""
    work = tiny(
        f"{SLOW}parallel: {{pipeline: {stages}}}\n"
        f"pipeline: {{schedule: wavefront, pieces: {pieces}}}",
        model=f"{{base: lstm, layers: {4 // stages * stages}, hidden: 64, vocab: 1}}",
        sequence="24",
        batch=f"{{global: {4 * sequences}, micro: 4}}",
    )
    return train(work, ideal(stages), steps=1, granularity=65536, fold="none")


def test_the_large_model_of_the_penn_treebank_has_66_million_parameters() -> None:
    """Zaremba et al. 2014: two layers of 1500 units, 10,000 words, 66 million parameters."""
    model = find_model("lstm")
    assert model.parameters == 2 * (8 * 1500**2 + 8 * 1500) + 2 * 10_000 * 1500 + 10_000
    assert round(model.parameters / 1e6) == 66


@pytest.mark.parametrize("steps", [1, 5])
def test_a_layer_multiplies_inputs_at_once_and_states_step_by_step(steps: int) -> None:
    """Two products of h x 4h per token forwards, as many for inputs and for weights."""
    model, batch = Recurrent("lstm", 1, 64, 100), 3
    layer = model.build(Shard(batch=batch, sequence=steps))[1]
    each = 2 * 2 * batch * steps * 64 * 256
    assert [layer.flops(part) for part in ("forward", "input", "weight")] == [each] * 3  # type: ignore[arg-type]
    products = [k.gemm.m for k in layer.kernels("forward") if k.gemm is not None]
    assert products == [batch * steps] + [batch] * steps
    # Weight gradients are of all steps, and behind the last of them.
    weights = [k.gemm.k for k in layer.kernels("weight") if k.gemm is not None]
    assert weights == [batch * steps] * 2
    order = [step.part for step in layer.backward if isinstance(step, Kernel)]
    assert "weight" not in order[: 2 * steps]


@pytest.mark.parametrize(
    ("stages", "pieces", "sequences"), [(2, 1, 1), (2, 4, 1), (2, 4, 2), (4, 6, 1)]
)
def test_a_wave_takes_n_plus_k_minus_1_pieces_of_its_slowest_layer(
    stages: int, pieces: int, sequences: int
) -> None:
    """All stages once, and the slowest, which also has the head, for every further piece: forwards and back.

    Of N equal stages it is idle for (N-1)/(N+K-1).
    """
    found = wave(stages, pieces, sequences=sequences)
    each = [row.compute_ps / pieces / sequences for row in found.ranks]
    assert max(each) == each[-1]
    expected = sequences * (sum(each) + (pieces - 1) * each[-1])
    assert found.step_ps[-1] == pytest.approx(expected, rel=1e-4)


def test_pieces_of_a_sequence_follow_each_other_in_time() -> None:
    """(layer, time): a piece needs the piece before it on its own stage, and its own one of the stage before."""
    work = tiny(
        "parallel: {pipeline: 2}\npipeline: {schedule: wavefront, pieces: 3}",
        model="{base: lstm, layers: 2, hidden: 64, vocab: 8}",
        sequence="6",
        batch="{global: 2, micro: 1}",
    )
    plan, _, schedule = written(work, ideal(2))
    assert plan.samples == 2 * 6

    def place(name: str, rank: int) -> int:
        return next(
            i
            for i, task in enumerate(schedule.tasks)
            if task.kind == "kernel" and task.rank == rank and task.name == name
        )

    for first in (0, 3):
        for piece in (0, 1, 2):
            name = f"F{first + piece}"
            assert place(name, 0) in ancestors(schedule, [place(name, 1)])
            back = f"B{first + piece}"
            assert place(back, 1) in ancestors(schedule, [place(back, 0)])
        for rank in (0, 1):
            order = [*(f"F{first + i}" for i in (0, 1, 2)), *(f"B{first + i}" for i in (2, 1, 0))]
            places = [place(name, rank) for name in order]
            for one, two in pairwise(places):
                assert one in ancestors(schedule, [two])
    # Two tokens of a piece each way, twice three pieces.
    assert sum(call.bytes for call in schedule.calls) == 2 * 6 * (2 * 64 * 2)


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_a_wave_keeps_all_pieces_of_a_sequence(pieces: int) -> None:
    """However it is cut: inputs, states and four gates of every token."""
    found = wave(2, pieces)
    tokens = 4 * 24
    for memory, layers in zip(found.memory, (2, 2), strict=True):
        cells = layers * tokens * 2 * (2 * 64 + 4 * 64)
        head = tokens * (2 * 64 + 4) if memory is found.memory[1] else 0
        assert memory.activations == cells + head


@pytest.mark.parametrize(
    ("text", "model", "message"),
    [
        ("pipeline: {schedule: wavefront}", "gpt2", "gpt2 is not recurrent"),
        ("pipeline: {pieces: 2}", "lstm", "pieces need schedule wavefront"),
        ("pipeline: {schedule: wavefront, pieces: 3}", "lstm", "cannot be cut into 3 pieces"),
        ("parallel: {tensor: 2}", "lstm", "only data and pipeline parallelism"),
    ],
)
def test_what_is_no_wave_is_told(text: str, model: str, message: str) -> None:
    with pytest.raises(ClusimError, match=message):
        written(tiny(text, model=model, batch="{global: 2, micro: 1}"), ideal(2))
