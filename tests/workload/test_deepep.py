"""DeepEP's exchanges: copies by counting all choices, bytes on wires, who waits, and its pace by hand."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest

import clusim
from clusim.errors import ClusimError
from clusim.hardware import DEEPEP
from clusim.training import TrainingResult, train
from clusim.workload.deepep import Routed
from clusim.workload.layers import Comm, Layer
from clusim.workload.parallel.plan import make_plan
from support.workloads import ideal, tiny, written

TOKENS, HIDDEN, EXPERTS, RANKS, TOP = 128, 256, 8, 4, 2
MODEL = (
    f"{{base: mixtral-8x7b, layers: 1, hidden: {HIDDEN}, heads: 8, kv_heads: 8, head_size: 32,"
    " expert_size: 64, vocab: 1024}"
)
TEXT = f"parallel: {{expert: {RANKS}}}\ndata: {{kind: naive}}\noptimizer: sgd\nexperts: "


@pytest.mark.parametrize(("experts", "ranks", "top"), [(8, 4, 2), (8, 8, 3), (6, 2, 4), (4, 1, 2)])
def test_copies_are_those_of_all_choices(experts: int, ranks: int, top: int) -> None:
    """Every choice of k experts alike: a token goes to as many ranks as have one of them."""
    each = experts // ranks
    choices = [len({e // each for e in choice}) for choice in combinations(range(experts), top)]
    routed = Routed(10, 1, ranks, experts, top)
    assert routed.copies == 10 * Fraction(sum(choices), len(choices))


def step(experts: str) -> TrainingResult:
    work = tiny(TEXT + experts, model=MODEL, batch=f"{{global: {RANKS}, micro: 1}}")
    return train(work, ideal(RANKS), steps=1, granularity=65536, fold="none")


def test_wires_carry_each_token_once_to_each_rank() -> None:
    """Of 28 pairs of eight experts 4 are on one rank, 24 on two: 13/7 copies, a quarter of them to oneself."""
    plain, once = step("{exchange: alltoall}"), step("{exchange: deepep}")
    volume = {
        name: found.to_json()["volume_bytes_per_gpu"]["expert"]
        for name, found in (("plain", plain), ("once", once))
    }
    token = 2 * HIDDEN
    assert volume["plain"] == 4 * 3 / 4 * TOKENS * TOP * token
    assert volume["once"] == pytest.approx(4 * 3 / 4 * TOKENS * 13 / 7 * token, rel=1e-3)
    wires, own = once.result.wires, 0.0
    for index, name in enumerate(wires.names):
        own += float(wires.counters["payload"][index]) * name.startswith("gpu") / RANKS
    assert own == pytest.approx(sum(once.to_json()["volume_bytes_per_gpu"].values()), rel=2e-3)


def block(experts: str) -> Layer:
    work = tiny(TEXT + experts, model=MODEL, batch="{global: 8, micro: 1}")
    return make_plan(work, clusim.load("dgx-a100")).stages[0][0][1]


def test_eight_bits_have_a_scale_for_128_elements() -> None:
    """Forwards what is dispatched, backwards the gradient of what was combined; sums go in 16 bits."""
    layer = block("{exchange: deepep, dispatch: fp8}")
    sizes = {
        step.name: step.bytes
        for step in (*layer.forward, *layer.backward)
        if isinstance(step, Comm) and step.dim == "expert"
    }
    routed = TOKENS * 13 / 7
    small, large = routed * (HIDDEN + 2 * 4), routed * 2 * HIDDEN
    expected = {"dispatch": small, "combine": large, "combine gradient": small, "dispatch gradient": large}  # fmt: skip
    assert sizes == {name: pytest.approx(size, abs=64) for name, size in expected.items()}


FIGURES = {"dispatch": (25.6e-6, 419e-9, 23.5e9), "combine": (37.5e-6, 780e-9, 29.1e9)}


@pytest.mark.parametrize("sms", [4, 20])
def test_its_thread_blocks_set_the_pace(sms: int) -> None:
    """On wires that cost nothing the next kernel starts when the thread blocks are done, as the figures say."""
    text = f"{TEXT}{{exchange: deepep, sms: {sms}}}"
    work = tiny(text, model=MODEL, batch=f"{{global: {RANKS}, micro: 1}}")
    plan, _, schedule = written(work, ideal(RANKS))
    found = clusim.simulate(plan.fabric, schedule)
    start, end = found.tasks.start_ps.tolist(), found.tasks.end_ps.tolist()
    size = round(TOKENS * 13 / 7) * 2 * HIDDEN
    kinds = ["dispatch", "combine", "dispatch", "combine"]
    for rank in range(RANKS):
        own = [i for i, task in enumerate(schedule.tasks) if task.rank == rank]
        paces = [i for i in own if schedule.tasks[i].kind == "delay"]
        for pace, kind in zip(paces, kinds, strict=True):
            fixed, token, rate = FIGURES[kind]
            took = fixed + (TOKENS * token + size / rate) / sms
            assert end[pace] - start[pace] == pytest.approx(took * 1e12, rel=2e-3)
            kernel = next(i for i in own if i > pace and schedule.tasks[i].kind == "kernel")
            assert start[kernel] == end[pace]


def test_its_figures_are_calibrated_on_one_chip_only() -> None:
    assert {figure.mark for figure in DEEPEP.values()} == {"calibrated"}
    assert {figure.rows for figure in DEEPEP.values()} == {("deepep-h100",)}


@pytest.mark.parametrize(
    ("nodes", "text", "message"),
    [
        (1, "{exchange: deepep, skew: 1}", "even load"),
        (2, "{exchange: deepep}", "only inside machines"),
    ],
)
def test_what_is_not_modelled_is_told(nodes: int, text: str, message: str) -> None:
    model = MODEL.replace("layers: 1", "layers: 1, experts: 16")
    work = tiny(
        TEXT.replace("4", "16" if nodes > 1 else "8") + text,
        model=model,
        batch="{global: 16, micro: 1}",
    )
    with pytest.raises(ClusimError, match=message):
        make_plan(work, clusim.load("dgx-a100", nodes=nodes))
