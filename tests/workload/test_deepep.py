"""DeepEP's exchanges: copies by counting all choices, bytes on wires, who waits, and its pace by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.collectives import ScheduleBuilder
from clusim.hardware import DEEPEP
from clusim.results.result import Result
from clusim.training import TrainingResult, train
from clusim.workload import Emitter
from clusim.workload.deepep import Routed
from clusim.workload.layers import Comm, Layer
from clusim.workload.parallel.plan import ParallelPlan, make_plan
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
    assert {figure.rows for figure in DEEPEP.values()} == {
        ("deepep-h100",),
        ("deepep-low-latency-h100",),
    }


@pytest.mark.parametrize(("machines", "limit"), [(2, 0), (4, 0), (4, 1), (4, 2), (4, 3)])
def test_machines_are_met_as_all_choices_say(machines: int, limit: int) -> None:
    """Every choice of `limit` machines alike, and then of k experts among theirs: ranks and machines by counting."""
    experts, ranks, top = 16, 8, 3
    met: list[tuple[int, int]] = []
    for chosen in combinations(range(machines), limit or machines):
        own = [e for e in range(experts) if e * machines // experts in chosen]
        for choice in combinations(own, top):
            places = (
                {e * ranks // experts for e in choice},
                {e * machines // experts for e in choice},
            )
            met.append((len(places[0]), len(places[1])))
    routed = Routed(10, 1, ranks, experts, top, machines, limit)
    assert routed.copies == 10 * Fraction(sum(a for a, _ in met), len(met))
    assert routed.visits == 10 * Fraction(sum(b for _, b in met), len(met))


H800 = "parallel: {{expert: {0}}}\ndata: {{kind: naive}}\nexperts: {{exchange: deepep, dispatch: fp8, sms: 24, {1}}}"


def deepseek(ranks: int, tokens: int, experts: str) -> tuple[ParallelPlan, dict[str, Comm]]:
    """Return the plan of a layer of DeepSeek-V3 on so many H800, and its exchanges by name."""
    machine = clusim.load("hgx-h800", nodes=ranks // 8) if ranks > 8 else clusim.load("hgx-h800")
    model = "{base: deepseek-v3, layers: 1, dense_layers: 0, shared_experts: 0, vocab: 1024}"
    work = tiny(
        H800.format(ranks, experts),
        model=model,
        batch=f"{{global: {ranks}, micro: 1}}",
        sequence=str(tokens),
    )
    plan = make_plan(work, machine)
    steps = [step for layer in plan.stages[0][0] for step in layer.forward]
    return plan, {s.name: s for s in steps if isinstance(s, Comm) and s.dim == "expert"}


def exchanged(plan: ParallelPlan, step: Comm, granularity: int) -> tuple[float, Emitter, Result]:
    """Return what an exchange takes by itself [us], what wrote it, and what came out."""
    builder = ScheduleBuilder(plan.fabric)
    emitter = Emitter(plan, builder)
    emitter.run(0, [step], "exchange")
    found = clusim.simulate(plan.fabric, builder.build(), granularity=granularity)
    return found.time_ps / 1e6, emitter, found


def test_tokens_go_once_to_each_machine_and_once_to_each_rank_there() -> None:
    """16 ranks on two machines: over NICs half of the visits, inside seven eighths of the copies."""
    plan, steps = deepseek(16, 256, "machines: 4")
    own = plan.shard.deepep
    assert own is not None
    routed = own.route_tokens(256, 7168, 16, (256, 8))
    token = 7168 + 7168 // 128 * 4
    _, emitter, found = exchanged(plan, steps["dispatch"], 65536)
    over = float(routed.visits) * token / 2
    inside = float(routed.copies) * token * 7 / 8
    assert emitter.traffic["expert"].sent_bytes / 16 == pytest.approx(over + inside, rel=1e-3)
    names, payload = found.wires.names, found.wires.counters["payload"]
    out = sum(float(payload[i]) for i, name in enumerate(names) if is_uplink(name))
    assert out / 16 == pytest.approx(over, rel=0.02)


def is_uplink(name: str) -> bool:
    """Return whether a wire goes from a machine's adapter into the network."""
    here, there = name.rpartition(".")[0].split("->")
    return here.startswith("n") and "/" in here and "/" not in there


