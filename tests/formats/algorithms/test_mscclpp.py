"""MSCCL++'s JSON plans: read with line numbers, verified with data in any order, timed, refused when broken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim import collectives, topology
from clusim.base.errors import DeadlockError, InputError
from clusim.formats.algorithms.jsonlines import read_json
from clusim.formats.algorithms.layout import WantedPlan
from clusim.lowering import lower
from clusim.schedule import Schedule
from clusim.schedule.executor import Executor
from clusim.schedule.semantics import run_untimed, verify
from clusim.simulation.api import simulate
from clusim.topology import Fabric
from clusim_cli.main import run
from clusim_formats.algorithms.mscclpp import build, load
from clusim_formats.algorithms.mscclpp_json import read_plan
from formats.algorithms import mscclpp_plans as plans
from support.covering import examples
from support.realfiles import real_files

SAMPLE = Path(__file__).parents[3] / "traces" / "allpairs-4.mscclpp.json"


@pytest.fixture(scope="module")
def dgx() -> Fabric:
    return topology.load("dgx-h100")


@pytest.fixture(scope="module")
def older() -> Fabric:
    return topology.load("dgx-a100")


PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "packets": ("allreduce", plans.allpairs(4)),
    "packets in groups": ("allreduce", plans.allpairs(3, parts=3)),
    "put": ("all_gather", plans.gather_put(4)),
    "put out of place": ("all_gather", plans.gather_put(3, in_place=False)),
    "get": ("alltoall", plans.alltoall_get(4)),
    "semaphores": ("reduce_scatter", plans.pulled_scatter(4)),
    "multicast": ("all_gather", plans.multicast_gather(4)),
    "pipeline": ("allreduce", plans.nvls_pipeline(4, 512)),
    "chain": ("broadcast", plans.chain_packets()),
    "two waiters": ("broadcast", plans.two_waiters()),
    "port": ("all_gather", plans.port_gather()),
}

SIZES = ((4096, "float32"), (1000, "bfloat16"), (13, "uint8"), (8, "int64"))


def right(schedule: Schedule, seed: int | None) -> bool:
    """Return whether a schedule computes its collective, in a random legal order if there is a seed."""
    executor = Executor(schedule, data="random")
    run_untimed(executor, seed)
    (check,) = executor.check(8.0)
    return check.ok


@pytest.mark.parametrize("name", PLANS)
def test_collectives_are_what_they_say(tmp_path: Path, name: str) -> None:
    operation, value = PLANS[name]
    plan = read_plan(plans.write(tmp_path, value))
    assert plan.operation == operation
    for size_bytes, dtype in SIZES:
        schedule = build(plan, None, WantedPlan(size_bytes, dtype=dtype))
        assert schedule.calls[0].bytes == size_bytes
        for seed in (None, 1, 2, 3):
            assert right(schedule, seed), (size_bytes, dtype, seed)


@pytest.mark.parametrize("name", PLANS)
def test_the_timed_engine_moves_the_right_data(tmp_path: Path, dgx: Fabric, name: str) -> None:
    plan = read_plan(plans.write(tmp_path, PLANS[name][1]))
    ranks = [6, 1, 3, 4][: len(plan.gpus)]
    for size_bytes in (40, 100_004):
        result = simulate(dgx, build(plan, dgx, WantedPlan(size_bytes, ranks=ranks)), verify=True)
        assert result.verified, result.verify_note


@pytest.mark.parametrize("name", ["packets", "put", "get", "semaphores"])
def test_where_nccl_would_pull_and_over_pcie(tmp_path: Path, older: Fabric, name: str) -> None:
    plan = read_plan(plans.write(tmp_path, PLANS[name][1]))
    for machine in (older, topology.load("a100-pcie-x8")):
        result = simulate(
            machine, build(plan, machine, WantedPlan(50_000, ranks=range(4))), verify=True
        )
        assert result.verified, result.verify_note


def test_between_machines(tmp_path: Path) -> None:
    cluster = topology.load("dgx-h100", nodes=2)
    path = plans.write(tmp_path, plans.port_gather())
    result = simulate(cluster, load(path, cluster, 2**20, ranks=[0, 8]), verify=True)
    assert result.verified
    # half a MiB each way through a NIC of 50 GB/s needs 10.5 us
    assert 10_500_000 < result.time_ps < 60_000_000


@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100"])
def test_stores_are_pushed_and_loads_are_pulled_everywhere(tmp_path: Path, machine: str) -> None:
    found = topology.load(machine)
    for value, kind in ((plans.gather_put(4), 0), (plans.alltoall_get(4), 1)):
        schedule = load(plans.write(tmp_path, value), found, 4096, ranks=range(4))
        image = lower(found, schedule).image
        data = [at for at, one in enumerate(schedule.connections) if one.kind == "data"]
        assert len(data) == 12
        assert set(image.conns["kind"][data].tolist()) == {kind}


FORGOTTEN = {
    "barrier": (plans.gather_put(4), '"barrier"', '"nop"'),
    "semaphore": (plans.pulled_scatter(4), '"sem_acquire"', '"nop"'),
    "second waiter": (plans.two_waiters(tied=False), "", ""),
}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_without_its_waits_a_plan_is_wrong(tmp_path: Path, name: str) -> None:
    value, old, new = FORGOTTEN[name]
    path = plans.write(tmp_path, value, lambda text: text.replace(old, new) if old else text)
    schedule = load(path, None, 4096)
    assert not all(right(schedule, seed) for seed in range(6))


def test_what_nobody_waits_for_arrives_all_the_same(tmp_path: Path) -> None:
    path = plans.write(tmp_path, plans.port_gather(), lambda text: text.replace('"wait"', '"nop"'))
    assert right(load(path, None, 64), 1)


def test_a_pipeline_makes_as_many_iterations_as_its_unit_says(tmp_path: Path) -> None:
    plan = read_plan(plans.write(tmp_path, plans.nvls_pipeline(4, 512)))
    for size_bytes, turns in ((2048, 1), (2052, 2), (8192, 4), (9000, 5)):
        schedule = build(plan, None, WantedPlan(size_bytes))
        switch = [
            sum(prim.op == "reduceLoadStore" for prim in template.prims)
            for template in schedule.templates
        ]
        assert max(switch) == turns


def test_a_group_of_thread_blocks_shares_the_work(tmp_path: Path, dgx: Fabric) -> None:
    times = []
    for parts in (1, 2, 4):
        path = plans.write(tmp_path, plans.allpairs(4, parts))
        schedule = load(path, dgx, 2**20, ranks=range(4))
        assert len(schedule.instances) == 4 * parts
        times.append(simulate(dgx, schedule).time_ps)
    assert 1.7 < times[0] / times[1] < 2.2
    assert 1.7 < times[1] / times[2] < 2.2


def test_packets_take_the_time_of_the_two_shot_kernel(tmp_path: Path, dgx: Fabric) -> None:
    path = plans.write(tmp_path, plans.allpairs(8))
    for size_bytes in (64, 2**16):
        own = collectives.build(dgx, "allreduce", "twoshot-ll", size_bytes, channels=1)
        ratio = simulate(dgx, load(path, dgx, size_bytes)).time_ps / simulate(dgx, own).time_ps
        assert 0.5 < ratio < 2


@pytest.mark.parametrize("name", ["packets in groups", "put", "get", "pipeline"])
def test_both_engines_agree(tmp_path: Path, dgx: Fabric, name: str) -> None:
    plan = read_plan(plans.write(tmp_path, PLANS[name][1]))
    schedule = build(plan, dgx, WantedPlan(4004, ranks=range(len(plan.gpus))))
    found = [simulate(dgx, schedule, engine=engine).fingerprint for engine in ("c", "reference")]
    assert found[0] == found[1]


def test_a_load_costs_the_way_there_and_back(tmp_path: Path, dgx: Fabric) -> None:
    """What a GPU gets grows with the bytes at the rate of a CTA's reads, and not slower than the links are."""
    plan = read_plan(plans.write(tmp_path, plans.alltoall_get(2)))
    times = [
        simulate(dgx, build(plan, dgx, WantedPlan(size, ranks=[0, 1]))).time_ps
        for size in (2**20, 2**21)
    ]
    rate = 2**19 / (times[1] - times[0]) * 1e3  # GB/s of half a MiB more to get, and to copy
    assert 10 < rate < 450


