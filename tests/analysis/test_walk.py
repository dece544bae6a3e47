"""The critical path: on a machine worked out by hand, and against counting in plain Python on random ones."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from analysis.conftest import Ran, run_image, run_that_ends
from clusim.analysis.slices import Slices
from clusim.analysis.walk import StepKind
from clusim.engine.abi import NONE, Cause, Op
from clusim.engine.image import OP_FLAGS
from clusim.engine.reference.instances import slices as reference_slices
from clusim.engine.reference.model import Model
from support.covering import THOROUGH
from support.images import ImageBuilder, prim
from support.random_images import random_image

SEEDS = range(200 if THOROUGH else 20)


def two_ranks() -> ImageBuilder:
    """Return a that sends 3 slices to b over 2 slots; a slice takes 1000 ps and is visible after 2010 ps."""
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    index = builder.conn(a, b, slots=2, tail_ps=50, head_ps=70)
    builder.cost(fixed_ps=300)
    builder.run_alone(a, prim("send", send=0, repeat=3), conns=(index,))
    builder.run_alone(b, prim("recv", recv=0, repeat=3), conns=(index,))
    return builder


def test_the_path_of_a_small_machine_is_as_worked_out_by_hand() -> None:
    ran = run_image(two_ranks().build())
    found = [(s.kind, s.start_ps, s.end_ps, s.instance, s.seq) for s in ran.walk.steps()]
    # a sends at 300..1300, which b sees at 1300 + 1010 + 50 = 2360 and takes until 2660; room is back at 2730. The
    # third slice is sent until 4030, seen at 5090 and taken until 5390.
    assert found == [
        (StepKind.FIXED, 5090, 5390, 1, 2),
        (StepKind.TAIL, 5040, 5090, 1, 2),
        (StepKind.FLIGHT, 4030, 5040, 1, 2),
        (StepKind.TRANSFER, 3030, 4030, 0, 2),
        (StepKind.FIXED, 2730, 3030, 0, 2),
        (StepKind.HEAD, 2660, 2730, 0, 2),
        (StepKind.FIXED, 2360, 2660, 1, 0),
        (StepKind.TAIL, 2310, 2360, 1, 0),
        (StepKind.FLIGHT, 1300, 2310, 1, 0),
        (StepKind.TRANSFER, 300, 1300, 0, 0),
        (StepKind.FIXED, 0, 300, 0, 0),
    ]


def test_the_path_goes_through_tasks() -> None:
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint()
    builder.cost(fixed_ps=70)
    wait = builder.task("delay", delay_ps=500)
    kernel = builder.task("kernel", (wait,), compute_ps=1000, endpoint=a.ep, sms=16)
    task = builder.task("program", (kernel,))
    builder.instance(task, a, builder.template(prim("copy")), start_ps=40)
    builder.task("delay", delay_ps=100)
    steps = list(run_image(builder.build()).walk.steps())
    assert [(s.kind, s.length_ps) for s in steps] == [
        (StepKind.FIXED, 70), (StepKind.LAUNCH, 40), (StepKind.KERNEL, 1001), (StepKind.DELAY, 500),
    ]  # fmt: skip


def test_waiting_for_a_cta_slot_is_seen() -> None:
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint(cta_slots=1)
    builder.cost(fixed_ps=100)
    template, task = builder.template(prim("copy")), builder.task()
    for _ in range(2):
        builder.instance(task, a, template)
    steps = list(run_image(builder.build()).walk.steps())
    assert [(s.kind, s.length_ps) for s in steps] == [(StepKind.FIXED, 100), (StepKind.SLOT, 100)]


def programs(image):
    """Return for each instance the (primitive, bytes, slots) of its slices, by the reference's own iteration."""
    model = Model(image)
    return [
        [(spec.template.prim_lo + s.number, s.bytes, s.slots) for s in reference_slices(spec)]
        for spec in model.instances
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_slices_are_those_of_the_reference(seed: int) -> None:
    image = random_image(random.Random(seed))
    arrays = {
        name: getattr(image, name)
        for name in ("instances", "templates", "prims", "inst_conns", "conns")
    }
    found = Slices(arrays, np.zeros(len(image.tasks), np.int64))
    for instance, expected in enumerate(programs(image)):
        table = found.table(instance)
        columns = (table.prim.tolist(), table.bytes.tolist(), table.slots.tolist())
        assert list(zip(*columns, strict=True)) == expected


def openers(ran: Ran) -> dict[tuple[int, int], tuple[int, int]]:
    """Return who opened whose gate, by replaying all slots of all connections in the order of time."""
    image, slices = ran.image, programs(ran.image)
    flags = OP_FLAGS[image.prims["opcode"]]
    sent: dict[int, list[tuple[int, int]]] = defaultdict(list)
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    uses = []
    for row in ran.records:
        instance, seq = int(row["instance"]), int(row["seq"])
        number = slices[instance][seq][0]
        p, spec = image.prims[number], image.instances[instance]
        conns = {}
        for side, flag in (("recv", Op.RECV), ("send", Op.SEND)):
            if flags[number] & flag:
                conns[side] = int(image.inst_conns[int(spec["conn_off"]) + int(p[side])])
        uses.append(
            (int(row["gate_ps"]), int(row["time_ps"]), instance, seq, conns, int(row["cause"]))
        )
    for _, _, instance, seq, conns, _ in sorted(uses, key=lambda use: (use[0], use[2], use[3])):
        if "send" in conns:
            sent[conns["send"]] += [(instance, seq)] * slices[instance][seq][2]
    for _, _, instance, seq, conns, _ in sorted(uses, key=lambda use: (use[1], use[2], use[3])):
        if "recv" in conns:
            taken[conns["recv"]] += [(instance, seq)] * slices[instance][seq][2]
    found = {}
    for _, _, instance, seq, conns, cause in uses:
        width = slices[instance][seq][2]
        if cause == Cause.RECV:
            mine = taken[conns["recv"]].index((instance, seq)) + width
            found[instance, seq] = sent[conns["recv"]][mine - 1]
        elif cause == Cause.SEND:
            mine = sent[conns["send"]].index((instance, seq)) + width
            found[instance, seq] = taken[conns["send"]][
                mine - int(image.conns["slots"][conns["send"]]) - 1
            ]
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_add_up_and_gates_are_opened_by_whom_counting_says(seed: int) -> None:
    ran = run_that_ends(seed)
    end_ps = int(ran.end_ps.max())
    steps = list(ran.walk.steps())
    for step in steps:
        assert step.end_ps == end_ps, step
        assert step.length_ps > 0
        end_ps = step.start_ps
    assert end_ps == 0
    slices = ran.walk.slices
    causes = {(int(r["instance"]), int(r["seq"])): r["cause"] for r in ran.records}
    for key, who in openers(ran).items():
        find = slices.receiver_of if causes[key] == Cause.SEND else slices.sender_of
        assert find(*key) == who
    assert NONE not in [step.wire for step in steps]


@pytest.mark.parametrize("block_rows", [1, 2, 5, 1 << 18])
def test_the_size_of_blocks_changes_nothing(block_rows: int) -> None:
    image = random_image(random.Random(3))
    whole = list(run_image(image).walk.steps())
    assert list(run_image(image, block_rows=block_rows).walk.steps()) == whole


def test_every_trace_has_a_path_from_its_end_to_its_start(traces: dict[str, Path]) -> None:
    from clusim.analysis.path import critical_path
    from clusim.results.trace.reader import read_result

    for name, path in traces.items():
        table = critical_path(path)
        assert table.facts["time_ps"] == read_result(path).time_ps, name
        assert table.columns["start_ps"][0] == 0
        assert table.columns["start_ps"][1:] == table.columns["end_ps"][:-1]
