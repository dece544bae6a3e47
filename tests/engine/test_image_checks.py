"""The checks of an image: one table of ranges for both engines, and no way past the C engine's."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clusim.base.errors import InternalError, RangeExceeded, ScheduleError
from clusim.engine import ranges
from clusim.engine.abi import NONE, Stop
from clusim.engine.image import DTYPES, Image
from clusim.engine.reference import ReferenceSimulation
from clusim.engine.simulation import Simulation
from support.corpus import load
from support.images import ImageBuilder, prim
from support.mutations import mutated
from support.random_images import random_image

ROOT = Path(__file__).resolve().parents[2]
CRASHERS = sorted((Path(__file__).parent / "crashers").glob("*.npz"))
MUTATIONS = 600
MOST_EVENTS = 20_000


def _message(image: Image) -> str:
    """Return what the C engine has against an image; empty if nothing."""
    try:
        Simulation(image)
    except ScheduleError as error:
        return str(error).removeprefix("image: ")
    return ""


def test_the_engines_copy_of_the_ranges_is_up_to_date():
    script = ROOT / "csrc" / "bindings" / "write_ranges.py"
    spec = importlib.util.spec_from_file_location("write_ranges", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text(encoding="utf-8") == module.text(), f"run python {script}"


def test_every_field_of_every_table_has_a_range():
    tables = {name for name in ranges.TABLES if name != "op_flags"}
    assert (
        tables
        == set(DTYPES)
        == set(ranges.RANGES) - {"op_flags"}
        == set(ranges.ROWS) - {"op_flags"}
    )
    for name, dtype in DTYPES.items():
        assert list(ranges.RANGES[name]) == list(dtype.names or [""])
    for fields in ranges.RANGES.values():
        for legal in fields.values():
            assert legal.lo <= legal.hi
            assert legal.why


def test_every_field_is_refused_by_both_checks_at_its_edges_and_not_inside_them():
    """Where a legal value is refused, it is by a later check, which has other words."""
    image = random_image(random.Random(3))
    for name, fields in ranges.RANGES.items():
        if name == "op_flags" or not len(getattr(image, name)):
            continue
        for field, legal in fields.items():
            for value in (legal.lo - 1, legal.lo, legal.hi, legal.hi + 1):
                changed = _with(image, name, field, value)
                if changed is None:
                    continue
                wrong = ranges.first_illegal(changed.tables(), changed.nvc)
                said = _message(changed)
                assert said == wrong if wrong else "; must be" not in said
                outside = not legal.lo <= value <= legal.hi and not (legal.none and value == NONE)
                assert bool(wrong) >= outside


def _with(image: Image, name: str, field: str, value: int) -> Image | None:
    """Return the image with one number of the last row replaced; None if its type has no such number."""
    table = getattr(image, name).copy()
    column = table[field] if field else table
    limits = np.iinfo(column.dtype)
    if not limits.min <= value <= limits.max:
        return None
    column.reshape(-1)[-1:] = value
    if field:
        table[field][-1] = value
    return replace(image, **{name: table})


def test_both_checks_refuse_the_same_rows_of_damaged_images_with_the_same_words():
    counts = {"range": 0, "later": 0, "accepted": 0}
    for seed in range(MUTATIONS):
        rng = random.Random(seed)
        image = mutated(random_image(random.Random(seed % 40)), rng, legal=0.5)
        wrong = ranges.first_illegal(image.tables(), image.nvc)
        said = _message(image)
        if wrong:
            assert said == wrong, f"seed {seed}"
        counts["range" if wrong else "later" if said else "accepted"] += 1
        assert wrong or "; must be" not in said, f"seed {seed}: {said}"
    assert min(counts.values()) > MUTATIONS // 20, counts


def test_the_reference_refuses_what_is_out_of_range_with_the_words_of_the_c_engine():
    image = random_image(random.Random(3))
    changed = _with(image, "wires", "latency_ps", 0)
    said = []
    for engine in (ReferenceSimulation, Simulation):
        with pytest.raises(ScheduleError) as caught:
            engine(changed)
        said.append(str(caught.value))
    last = len(image.wires) - 1
    assert said == [f"image: wires[{last}].latency_ps: 0; must be 1 to {2**56 - 1}"] * 2


# What once crashed the engine or its checker, by the row that did it.


def _fabric() -> tuple[ImageBuilder, list]:
    """Return a switch with a reduction unit, three endpoints on it and a NIC."""
    b = ImageBuilder(seed=1)
    switch = b.switch(unit={"latency_ps": 5, "capacity_bytes": 1 << 20, "cost16": 10})
    nic = b.nic()
    ends = [b.endpoint() for _ in range(3)]
    for end in ends:
        b.link(end, switch)
    b.link(nic, switch)
    return b, ends


def _busy_image() -> Image:
    b, ends = _fabric()
    conn = b.conn(ends[0], ends[1])
    b.run_alone(ends[0], prim("send", send=0), conns=(conn,), length=1000)
    b.run_alone(ends[1], prim("recv", recv=0), conns=(conn,), length=1000)
    b.source(ends[2], [(0, 500, ends[0]), (9, 500, ends[1])])
    b.control()
    b.spread()
    return b.build()


BAD_ROWS = {
    "offsets that do not ascend": ("group_off", 1, "", 2**31, "must be"),
    "offsets beyond their table": ("group_off", -1, "", 2**31, "must be"),
    "a target at no node": ("targets", 0, "node", 99, "targets[0].node: 99; must be 0 to"),
    "a via that is no target": (
        "conns",
        0,
        "via_first",
        77,
        "conns[0].via_first: 77; must be 0 to",
    ),
    "a via that is an endpoint": ("conns", 0, "via_first", 1, "a via is an endpoint"),
    "instances without end": ("tasks", 0, "inst_hi", NONE - 1, "tasks[0].inst_hi: "),
    "instances of another task": ("tasks", 0, "inst_hi", 2, "an instance of another task"),
    "a task that waits for nobody": ("tasks", 0, "num_deps", 1, "num_deps is not what names it"),
    "chunk numbers beyond 2^63": (
        "prims",
        0,
        "step",
        2**31 - 1,
        "prims[0].step: 2147483647; must be",
    ),
    "a timer beyond the end of time": ("controls", 0, "alpha_timer_ps", 2**63 - 1, "must be 1 to"),
    "a repeat without end": ("prims", 0, "repeat", NONE, "prims[0].repeat: 4294967295; must be"),
    "messages of two sources": ("sources", 0, "msg_hi", 1, "messages[1]: has no source"),
    "a wire that is not its reverse's": (
        "wires",
        0,
        "reverse",
        3,
        "is not the reverse of its reverse",
    ),
    "two nodes with one endpoint": ("nodes", 2, "endpoint", 1, "endpoint does not match"),
    "a first group that leads elsewhere": ("conns", 0, "first_group", 0, "leaves another node"),
    "more virtual channels than there are": ("conns", 0, "vc", 1, "conns[0].vc: 1; must be 0 to 0"),
    "detours the wrong way round": ("spreads", 0, "detour_lo", 1, "detours the wrong way round"),
    "a stage without a write": ("conns", 0, "kind", 5, "conns[0].kind: 5; must be 0 to 4"),
}


@pytest.mark.parametrize("what", BAD_ROWS)
def test_a_bad_row_is_refused_by_name(what):
    name, row, field, value, words = BAD_ROWS[what]
    image = _busy_image()
    assert _message(image) == ""
    table = getattr(image, name)
    if field:
        table[field][row] = value
    else:
        table[row] = value
    assert words in _message(image)


def test_a_flag_connection_with_a_stage_is_refused():
    image = _busy_image()
    image.conns["kind"][0] = 2
    image.conns["stage"][0] = 2
    assert "only a write connection has a stage" in _message(image)


def test_a_spread_of_something_else_than_writes_is_refused():
    image = _busy_image()
    image.conns["spread"][0], image.conns["kind"][0] = 0, 2
    assert "only writes without a path spread" in _message(image)
    image = _busy_image()
    image.conns["queue_hi"][0], image.conns["policy"][0], image.conns["spread"][0] = 1, 0, NONE
    image = replace(image, queue_keys=np.zeros(1, DTYPES["queue_keys"]))
    assert "only pinned or spread writes without a path have queue pairs" in _message(image)


@pytest.mark.parametrize("relays", [False, True])
def test_a_detour_over_an_endpoint_is_refused(relays):
    b = ImageBuilder()
    near, far, turn = (b.switch() for _ in range(3))
    between = b.endpoint(relay=relays)
    a, c, over = (b.endpoint() for _ in range(3))
    for ends in ((a, near), (near, far), (far, c), (near, between), (between, turn), (turn, over)):
        b.link(*ends)
    b.link(far, turn, latency_ps=5)
    spread = b.spread(detour_lo=over.ep, detour_hi=over.ep + 1)
    b.source(a, [(0, 500, c)], policy="adaptive", spread=spread)
    assert _message(b.build()) == ("spreads[0]: a detour passes an endpoint" if relays else "")


def test_a_route_that_leads_nowhere_is_refused_where_a_gateway_hides_it():
    """Nodes with one group for all other zones are not checked pair by pair, but along every way in use."""
    image = _busy_image()
    image.targets["zone"][1] = 7
    image.nodes["wide_lo"][:] = image.nodes["route_lo"][0] + image.targets["local"][0]
    assert _message(image) != ""


def test_routes_in_a_circle_are_refused():
    b = ImageBuilder()
    one, two = b.switch(), b.switch()
    a, c = b.endpoint(), b.endpoint()
    b.link(a, one)
    there = b.link(one, two)
    b.link(two, c)
    b.conn(a, c)
    b.route(two, c, there + 1)
    b.route(one, c, there)
    assert _message(b.build()) == "conns[0]: routes lead in a circle"


def test_much_that_takes_no_time_is_refused():
    b, ends = _fabric()
    b.run_alone(ends[0], prim("copy", repeat=2**23), conns=(), length=16)
    assert "slices that take no time" in _message(b.build())


def test_loops_that_are_cut_off_take_no_steps():
    """2^31 loops of which none has a byte below `limit`: over at once, in no event's time."""
    b, ends = _fabric()
    fields = {"length": 2**36, "chunk_bytes": 32, "limit": 0, "stride": 0, "slice_min": 32}
    b.instance(b.task(), ends[0], b.template(prim("copy"), nchunks=1, mode=1), (), **fields)
    image = b.build()
    image.costs["fixed_ps"] = 1000
    sim = Simulation(image)
    assert sim.run(max_events=1000) == Stop.DONE
    assert sim.now_ps == 0


def test_memory_for_queues_has_a_bound():
    """Queues are a square of the wires of a node: 20,000 wires would take gigabytes."""
    b = ImageBuilder(nvc=8)
    b.link(b.endpoint(), b.endpoint())
    image = b.build()
    pairs = 10_000
    wires = np.tile(image.wires, pairs)
    wires["reverse"] = np.arange(2 * pairs) ^ 1
    wires["ordinal"] = np.arange(2 * pairs) // 2
    assert "too many queues" in _message(replace(image, wires=wires))


@pytest.mark.parametrize("path", CRASHERS, ids=lambda path: path.stem)
def test_what_once_crashed_is_refused_or_runs(path):
    image = load(path)
    try:
        sim = Simulation(image)
        stop = sim.run(max_events=MOST_EVENTS)
    except (ScheduleError, RangeExceeded):
        return
    sim.wires()
    sim.instance_states()
    if stop == Stop.DONE:
        try:
            sim.check_conservation()
        except InternalError as error:
            pytest.fail(str(error))


def test_crashers_are_kept():
    assert len(CRASHERS) >= 7