def test_the_sample_is_what_the_tests_make() -> None:
    assert json.loads(SAMPLE.read_text()) == plans.allpairs(4) | {"name": "allpairs_4"}
    assert right(load(SAMPLE, None, 4096), 1)


BROKEN = {
    '"ppkt"': ('"pppkt"', r"operation 'pppkt': unknown"),
    '"type": "i"': ('"type": "q"', r"type='q': must be i, o or s"),
    '"index": 1': ('"index": 9', r"chunks 9..9 of buffer 'i' of gpu 0, which has 4"),
    '"size": 1': ('"size": 0', r"size=0: must be an integer 1\.\."),
    '"buffer_id": 2': ('"buffer_id": 99', r"buffer_id=99: must be an integer 0\.\.8"),
    '"buffer_id": 2,': ('"buffer_id": "x",', r"buffer_id='x': must be an integer"),
    '"collective": "allreduce"': ('"collective": "allmix"', r"collective='allmix': unknown"),
    '"protocol": "LL"': ('"protocol": "LL64"', r"protocol='LL64': unknown; Simple or LL"),
    '"scratch_chunks": 8': ('"scratch_chunks": 2', r"chunks \d..\d of buffer 's' of gpu \d"),
    '"id": 3,': ('"id": 4,', r"gpus: must have the ids 0..3 in order"),
    '"gpus": [': ('"gpus": {', r"no valid JSON: "),
    '"inplace": true': ('"inplace": maybe', r"no valid JSON: a value is missing"),
    '"inplace"': ('"colltype": 1, "inplace"', r"format before MSCCL\+\+ 0.7"),
    '{"rank": 1': ('{"rank": 0', r"rank=0: a remote buffer of gpu 0 itself"),
    "]\n}": ("", r"no valid JSON: .*is the file complete\?"),
}


