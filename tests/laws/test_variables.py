"""Law: a variable of NCCL that is accepted changes some plan, or results that were asked for with it say that not."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from clusim import fabric
from clusim.fabric import Fabric
from clusim.nccl import Collective, communicator, parse_env, parse_version, programs
from clusim.nccl.env import _READERS, PLAN_ONLY, WITHOUT_EFFECT, windows
from clusim.nccl.symmetric import SymmetricCall, pick
from clusim.schedule import to_text
from clusim_cli.main import cli

SIZES = (8, 4096, 1 << 18, 1 << 20, 1 << 24, 1 << 28)

CHANGES: dict[str, tuple[str, str, int, dict[str, str]]] = {
    "NCCL_ALGO": ("Tree", "dgx-a100", 1, {}),
    "NCCL_PROTO": ("Simple", "dgx-a100", 1, {}),
    "NCCL_MIN_NCHANNELS": ("32", "dgx-a100", 1, {}),
    "NCCL_MAX_NCHANNELS": ("4", "dgx-a100", 1, {}),
    "NCCL_MIN_CTAS": ("32", "dgx-a100", 1, {}),
    "NCCL_MAX_CTAS": ("4", "dgx-a100", 1, {}),
    "NCCL_NTHREADS": ("128", "dgx-a100", 1, {}),
    "NCCL_LL128_NTHREADS": ("320", "dgx-a100", 1, {"NCCL_PROTO": "LL128"}),
    "NCCL_BUFFSIZE": ("1M", "dgx-a100", 1, {}),
    "NCCL_LL_BUFFSIZE": ("64K", "dgx-a100", 1, {"NCCL_PROTO": "LL"}),
    "NCCL_LL128_BUFFSIZE": ("256K", "dgx-a100", 1, {"NCCL_PROTO": "LL128"}),
    "NCCL_THREAD_THRESHOLDS": ("1024 1024 1024 1024 1024 1024", "dgx-a100", 1, {}),
    "NCCL_P2P_LEVEL": ("LOC", "a100-pcie-x8", 1, {}),
    "NCCL_P2P_DISABLE": ("1", "a100-pcie-x8", 1, {}),
    "NCCL_P2P_NVL_CHUNKSIZE": ("64K", "dgx-a100", 1, {}),
    "NCCL_P2P_PCI_CHUNKSIZE": ("64K", "a100-pcie-x8", 1, {}),
    "NCCL_P2P_NET_CHUNKSIZE": ("64K", "polaris", 2, {}),
    "NCCL_NET_GDR_LEVEL": ("LOC", "dgx-a100", 2, {}),
    "NCCL_NET_OVERHEAD": ("5000", "polaris", 2, {}),
    "NCCL_PXN_DISABLE": ("1", "dgx-h100", 2, {}),
    "NCCL_CROSS_NIC": ("1", "polaris", 2, {}),
    "NCCL_IB_HCA": ("=nic0", "polaris", 2, {}),
    "NCCL_NVLS_ENABLE": ("0", "dgx-h100", 1, {}),
    "NCCL_NVLS_NCHANNELS": ("8", "dgx-h100", 1, {"NCCL_ALGO": "NVLS"}),
    "NCCL_NVLS_CHUNKSIZE": ("32K", "dgx-h100", 1, {"NCCL_ALGO": "NVLS"}),
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": ("16K", "dgx-h100", 2, {"NCCL_ALGO": "NVLSTree"}),
    "NCCL_COLLNET_ENABLE": ("1", "dgx-a100", 2, {}),
    "NCCL_COLLNET_NODE_THRESHOLD": ("4", "dgx-a100", 2, {"NCCL_COLLNET_ENABLE": "1"}),
    "NCCL_SYM_KERNEL": ("AllReduce_RSxLD_AGxST", "dgx-h100", 1, dict(windows(symmetric=True))),
    "NCCL_SYM_CTAS": ("7", "dgx-h100", 1, dict(windows(symmetric=True))),
}
"""Variable -> value, machine, how many of them, and what else is set: a case in which it changes something.

Of two machines with eight GPUs two take part, so that the search for channels is short.
"""


@cache
def machines(name: str, nodes: int) -> Fabric:
    return fabric.load(name, nodes=nodes)


def plans(name: str, nodes: int, env: dict[str, str], *, messages: bool) -> list[Any]:
    """Return all that NCCL decides for all-reduces, and the schedule of an all-to-all if asked for."""
    machine = machines(name, nodes)
    ranks = (0, 1, 8, 9) if nodes > 1 and machine.num_ranks > 8 else None
    comm = communicator(machine, parse_version("2.27"), parse_env(env), ranks=ranks)
    found: list[Any] = [comm.log_totals(), [graph.line() for graph in comm.graphs.values()]]
    found += [repr(comm.channels), repr(comm.table.costs)]
    found += [repr(comm.plan(Collective.ALLREDUCE, size)) for size in SIZES]
    if comm.settings.symmetric:
        found += [repr(pick(comm, SymmetricCall(Collective.ALLREDUCE, size))) for size in SIZES]
    if messages:
        schedule = programs.build(machine, comm, programs.Moved("alltoall", 1 << 24))
        found.append(to_text(schedule))
    return found


def test_every_accepted_variable_is_in_one_of_the_two_lists() -> None:
    assert CHANGES.keys() == _READERS.keys()
    assert not CHANGES.keys() & WITHOUT_EFFECT
    assert PLAN_ONLY.keys() <= CHANGES.keys()


@pytest.mark.parametrize("variable", CHANGES)
def test_a_variable_that_is_read_changes_a_plan(variable: str) -> None:
    value, name, nodes, others = CHANGES[variable]
    messages = "P2P" in variable and "CHUNKSIZE" in variable
    without = plans(name, nodes, others, messages=messages)
    assert plans(name, nodes, {**others, variable: value}, messages=messages) != without


@pytest.mark.parametrize("variable", ["NCCL_SHM_DISABLE", "NCCL_IB_MERGE_NICS", "NCCL_DEBUG"])
def test_a_variable_without_effect_is_said_in_text_and_json(variable: str) -> None:
    said = f"without effect here: {variable}"
    word = f"{variable}=1"
    run = ("run", "a100x4-mesh", "--size", "64KiB", "--algorithm", "nccl", "--env", word)
    perf = ("nccl-tests", "all_reduce_perf", "a100x4-mesh", "-b", "8", "-e", "8")
    for command in (
        (*run, "--no-progress"),
        ("explain", "a100x4-mesh", "--size", "8", "--env", word),
        (*perf, "--jobs", "1", "--env", word),
    ):
        text = CliRunner().invoke(cli, command).stdout
        assert said in text
        found = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
        assert said in found["notes"]


@pytest.mark.parametrize("variable", sorted(WITHOUT_EFFECT))
def test_variables_without_effect_change_no_setting_and_are_named(variable: str) -> None:
    settings = parse_env({variable: "1"})
    assert settings == parse_env({})
    assert settings.without_effect == (variable,)


def test_a_variable_that_changes_only_the_plan_says_so() -> None:
    comm = communicator(machines("a100-pcie-x8", 1), settings=parse_env({"NCCL_P2P_DISABLE": "1"}))
    assert any("NCCL_P2P_DISABLE: changes the plan, not the way" in note for note in comm.notes)
