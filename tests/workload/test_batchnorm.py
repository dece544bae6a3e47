"""Batch normalisation over groups of ranks: bytes on wires, who waits for whom, and the same memory traffic."""

from __future__ import annotations

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.workload.kernels import Kernel
from clusim.workload.layers import Comm, Shard
from clusim.workload.models import ResNet
from clusim.workload.parallel.plan import make_plan
from support.workloads import ideal, tiny

SMALL = "{base: resnet-50, blocks: [1, 1, 1, 1], image: 32}"
CHANNELS = [64] + [c for w in (64, 128, 256, 512) for c in (w, w, 4 * w, 4 * w)]
"""Of the first convolution, and of three and a shortcut in each of four blocks."""


@pytest.mark.parametrize(("ranks", "group"), [(2, 2), (4, 2), (4, 4)])
def test_wires_carry_statistics_of_every_channel(ranks: int, group: int) -> None:
    """Forwards mean, deviation and a count, in single precision, of each rank to each other; backwards two sums."""
    text = f"data: {{batchnorm: {group}}}\noptimizer: sgd"
    found = clusim.train(
        tiny(text, model=SMALL, batch=f"{{global: {ranks}, micro: 1}}"),
        ideal(ranks), steps=1, granularity=65536, fold="none",
    )  # fmt: skip
    # A rank gives 8 C + 4 bytes, 8 C + 16 as collectives round it.
    gathered = sum((group - 1) * (8 * c + 16) for c in CHANNELS)
    summed = sum(2 * (group - 1) / group * 8 * c for c in CHANNELS)
    assert found.to_json()["volume_bytes_per_gpu"]["norm"] == pytest.approx(gathered + summed)
    assert found.to_json()["collectives_per_step"]["norm"] == 2 * len(CHANNELS) * ranks // group


def test_alone_nothing_is_told_and_the_traffic_is_the_same() -> None:
    model = ResNet("small", (1, 1, 1, 1), 32)
    alone, together = (model.build(Shard(batch=2, norm=norm)) for norm in (1, 4))
    for one, two in zip(alone, together, strict=True):
        for part in ("forward", "input", "weight"):
            moved = [sum(k.bytes for k in block.kernels(part)) for block in (one, two)]  # type: ignore[arg-type]
            assert moved[0] == moved[1]
        assert not [step for step in (*one.forward, *one.backward) if isinstance(step, Comm)]
        told = [step for step in two.forward if isinstance(step, Comm)]
        assert len(told) == sum(t.name.endswith("norm") for t in two.tensors)


def test_normalising_waits_for_the_statistics_and_they_for_the_convolution() -> None:
    steps = ResNet("small", (1, 1, 1, 1), 32).build(Shard(batch=2, norm=4))[1].forward
    names = [step.name for step in steps[:4] if isinstance(step, Kernel | Comm)]
    assert names == ["conv1 forward", "conv1 norm statistics", "conv1 norm", "conv1 norm"]
    assert [isinstance(step, Comm) for step in steps[:4]] == [False, False, True, False]


@pytest.mark.parametrize(
    ("model", "group", "message"),
    [(SMALL, 3, "batchnorm 3: must divide"), ("gpt2", 2, "gpt2 normalises no batches")],
)
def test_wrong_groups_are_told(model: str, group: int, message: str) -> None:
    text = f"data: {{batchnorm: {group}}}"
    with pytest.raises(ClusimError, match=message) as found:
        make_plan(tiny(text, model=model), clusim.load("dgx-a100"))
    assert "data.batchnorm" in str(found.value)
