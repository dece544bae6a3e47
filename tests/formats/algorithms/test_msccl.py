"""MSCCL's XML plans: read with line numbers, verified with data in any order, timed, refused when they are broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim import topology
from clusim.base.errors import DeadlockError, InputError
from clusim.formats.algorithms.layout import WantedPlan
from clusim.formats.algorithms.msccl import build, load
from clusim.formats.algorithms.msccl_xml import read_plan
from clusim.schedule import Schedule
from clusim.schedule.executor import Executor
from clusim.schedule.semantics import run_untimed, verify
from clusim.simulation.api import simulate
from clusim.topology import Fabric
from clusim_cli.main import run
from formats.algorithms.msccl_plans import (
    PLANS,
    Block,
    Step,
    broadcast,
    others,
    right,
    text_of,
    two_steps,
    written,
)
from support.covering import examples
from support.realfiles import real_files

SAMPLE = Path(__file__).parents[3] / "traces" / "allpairs-4.xml"


@pytest.fixture(scope="module")
def dgx() -> Fabric:
    return topology.load("dgx-a100")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("operation", PLANS)
def test_collectives_are_what_they_say(tmp_path: Path, operation: str, in_place: bool) -> None:
    plan = read_plan(written(tmp_path, PLANS[operation](4, in_place)))
    assert plan.operation == operation
    for size_bytes, dtype in ((4096, "float32"), (1000, "bfloat16"), (13, "uint8"), (8, "int64")):
        schedule = build(plan, None, WantedPlan(size_bytes, dtype=dtype))
        assert schedule.calls[0].bytes == size_bytes
        for seed in (None, 1, 2, 3):
            assert right(schedule, seed), (size_bytes, dtype, seed)


@pytest.mark.parametrize("protocol", ["simple", "ll", "ll128"])
@pytest.mark.parametrize("operation", ["allreduce", "alltoall", "broadcast"])
def test_the_timed_engine_moves_the_right_data(
    tmp_path: Path, dgx: Fabric, operation: str, protocol: str
) -> None:
    plan = read_plan(written(tmp_path, PLANS[operation](4, False)))
    schedule = build(plan, dgx, WantedPlan(300_004, ranks=[6, 1, 3, 4], protocol=protocol))
    result = simulate(dgx, schedule, verify=True)
    assert result.verified, result.verify_note
    assert schedule.calls[0].protocol == protocol


def test_without_its_waits_a_plan_is_wrong(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, two_steps(4, True, waits=False)))
    assert not all(right(build(plan, None, WantedPlan(4096)), seed) for seed in range(4))


def test_redops_and_root(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, two_steps(3, True)))
    for redop in ("prod", "min", "max", "avg"):
        assert right(build(plan, None, WantedPlan(999, dtype="uint8", redop=redop)), None)
    plan = read_plan(written(tmp_path, broadcast(3, True)))
    schedule = build(plan, None, WantedPlan(60, ranks=[2, 0, 1]))
    assert schedule.calls[0].root == 2
    with pytest.raises(InputError, match="its root is GPU 0, which rank 2 plays"):
        build(plan, None, WantedPlan(60, ranks=[2, 0, 1], root=1))


def test_scratch_may_be_larger_than_the_data(tmp_path: Path) -> None:
    steps: list[Step] = [
        ("s", "i0", "s9", 1, ""),
        ("r", "i0", "s9", 1, ""),
        ("re", "s9", "i0", 1, ""),
    ]
    text = text_of("allreduce", 1, [[(1, 1, steps)], [(0, 0, steps)]], in_place=True)
    text = text.replace('s_chunks="1"', 's_chunks="10"')
    assert right(load(written(tmp_path, text), None, 36), 1)


def test_reductions_that_follow_each_other_share_a_fixed_cost(tmp_path: Path) -> None:
    adds, pair = build(read_plan(SAMPLE), None, WantedPlan(4096)).instances[:2]
    assert (
        adds.fixed_div == 3
    )  # three waits, three reductions, a signal to each of three; three operations
    assert pair.fixed_div == 2  # four slices, a wait and a signal; four operations
    text = SAMPLE.read_text()
    for other in ("2", "3"):
        text = text.replace(f'depid="{other}" deps="1"', 'depid="-1" deps="-1"', 1)
    adds = load(written(tmp_path, text), None, 4096).instances[0]
    assert adds.fixed_div == 7  # one wait, one operation


def test_the_sample_needs_the_time_of_its_steps(dgx: Fabric) -> None:
    """All-pairs of 4 GPUs with 16 B a chunk: latency only, and as long as the two-shot kernel of our own."""
    from clusim import collectives

    result = simulate(dgx, load(SAMPLE, dgx, 64, ranks=range(4)), verify=True)
    assert result.verified
    own = collectives.build(dgx, "allreduce", "twoshot-ll", 64, ranks=range(4), channels=1)
    assert 0.5 < result.time_ps / simulate(dgx, own).time_ps < 2


def test_a_ring_is_as_fast_as_the_ring_of_our_own(tmp_path: Path, dgx: Fabric) -> None:
    """One channel, LL128: the same primitives in the same order, so the same picosecond."""
    from clusim import collectives

    size = 8
    gpus: list[list[Block]] = []
    for me in range(size):
        steps: list[Step] = [("s", f"i{me}", f"i{me}", 1, "")]
        for hop in range(1, 2 * size - 2):
            chunk = (me - hop) % size
            kind = "rrs" if hop < size - 1 else "rrcs" if hop == size - 1 else "rcs"
            steps.append((kind, f"i{chunk}", f"i{chunk}", 1, ""))
        chunk = (me + 2) % size
        steps.append(("r", f"i{chunk}", f"i{chunk}", 1, ""))
        gpus.append([((me + 1) % size, (me - 1) % size, steps)])
    path = written(tmp_path, text_of("allreduce", size, gpus, in_place=True))
    result = simulate(dgx, load(path, dgx, 2**20, protocol="ll128"), verify=True)
    assert result.verified
    ring = collectives.build(dgx, "allreduce", "ring", 2**20, channels=1, protocol="ll128")
    assert result.time_ps == simulate(dgx, ring).time_ps


BROKEN = {
    'type="re"': ('type="radd"', r"plan.xml:5: step type 'radd': unknown"),
    'srcbuf="s"': ('srcbuf="x"', r"plan.xml:5: srcbuf='x': must be i, o or s"),
    'srcoff="0"': ('srcoff="99"', r"plan.xml:5: gpu 0 thread block 0: chunks 99..99 of buffer s"),
    'cnt="1"': ('cnt="many"', r"plan.xml:5: cnt='many' of <step>: must be an integer"),
    'deps="1"': (
        'deps="7"',
        r"plan.xml:5: waits for step 7 of thread block 1, which does not exist",
    ),
    'ngpus="4"': ('ngpus="5"', r"plan.xml:2: gpu 4 is missing"),
    'proto="LL"': ('proto="LL64"', r"plan.xml:2: proto='ll64': unknown|proto='LL64'"),
    'coll="allreduce"': ('coll="allmix"', r"plan.xml:2: coll='allmix': unknown"),
    "</algo>": ("", r"plan.xml:\d+: "),
    "<algo": ("<system", r"plan.xml:\d+: "),
}


@pytest.mark.parametrize("old", BROKEN)
def test_errors_name_the_line(tmp_path: Path, old: str) -> None:
    new, message = BROKEN[old]
    with pytest.raises(InputError, match=message) as caught:
        load(written(tmp_path, SAMPLE.read_text().replace(old, new, 1)), None, 4096)
    assert "\n" not in str(caught.value)


def test_a_deadlock_is_said_to_be_one(tmp_path: Path) -> None:
    first: list[Step] = [("r", "i0", "o0", 1, ""), ("s", "i0", "o0", 1, "")]
    text = text_of("custom", 1, [[(1, 1, first)], [(0, 0, first)]])
    with pytest.raises(
        DeadlockError, match=r"plan.xml:4: the plan deadlocks: gpu 0 thread block 0 step 0 waits"
    ):
        load(written(tmp_path, text), None, 4096)
    waits: list[Block] = [
        (-1, -1, [("nop", "i0", "o0", 0, "1.0")]),
        (-1, -1, [("nop", "i0", "o0", 0, "0.0")]),
    ]
    text = text_of("custom", 1, [waits, waits])
    with pytest.raises(DeadlockError, match=r"for ever for step 0 of thread block 1"):
        load(written(tmp_path, text), None, 4096)


def test_slots_that_run_out_are_a_deadlock_of_the_engine(tmp_path: Path, dgx: Fabric) -> None:
    steps: list[Step] = [("s", "i0", "o0", 64, ""), ("r", "i0", "o0", 64, "")]
    text = text_of("alltoall", 64, [[(1, 1, steps)], [(0, 0, steps)]])
    path = written(tmp_path, text)
    with pytest.raises(DeadlockError):
        simulate(dgx, load(path, dgx, 64 * 2**20, ranks=[0, 1]))


def pairs(size: int, counts: list[int]) -> str:
    """All-reduce in which everybody sends all its chunks to everybody before it receives any, `counts` a step."""
    chunks = sum(counts)
    starts = [sum(counts[:at]) for at in range(len(counts))]
    gpus: list[list[Block]] = []
    for me in range(size):
        blocks: list[Block] = []
        waits = []
        for peer in others(size, me):
            room = others(size, peer).index(me) * chunks
            steps: list[Step] = [
                ("s", f"i{at}", f"s{room + at}", count, "")
                for at, count in zip(starts, counts, strict=True)
            ]
            own = others(size, me).index(peer) * chunks
            steps += [
                ("r", "i0", f"s{own + at}", count, "")
                for at, count in zip(starts, counts, strict=True)
            ]
            waits.append((len(blocks), own, f"{len(blocks)}.{len(steps) - 1}"))
            blocks.append((peer, peer, steps))
        adds: list[Step] = [
            ("re", f"s{own + chunk}", f"i{chunk}", 1, wait if not chunk else "")
            for _, own, wait in waits
            for chunk in range(chunks)
        ]
        gpus.append([*blocks, (-1, -1, adds)])
    text = text_of("allreduce", chunks, gpus, in_place=True)
    return text.replace(f's_chunks="{chunks}"', f's_chunks="{chunks * (size - 1)}"')


@pytest.mark.parametrize("counts", [[8], [16, 16], [64], [8, 4], [1, 4], [3, 5]])
def test_chunks_that_move_at_once_take_the_slots_of_one(
    tmp_path: Path, dgx: Fabric, counts: list[int]
) -> None:
    """Two operations fill a connection of Simple; everybody may send that much before it receives."""
    plan = read_plan(written(tmp_path, pairs(4, counts)))
    for size_bytes in (64 * 2**10, 2**20, 2 * 2**20 + 4):
        result = simulate(
            dgx, build(plan, dgx, WantedPlan(size_bytes, ranks=range(4))), verify=True
        )
        assert result.verified, (counts, size_bytes, result.verify_note)


@pytest.mark.parametrize(("protocol", "most"), [("simple", 2), ("ll", 8), ("ll128", 8)])
@pytest.mark.parametrize("chunk_bytes", [256, 30_000])
def test_an_operation_takes_the_slots_of_a_chunk_however_few_bytes_it_has(
    tmp_path: Path, dgx: Fabric, protocol: str, most: int, chunk_bytes: int
) -> None:
    """A connection has eight steps: of Simple an operation takes four (MSCCL_CHUNKSTEPS), of the others one.

    So two, or eight, are sent before any is received; with one more both GPUs wait for ever. `genericOp` posts slices
    without data, too.
    """
    for count in (most, most + 1):
        plan = read_plan(written(tmp_path, pairs(2, [1] * count)))
        wanted = WantedPlan(count * chunk_bytes, ranks=range(2), protocol=protocol)
        schedule = build(plan, dgx, wanted)
        if count == most:
            assert simulate(dgx, schedule, verify=True).verified
        else:
            with pytest.raises(DeadlockError):
                simulate(dgx, schedule)


def test_chunks_that_move_at_once_are_one_operation_to_the_picosecond(
    tmp_path: Path, dgx: Fabric
) -> None:
    """Eight chunks at once, and a plan that knows only the whole: the same bytes in the same slices."""

    def time_ps(counts: list[int]) -> int:
        text = pairs(2, counts).replace('type="re"', 'type="nop"').replace("allreduce", "custom")
        plan = read_plan(written(tmp_path, text))
        return simulate(dgx, build(plan, dgx, WantedPlan(2**20, ranks=range(2)))).time_ps

    assert time_ps([8]) == time_ps([1])


def test_a_chunk_too_large_to_share_a_slot_moves_alone(tmp_path: Path, dgx: Fabric) -> None:
    """Simple moves 2 MiB at once: four chunks of half a MiB are one operation, of 2 MiB four, which fill the slots."""
    plan = read_plan(written(tmp_path, pairs(2, [4])))
    result = simulate(dgx, build(plan, dgx, WantedPlan(2 * 2**20, ranks=range(2))), verify=True)
    assert result.verified
    with pytest.raises(DeadlockError):
        simulate(dgx, build(plan, dgx, WantedPlan(8 * 2**20, ranks=range(2))))


def test_two_thread_blocks_on_one_connection_are_refused(tmp_path: Path) -> None:
    send: list[Step] = [("s", "i0", "o0", 1, "")]
    take: list[Step] = [("r", "i0", "o0", 1, "")]
    text = text_of("custom", 1, [[(1, -1, send), (1, -1, send)], [(-1, 0, take), (-1, 0, take)]])
    with pytest.raises(
        InputError, match=r"thread block 1 of gpu 0 sends to gpu 1 on channel 0, as thread"
    ):
        load(written(tmp_path, text), None, 64)


Outcome = tuple[int, str, str]
Clusim = Callable[..., Outcome]


@pytest.fixture
def clusim(capsys: pytest.CaptureFixture[str]) -> Clusim:
    """Return what runs a command: its exit code and both outputs."""

    def call(*arguments: str) -> Outcome:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_command_runs_and_verifies_the_sample(clusim: Clusim) -> None:
    code, out, err = clusim(
        *(
            "run",
            "dgx-a100",
            "--algorithm",
            str(SAMPLE),
            "--ranks",
            "0-3",
            "--size",
            "64KiB",
            "--verify",
        )
    )
    assert code == 0, err
    assert "allreduce 64 KiB float32 over 4 ranks of dgx-a100 (msccl, ll, 1 channels)" in out
    assert re.search(r"data +correct", out)


def test_the_command_says_that_a_wrong_plan_is_wrong(tmp_path: Path, clusim: Clusim) -> None:
    text = SAMPLE.read_text().replace(
        'type="s" srcbuf="i" srcoff="1"', 'type="s" srcbuf="i" srcoff="2"', 1
    )
    path = str(written(tmp_path, text))
    code, out, err = clusim(
        "run", "dgx-a100", "--algorithm", path, "--ranks", "0-3", "--verify", "--size", "1K"
    )
    assert code == 1
    assert "WRONG" in out
    assert err.startswith("clusim: data: wrong: allreduce: ")


def test_the_command_cannot_verify_a_custom_plan(tmp_path: Path, clusim: Clusim) -> None:
    text = SAMPLE.read_text().replace('coll="allreduce"', 'coll="custom"')
    path = str(written(tmp_path, text))
    code, out, err = clusim(
        "run", "dgx-a100", "--algorithm", path, "--ranks", "0-3", "--verify", "--size", "1K"
    )
    assert code == 0
    assert "time" in out
    assert "data: not verified: a custom plan has no reference result" in err


def test_options_that_do_not_fit_are_refused(clusim: Clusim) -> None:
    path = str(SAMPLE)
    for args, message in (
        (["--channels", "4"], "--channels is not for"),
        (["--collective", "alltoall"], "is allreduce, not alltoall"),
        ([], "a plan for 4 GPUs, not 8; choose 4 with --ranks"),
        (["--ranks", "0-3", "--size", "6"], "is not a multiple of float32 elements"),
    ):
        code, _, err = clusim("run", "dgx-a100", "--algorithm", path, *args)
        assert code == 2
        assert message in err


def test_replay_points_to_run(clusim: Clusim) -> None:
    code, _, err = clusim("replay", str(SAMPLE), "--topology", "dgx-a100")
    assert code == 2
    assert f"`clusim run TOPOLOGY --algorithm {SAMPLE}`" in err


@settings(max_examples=examples(40))
@given(st.data())
def test_damaged_plans_are_refused_or_run(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(SAMPLE.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        how = data.draw(st.sampled_from(["byte", "digit", "cut", "double", "end"]))
        if how == "byte":
            raw[at] = data.draw(st.integers(0, 255))
        elif how == "digit":
            digits = [i for i in range(at, len(raw)) if chr(raw[i]).isdigit()] or [at]
            raw[digits[0]] = ord(data.draw(st.sampled_from("0123456789")))
        elif how == "cut":
            del raw[at : at + data.draw(st.integers(1, 200))]
        elif how == "double":
            raw[at:at] = raw[max(0, at - 60) : at]
        else:
            del raw[at:]
        raw = raw or bytearray(b"<")
    path = tmp_path_factory.mktemp("damage") / "plan.xml"
    path.write_bytes(bytes(raw))
    with suppress(InputError, DeadlockError):
        verify(load(path, None, 4096))


@pytest.mark.parametrize("path", real_files("msccl", pattern="*.xml"), ids=lambda path: path.stem)
def test_real_plans(path: Path) -> None:
    if "ar_multi_ar" in path.name:
        with pytest.raises(InputError, match="both would use the same slots"):
            read_plan(path)
        return
    plan = read_plan(path)
    schedule = build(plan, None, WantedPlan(plan.chunks * 4 + 4))
    assert handed_on(schedule) if plan.operation == "messages" else right(schedule, 1)


def handed_on(schedule: Schedule) -> bool:
    """Return whether every rank has what the rank before it had."""
    count = schedule.calls[0].bytes // 4
    executor = Executor(schedule, [[np.full(count, rank, np.float32) for rank in range(24)]])
    run_untimed(executor, 1)
    return all((executor.output(0, rank)[:count] == rank - 1).all() for rank in range(1, 24))