@pytest.mark.parametrize("old", BROKEN)
def test_errors_name_the_line(tmp_path: Path, old: str) -> None:
    new, message = BROKEN[old]
    text = SAMPLE.read_text()
    assert old in text
    path = tmp_path / "plan.json"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"plan.json:\d+: .*{message}") as caught:
        load(path, None, 4096)
    assert "\n" not in str(caught.value)


def test_an_error_in_an_operation_names_its_line(tmp_path: Path) -> None:
    lines = SAMPLE.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if '"respkt"' in line)
    lines[at] = lines[at].replace("respkt", "mixpkt")
    path = tmp_path / "plan.json"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=rf"plan.json:({at}|{at + 1}): operation 'mixpkt'"):
        read_plan(path)


def test_json_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, message in (
        ("", "a value is missing; is the file complete"),
        ("[1]", "no plan of MSCCL"),
        ("{} {}", "something follows the end"),
        ('{"a": "\\q"}', "bad escape"),
        ('{"a": 01}', "',' or '}' is missing"),
        ("[" * 100_000, "nested too deep"),
        ("\0\1\2", "a value is missing"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=re.escape(message)):
            read_plan(path)
    path.write_text('{"a": [1, -2.5e3, "\\u00e9", null, true], "b": {}}')
    value = read_json(path)
    assert value == {"a": [1, -2500.0, "\u00e9", None, True], "b": {}}
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(tmp_path / "absent.json")


def test_a_deadlock_is_said_to_be_one(tmp_path: Path) -> None:
    path = plans.write(tmp_path, plans.gather_put(4, fault="signal"))
    with pytest.raises(
        DeadlockError, match=r"plan.json:\d+: the plan deadlocks: gpu 0 .*signal from gpu 1"
    ):
        load(path, None, 4096)
    text = json.dumps(plans.pulled_scatter(3)).replace("sem_release", "nop")
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(DeadlockError, match="waits for ever in sem_acquire for semaphore 0"):
        load(path, None, 4096)
    text = json.dumps(plans.allpairs(3)).replace('"ppkt"', '"nop"')
    (tmp_path / "plan.json").write_text(
        re.sub('"nop", "src_buff.*?channel_type', '"nop", "channel_type', text)
    )
    with pytest.raises(DeadlockError, match="in respkt for packets that no GPU stores"):
        load(path, None, 4096)


def test_barriers_must_be_met_by_as_many_as_they_say(tmp_path: Path) -> None:
    path = plans.write(
        tmp_path,
        plans.gather_put(2),
        lambda text: text.replace('"num_threadblocks": 2', '"num_threadblocks": 3'),
    )
    with pytest.raises(
        InputError, match="barrier 0 of gpu 0 is for 3 thread blocks, and 2 reach it"
    ):
        load(path, None, 4096)


def test_sizes_the_plan_is_not_for(tmp_path: Path) -> None:
    path = plans.write(tmp_path, plans.allpairs(2) | {"max_message_size": 1024})
    load(path, None, 1024)
    with pytest.raises(InputError, match="the plan is for 0 to 1024 bytes"):
        load(path, None, 1028)
    path = plans.write(tmp_path, plans.nvls_pipeline(2, 16))
    with pytest.raises(InputError, match="a pipeline of 32768 iterations"):
        load(path, None, 2**20)


def test_switches_that_do_not_reduce_are_named(tmp_path: Path, older: Fabric) -> None:
    path = plans.write(tmp_path, plans.multicast_gather(4))
    with pytest.raises(InputError, match=r"plan.json:\d+: gstore: dgx-a100 lacks reduction units"):
        load(path, older, 4096, ranks=range(4))


def test_reductions_and_protocols_of_the_plan(tmp_path: Path) -> None:
    path = plans.write(tmp_path, plans.allpairs(2))
    with pytest.raises(InputError, match="--redop max: the plan reduces with sum"):
        load(path, None, 4096, redop="max")
    with pytest.raises(
        InputError, match="--protocol simple: the operations of the plan are for ll"
    ):
        load(path, None, 4096, protocol="simple")


Clusim = Callable[..., tuple[int, str, str]]


@pytest.fixture
def clusim(capsys: pytest.CaptureFixture[str]) -> Clusim:
    """Return what runs a command: its exit code and both outputs."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_command_runs_and_verifies_the_sample(clusim: Clusim) -> None:
    plan = ("--algorithm", str(SAMPLE), "--ranks", "0-3", "--size", "64KiB")
    code, out, err = clusim("run", "dgx-h100", *plan, "--verify", "--no-progress")
    assert code == 0, err
    assert "allreduce 64 KiB float32 over 4 ranks of dgx-h100 (mscclpp, ll, 1 channels)" in out
    assert re.search(r"data +correct", out)


def test_the_command_says_that_a_wrong_plan_is_wrong(tmp_path: Path, clusim: Clusim) -> None:
    path = str(plans.write(tmp_path, plans.gather_put(4, fault="index")))
    plan = ("--algorithm", path, "--ranks", "0-3", "--size", "1KiB")
    code, out, err = clusim("run", "dgx-h100", *plan, "--verify", "--no-progress")
    assert code == 1
    assert "WRONG" in out
    assert err.startswith("clusim: data: wrong: all_gather: ")


def test_replay_points_to_run(clusim: Clusim) -> None:
    code, _, err = clusim("replay", str(SAMPLE), "--topology", "dgx-h100")
    assert code == 2
    assert f"`clusim run TOPOLOGY --algorithm {SAMPLE}`" in err


@settings(max_examples=examples(40))
@given(st.data())
def test_damaged_plans_are_refused_or_run(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["packets", "put", "semaphores", "pipeline", "chain"]))
    raw = bytearray(json.dumps(PLANS[name][1], indent=1).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        how = data.draw(st.sampled_from(["byte", "digit", "digit", "cut", "double", "end"]))
        if how == "byte":
            raw[at] = data.draw(st.integers(0, 255))
        elif how == "digit":
            digits = [i for i in range(at, len(raw)) if chr(raw[i]).isdigit()] or [at]
            raw[digits[0]] = ord(data.draw(st.sampled_from("0123456789")))
        elif how == "cut":
            del raw[at : at + data.draw(st.integers(1, 100))]
        elif how == "double":
            raw[at:at] = raw[max(0, at - 60) : at]
        else:
            del raw[at:]
        raw = raw or bytearray(b"{")
    path = tmp_path_factory.mktemp("damage") / "plan.json"
    path.write_bytes(bytes(raw))
    with suppress(InputError, DeadlockError):
        verify(load(path, None, 4096))


@settings(max_examples=examples(20))
@given(st.data())
def test_plans_with_changed_operations_are_refused_or_run(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Operations left out, doubled or swapped leave a valid file: wrong, stuck or right, and never a crash."""
    name = data.draw(st.sampled_from(["packets in groups", "put", "semaphores", "chain", "port"]))
    value = json.loads(json.dumps(PLANS[name][1]))
    for _ in range(data.draw(st.integers(1, 3))):
        blocks = [block for gpu in value["gpus"] for block in gpu["threadblocks"]]
        ops = data.draw(st.sampled_from(blocks))["ops"]
        at = data.draw(st.integers(0, max(0, len(ops) - 1)))
        how = data.draw(st.sampled_from(["drop", "double", "swap"]))
        if how == "drop":
            del ops[at : at + 1]
        elif how == "double":
            ops[at:at] = ops[at : at + 1]
        else:
            ops.reverse()
    path = tmp_path_factory.mktemp("changed") / "plan.json"
    path.write_text(json.dumps(value))
    with suppress(InputError, DeadlockError):
        verify(load(path, None, 4096))


@pytest.mark.parametrize(
    "path", real_files("msccl", pattern="mscclpp_*.json"), ids=lambda path: path.stem
)
def test_real_plans(path: Path) -> None:
    plan = read_plan(path)
    for size_bytes in (np.lcm(plan.chunks, 64) * 4, 100):
        for seed in (None, 1, 2):
            assert right(build(plan, None, WantedPlan(int(size_bytes))), seed)
