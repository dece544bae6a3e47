"""Every algorithm gives the defined result on every kind of fabric, in the order in which the machine completes it."""

from __future__ import annotations

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.collectives import build
from clusim.collectives.api import REGISTRY
from clusim.schedule.dtypes import element
from clusim.schedule.executor import Executor
from clusim.schedule.semantics import run_untimed
from support.collective_laws import fitting, machine
from support.covering import THOROUGH

FABRICS = [
    ("star:5", 1),
    ("fully-connected:8", 1),
    ("ring:6", 1),
    ("a100x4-mesh", 1),
    ("mi300x", 1),
    ("dgx-1v", 1),
    ("dgx-a100", 1),
    ("dgx-h100", 1),
    ("a100-pcie-x8", 1),
    ("dgx-a100", 2),
    ("dgx-h100", 2),
]
NEEDS = {
    "sharp": {("dgx-a100", 2), ("dgx-h100", 2)},
    "nvls": {("dgx-h100", 1)},
    "multimem": {("dgx-h100", 1)},
}
"""Where switches reduce: those of a machine, or those between machines."""


CELLS = [
    pytest.param(pair, fabric, id=f"{'/'.join(pair)} {fabric[1]}x{fabric[0]}")
    for row, pair in enumerate(REGISTRY)
    for column, fabric in enumerate(FABRICS)
    if (row + column) % 5 == 0 or THOROUGH or fabric in NEEDS.get(pair[1], ())
]
"""Every algorithm on a fifth of the fabrics, and on those that it is made for; its neighbours on the others."""


@pytest.mark.parametrize(("pair", "fabric"), CELLS)
def test_the_result_is_the_definition(pair: tuple[str, str], fabric: tuple[str, int]) -> None:
    """A ragged size: no whole number of blocks, channels or chunks. Channels as the fabric has them."""
    operation, algorithm = pair
    size = 0 if operation == "barrier" else 200_004
    ranks = (0, 1) if operation == "send" else None
    defined = operation == "send" or fitting(pair, machine(*fabric).num_ranks)
    far = algorithm == "copy-engines" and fabric[1] > 1
    if fabric not in NEEDS.get(algorithm, FABRICS) or not defined or far:
        with pytest.raises(InputError, match=algorithm):
            build(machine(*fabric), operation, algorithm, size, ranks=ranks)
        return
    schedule = build(machine(*fabric), operation, algorithm, size, ranks=ranks)
    result = clusim.simulate(machine(*fabric), schedule, verify=True, granularity=1024)
    assert result.verified, result.verify_note


SAME_BITS = [
    "ring",
    "tree",
    "oneshot",
    "twoshot",
    "oneshot-ll",
    "twoshot-ll",
    "oneshot-lamport",
    "oneshot-pull",
    "twoshot-pull",
    "ld-st",
    "butterfly",
    "driver",
]


@pytest.mark.parametrize("algorithm", SAME_BITS)
@pytest.mark.parametrize("ranks", [3, 6, 8])
def test_all_ranks_get_the_same_bits(algorithm: str, ranks: int) -> None:
    """Float16 sums of random numbers differ with the order; each element is added in one order for all ranks."""
    schedule = build(
        ranks, "allreduce", algorithm, 20_006, channels=5, dtype="float16", redop="sum"
    )
    executor = Executor(schedule, data="random", seed=7)
    run_untimed(executor, seed=3)
    results = {executor.output(0, rank).tobytes() for rank in range(ranks)}
    assert len(results) == 1


def test_orders_and_with_them_last_bits_depend_on_algorithm_and_channels() -> None:
    """What the documentation warns of; integers do not care."""
    for dtype, distinct in (("float16", True), ("int32", False)):
        results = set()
        for algorithm, channels in (("ring", 1), ("twoshot", 1), ("twoshot", 4), ("oneshot", 4)):
            size = 4000 * element(dtype).size_bytes
            schedule = build(8, "allreduce", algorithm, size, channels=channels, dtype=dtype)
            executor = Executor(schedule, data="random", seed=7)
            run_untimed(executor)
            results.add(executor.output(0, 0).tobytes())
        assert (len(results) > 1) == distinct
