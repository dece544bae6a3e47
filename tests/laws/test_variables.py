"""Law: a variable of NCCL that is accepted changes some plan, or results that were asked for with it say that not."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clusim import topology
from clusim.base.errors import InputError
from clusim.nccl import Collective, communicator, parse_env, parse_version, programs
from clusim.nccl.env import _OLD_NAMES, _READERS, WITHOUT_EFFECT, force_variables, windows
from clusim.nccl.symmetric import pick, why_not
from clusim.nccl.symmetriccosts import SymmetricCall
from clusim.nccl.variables import VARIABLES, page
from clusim.schedule import to_text
from clusim.simulation.plan import Plan, plan
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim_cli.main import cli
from support.nccl_lines import log_totals

ROOT = Path(__file__).resolve().parents[2]
SIZES = (8, 4096, 1 << 18, 1 << 20, 1 << 24, 1 << 28)

CHANGES: dict[str, tuple[str, str, int, dict[str, str]]] = {
    "RCCL_MSCCL_ENABLE": ("0", "mi300x", 1, {}),
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
    "NCCL_PAT_ENABLE": ("0", "dgx-a100", 2, {}),
    "NCCL_WIN_ENABLE": ("0", "dgx-h100", 1, dict(windows(symmetric=True))),
    "NCCL_CUMEM_ENABLE": ("0", "dgx-h100", 1, dict(windows(symmetric=True))),
    "NCCL_NVLS_ENABLE": ("0", "dgx-h100", 1, {}),
    "NCCL_NVLS_NCHANNELS": ("8", "dgx-h100", 1, {"NCCL_ALGO": "NVLS"}),
    "NCCL_NVLS_CHUNKSIZE": ("32K", "dgx-h100", 1, {"NCCL_ALGO": "NVLS"}),
    "NCCL_NETDEVS_POLICY": ("AUTO", "aws-p5en", 2, {}),
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": ("16K", "dgx-h100", 2, {"NCCL_ALGO": "NVLSTree"}),
    "NCCL_COLLNET_ENABLE": ("1", "dgx-a100", 2, {}),
    "NCCL_COLLNET_NODE_THRESHOLD": ("4", "dgx-a100", 2, {"NCCL_COLLNET_ENABLE": "1"}),
    "NCCL_SYM_KERNEL": ("AllReduce_RSxLD_AGxST", "dgx-h100", 1, dict(windows(symmetric=True))),
    "NCCL_SYM_CTAS": ("7", "dgx-h100", 1, dict(windows(symmetric=True))),
    "NCCL_CTA_POLICY": ("ZERO", "dgx-h100", 1, dict(windows(symmetric=True))),
    "NCCL_TUNER_CONFIG_FILE": (str(ROOT / "tests" / "laws" / "tuner.csv"), "dgx-a100", 1, {}),
    "NCCL_SYM_TMA_ENABLE": (
        "1",
        "hgx-b200",
        1,
        {"NCCL_NVLS_ENABLE": "0", **dict(windows(symmetric=True))},
    ),
}
"""Variable -> value, machine, how many of them, and what else is set: a case in which it changes something.