def test_for_low_latency_tokens_go_to_every_expert() -> None:
    plan, steps = deepseek(16, 128, "low_latency: true")
    size = 128 * 8 * (7168 + 224 + 16)
    assert steps["dispatch"].across == pytest.approx(size, rel=1e-3)
    assert steps["dispatch"].bytes == pytest.approx(size / 2, rel=1e-3)
    assert steps["combine"].across == pytest.approx(128 * 8 * 2 * 7168, rel=1e-3)
    alone = deepseek(8, 128, "low_latency: true")[1]["dispatch"]
    assert (alone.bytes, alone.across) == (pytest.approx(size, rel=1e-3), 0)
    # 8.7 us and 256 x 15.8 ns, then seven eighths over 200 GB/s of NVLink, of which it gets 53.6%.
    assert alone.least_ps / 1e6 == pytest.approx(
        8.7 + 256 * 0.0158 + size * 7 / 8 / (0.536 * 200e3), rel=1e-3
    )
    few = Routed(1024, 2048, 8, 8, 2)
    quick = replace(plan.shard.deepep, machines=1, inside_Bps=1e15)  # type: ignore[type-var]
    # Eight experts have eight blocks, which take 2.44 us for each of 128 tokens.
    assert quick.least_ps("dispatch", few, 1) / 1e6 == pytest.approx(8.7 + 8 * 0.0158 + 128 * 2.44)


PUBLISHED = [
    # DeepEP's README (deepseek-ai/DeepEP, MIT), H800 with a 400 Gb/s adapter each: GB/s of the normal kernels, with
    # 4,096 tokens; us for low latency, with 128. None of them calibrated a figure; the channels of kernels for low
    # latency were chosen with their rows in view.
    *[("dispatch", 16, False, 43.0), ("combine", 16, False, 43.0)],
    *[("dispatch", 32, False, 58.0), ("combine", 32, False, 57.0)],
    *[("dispatch", 8, True, 77.0), ("combine", 8, True, 114.0)],
    *[("dispatch", 16, True, 118.0), ("combine", 16, True, 195.0)],
    *[("dispatch", 32, True, 155.0), ("combine", 32, True, 273.0)],
]


def test_published_exchanges_between_machines() -> None:
    """Ten rows: 13% off on average, none by more than a third."""
    errors = []
    for way, ranks, quick, published in PUBLISHED:
        tokens = 128 if quick else 4096
        plan, steps = deepseek(ranks, tokens, f"machines: 4, low_latency: {str(quick).lower()}")
        took, _, _ = exchanged(plan, steps[way], 4096 if quick else 65536)
        if not quick:
            assert plan.shard.deepep is not None
            routed = plan.shard.deepep.route_tokens(tokens, 7168, ranks, (256, 8))
            token = 7168 + 224 if way == "dispatch" else 2 * 7168
            published = float(routed.visits) * token / published / 1e3
        errors.append(took / published - 1)
    assert sum(map(abs, errors)) / len(errors) < 0.13
    assert max(map(abs, errors)) < 1 / 3


@pytest.mark.parametrize(
    ("ranks", "text", "message"),
    [
        ("", "{exchange: deepep, skew: 1}", "even load"),
        ("", "{low_latency: true}", "needs exchange deepep"),
        ("", "{machines: 2}", "needs exchange deepep"),
        ("", "{sms: 24}", "experts.sms: needs exchange deepep"),
        (
            "ranks: [0, 1, 2, 3, 4, 5, 6, 8]",
            "{exchange: deepep}",
            "as many on each of its nodes",
        ),
    ],
)
def test_what_is_not_modelled_is_told(ranks: str, text: str, message: str) -> None:
    more = f"data: 8, {ranks}" if ranks else "data: 16"
    work = tiny(
        TEXT.replace("expert: 4", f"expert: 8, {more}") + text,
        model=MODEL,
        batch="{global: 16, micro: 1}",
    )
    with pytest.raises(ClusimError, match=message):
        make_plan(work, clusim.load("dgx-a100", nodes=2))


def test_experts_of_a_token_must_fit_on_its_machines() -> None:
    model = MODEL.replace("layers: 1", "layers: 1, experts: 16, top_k: 12")
    text = "parallel: {expert: 16}\nexperts: {exchange: deepep, machines: 1}"
    work = tiny(text, model=model, batch="{global: 16, micro: 1}")
    with pytest.raises(
        ClusimError, match=r"experts.machines: 1 nodes have 8 experts; a token needs 12"
    ):
        make_plan(work, clusim.load("dgx-a100", nodes=2))


def test_models_without_experts_have_none_to_exchange() -> None:
    with pytest.raises(ClusimError, match=r"deepep: gpt3-1.3b has no experts"):
        make_plan(tiny("experts: {exchange: deepep}"), ideal(8))