Of two machines with eight GPUs two take part, so that the search for channels is short; one of each for PAT.
"""

DATA_ONLY = {
    "NCCL_NVB_DISABLE",
    "NCCL_NET_GDR_READ",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_MNNVL_ENABLE",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_SPLIT_DATA_ON_QPS",
    "NCCL_GRAPH_FILE",
}
"""Variables that change no plan: which links data take, or whether a run is possible; see
`test_transports` and `test_queue_pairs`. Graphs of a file change plans in `tests/nccl/test_graphfile.py`.
"""


@cache
def machines(name: str, nodes: int) -> Fabric:
    return topology.load(name, nodes=nodes)


def plans(
    name: str, nodes: int, env: dict[str, str], *, messages: bool, release: str = "2.28"
) -> list[Any]:
    """Return all that NCCL decides for all-reduces, and the schedule of an all-to-all if asked for."""
    return _plans(name, nodes, tuple(env.items()), messages, release)


@cache
def _plans(
    name: str, nodes: int, words: tuple[tuple[str, str], ...], messages: bool, release: str
) -> list[Any]:
    machine, env = machines(name, nodes), dict(words)
    ranks = (0, 1, 8, 9) if nodes > 1 and machine.num_ranks > 8 else None
    if "PAT" in "".join(env):
        ranks = (0, 8)
    comm = communicator(machine, parse_version(release), parse_env(env), ranks=ranks)
    found: list[Any] = [log_totals(comm), [graph.line() for graph in comm.graphs.values()]]
    found += [repr(comm.channels), repr(comm.table.costs)]
    found += [repr(comm.plan(Collective.ALLREDUCE, size)) for size in SIZES]
    some = (Collective.ALLREDUCE, Collective.ALLGATHER)
    for collective in some[: 1 if comm.settings.sym_kernel else 2]:
        if comm.settings.symmetric and not why_not(comm, SymmetricCall(collective, 8)):
            found += [repr(pick(comm, SymmetricCall(collective, size))) for size in SIZES]
    if messages:
        schedule = programs.build(machine, comm, programs.CollectivePayload("alltoall", 1 << 24))
        found.append(to_text(schedule))
    return found


def test_the_table_has_what_the_code_reads() -> None:
    obeyed = {name for name, known in VARIABLES.items() if known.effect == "obeyed"}
    assert obeyed == _READERS.keys() | _OLD_NAMES.keys()
    assert CHANGES.keys() | DATA_ONLY == _READERS.keys()
    assert not any(known.harmless for known in VARIABLES.values() if known.effect != "refused")


def test_the_page_of_variables_is_current() -> None:
    assert (ROOT / "docs" / "nccl-environment.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("variable", CHANGES)
def test_a_variable_that_is_read_changes_a_plan(variable: str) -> None:
    value, name, nodes, others = CHANGES[variable]
    messages = "P2P" in variable and "CHUNKSIZE" in variable
    release = "2.28" if VARIABLES[variable].read_by(parse_version("2.28")) else "2.30"
    without = plans(name, nodes, others, messages=messages, release=release)
    changed = {**others, variable: value}
    assert plans(name, nodes, changed, messages=messages, release=release) != without


VALUES = {
    **{name: value for name, (value, *_) in CHANGES.items()},
    **dict.fromkeys(("NCCL_NVB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NET_GDR_READ"), "1"),
    **{"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB", "NCCL_MNNVL_ENABLE": "1", "NCCL_IB_HCA": "nic"},
    **{"NCCL_IB_QPS_PER_CONNECTION": "2", "NCCL_IB_SPLIT_DATA_ON_QPS": "1"},
}


@pytest.mark.parametrize("variable", sorted(VALUES))
def test_an_obeyed_variable_changes_the_run_or_results_say_that_it_does_not(variable: str) -> None:
    """The same program on the same topology lasts the same time."""

    def planned(**env: str) -> Plan:
        setup = Setup("dgx-a100", env=tuple(env.items()))
        return plan(Request(setup, "allreduce", 1 << 16, algorithm="nccl"))

    refused = ""
    try:
        found, without = planned(**{variable: VALUES[variable]}), planned()
    except InputError as error:
        refused = str(error)
    if refused:
        assert variable in refused
        return
    same = found.schedule == without.schedule and found.topology == without.topology
    notes = "; ".join(found.program.notes)
    said = f"obeyed, without effect on this run: {variable}" in notes
    assert same == (said or f"not read by this release: {variable}" in notes), notes


def test_threads_that_change_no_channel_are_said_with_the_reason() -> None:
    setup = Setup("dgx-a100", env=(("NCCL_NTHREADS", "128"), ("NCCL_MAX_NCHANNELS", "2")))
    large = plan(Request(setup, "allreduce", 1 << 26, algorithm="nccl"))
    (note,) = (line for line in large.program.notes if line.startswith("obeyed"))
    assert note.startswith("obeyed, without effect on this run: NCCL_NTHREADS (threads limit")


@pytest.mark.parametrize("variable", ["NCCL_IB_MERGE_NICS", "NCCL_DEBUG"])
def test_a_variable_without_effect_is_said_in_text_and_json(variable: str) -> None:
    said = f"no effect on the simulation: {variable} ({VARIABLES[variable].reason})"
    word = f"{variable}=1"
    run = ("run", "a100x4-mesh", "--size", "64KiB", "--algorithm", "nccl", "--env", word)
    perf = ("nccl-tests", "all_reduce_perf", "a100x4-mesh", "-b", "8", "-e", "8")
    for command in (
        (*run, "--no-progress"),
        ("explain", "a100x4-mesh", "--size", "8", "--env", word),
        (*perf, "--jobs", "1", "--env", word),
    ):
        # Long notes are wrapped; comment lines of nccl-tests begin with #.
        text = " ".join(CliRunner().invoke(cli, command).stdout.replace("#", " ").split())
        assert said in text
        found = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
        assert said in found["notes"]


@pytest.mark.parametrize("variable", sorted(WITHOUT_EFFECT))
def test_variables_without_effect_change_no_setting_and_are_named(variable: str) -> None:
    settings = parse_env({variable: "1"})
    assert settings == parse_env({})
    assert settings.without_effect == (variable,)


REFUSED = [name for name, known in VARIABLES.items() if known.effect == "refused"]


@pytest.mark.parametrize("variable", REFUSED)
def test_refused_variables_say_why_and_accept_the_default(variable: str) -> None:
    known = VARIABLES[variable]
    with pytest.raises(InputError) as error:
        parse_env({variable: "77"})
    assert str(error.value).startswith(f"{variable}=77: not simulated: {known.reason}")
    for value in known.harmless:
        assert parse_env({variable: value}) == parse_env({})


def test_a_name_that_no_release_reads_is_unknown() -> None:
    with pytest.raises(
        InputError, match=r"NCCL_P2P_LEVELS: unknown NCCL variable; did you mean NCCL_P2P_LEVEL"
    ):
        parse_env({"NCCL_P2P_LEVELS": "NVL"})


def test_a_release_does_not_obey_a_variable_that_it_does_not_read() -> None:
    settings = parse_env({"NCCL_NVLS_CHUNKSIZE": "32K", "NCCL_BUFFSIZE": "1M"})
    old = settings.of_release(parse_version("2.19"))
    assert old.nvls_chunksize is None
    assert old.buffsize == 1 << 20
    assert settings.of_release(parse_version("2.28")) == settings
    comm = communicator(machines("dgx-a100", 1), parse_version("2.19"), settings)
    assert "not read by this release: NCCL_NVLS_CHUNKSIZE (2.21 on)" in comm.notes


def test_channels_bind_every_algorithm() -> None:
    machine = machines("dgx-h100", 1)
    for algorithm in ("Ring", "Tree", "NVLS"):
        env = dict(force_variables(algorithm, channels=3))
        comm = communicator(machine, parse_version("2.27"), parse_env(env))
        assert comm.plan(Collective.ALLREDUCE, 1 << 26).num_channels == 3
    ctas = parse_env({"NCCL_MAX_CTAS": "5"})
    assert communicator(machine, parse_version("2.20"), ctas).nvls_channels == 5
    rings = parse_env({"NCCL_MAX_NCHANNELS": "5"})  # of rings and trees only, as in NCCL
    assert communicator(machine, parse_version("2.27"), rings).nvls_channels == 16


@pytest.mark.parametrize(
    ("release", "runs"), [("2.17", True), ("2.20", True), ("2.23", True), ("2.24", False)]
)
@pytest.mark.parametrize("algorithm", ["NVLSTree", "CollNetChain"])
def test_ring_and_tree_come_back_where_nothing_else_can_run(
    algorithm: str, release: str, runs: bool
) -> None:
    settings = parse_env({"NCCL_ALGO": algorithm})
    comm = communicator(machines("dgx-h100", 1), parse_version(release), settings)
    if runs:
        assert comm.plan(Collective.ALLREDUCE, 1 << 16).selection.algorithm.value in (
            "Ring",
            "Tree",
        )
    else:
        with pytest.raises(InputError, match="no algorithm is left"):
            comm.plan(Collective.ALLREDUCE, 1 << 16)


def test_nvlstree_stays_on_several_nodes() -> None:
    settings = parse_env({"NCCL_ALGO": "NVLSTree"})
    ranks = (0, 1, 2, 3, 8, 9, 10, 11)
    comm = communicator(machines("dgx-h100", 2), parse_version("2.20"), settings, ranks=ranks)
    assert comm.plan(Collective.ALLREDUCE, 1 << 24).selection.algorithm.value == "NVLSTree"
