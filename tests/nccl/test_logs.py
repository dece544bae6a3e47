"""Graphs, channels, costs and choices against those that NCCL and RCCL logged.

A known difference is listed with its reason, and exactly: a case that matches better than listed fails too. ``-s``
prints the rates.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.nccl import logs
from tests.nccl.machines import POLARIS, TWO_SOCKETS

from clusim import topology
from clusim.base.errors import ClusimError
from clusim.nccl import (
    Collective,
    Communicator,
    communicator,
    parse_assignments,
    parse_env,
    parse_version,
)
from support.nccl_lines import log_totals
from support.realfiles import CORPUS, answers, real_files


@dataclass(frozen=True)
class Case:
    """A log, its system, and its known differences: the share of each that matches.

    `reverse` is the number of ranks if the run numbered the GPUs against the order of their bus.
    """

    file: str
    machine: str
    nodes: int = 1
    version: str = ""
    env: tuple[str, ...] = ()
    ranks: int | None = None
    reverse: int = 0
    known: tuple[tuple[str, float], ...] = ()


H100 = "wayne_h100_scaling_attributed"
P5 = "keitaw_p5_nccl-test-output-v2.22.3-1"
# Of the second tree of Polaris the first hop differs: 3 2 0 1 was logged, 3 1 0 2 is found.
MESH = (("trees", 0.5),)

CASES = [
    *[
        Case(
            f"{H100}_g{n}_{algo}.log",
            "dgx-h100",
            env=() if algo == "auto" else (f"NCCL_ALGO={algo}",),
            ranks=n,
        )
        for n in (2, 4, 6)
        for algo in ("auto", "Ring", "NVLS")
    ],
    Case(f"{P5}.log", "aws-p5", 2),
    Case(f"{P5}-with-tuner.log", "aws-p5", 2),
    Case("msccltools_ap1_nop.xml.txt", "dgx-a100", reverse=8),
    Case("msccltools_ap2_nop.xml.txt", "dgx-a100", reverse=8),
    Case("panlichen_3090_log.log", "rtx3090x8-edr56", 2),
    Case("panlichen_3090_log27.log", "rtx3090x8-edr56", 2, "2.18.1"),
    # 2.12 did not ask the driver, so it counted on peer access that these cards do not have.
    Case("panlichen_3090_4nodes_algo_info.log", "rtx3090x8-edr56", 4),
    Case("rcabench_2gpu_2.21.5.log", TWO_SOCKETS, env=("NCCL_P2P_LEVEL=LOC",)),
    *[
        Case(f"alcf_train_{run}.log", POLARIS, 2, env=env, known=MESH)
        for run, env in (
            ("VAE_2024-11-08-21-21-27_with_aws", ("NCCL_CROSS_NIC=1",)),
            ("VAE_2024-11-08-21-21-45_with_aws", ("NCCL_CROSS_NIC=1",)),
            ("resnet50_2025-06-26-13-13-06_with_aws", ("NCCL_CROSS_NIC=1",)),
            ("resnet50_2025-06-26-13-13-06_without_aws", ()),
            ("resnet50_2025-06-27-09-51-31_without_aws", ()),
        )
    ],
    # 2.4 had no graph search; what stands in for it finds one channel in another order.
    Case("cybertron_p3dn_nccltest.log", "aws-p3dn", 2, known=(("rings", 0.0),)),
    # The log does not name the GPUs; all servers with eight of them on NVSwitches and 400 Gb/s NICs choose the same.
    Case("idx_sglang_16gpu_roce_2.27.5_excerpt.log", "hgx-h100-ndr", 2, "2.27.5"),
    Case("idx_rccl_coll_trace_excerpt.log", "mi300x", version="2.22"),
]
CASES = [case for case in CASES if (CORPUS / "nccl_logs" / case.file).exists()]
CHOICES = sorted({row["file"] for row in answers("choices")})


def score(log: logs.Log, comm: Communicator, reverse: int = 0) -> Iterator[tuple[str, int, int]]:
    """Yield what was compared, how much of it came out, and how much there was."""
    channels = comm.channels

    def rank(number: int) -> int:
        return reverse - 1 - number if reverse and number >= 0 else number

    hits = sum(
        number < len(channels) and logs.same_ring([rank(r) for r in ring], channels[number].ring)
        for number, ring in log.rings.items()
    )
    yield "rings", hits, len(log.rings)
    entries = [(c, r, *rest) for c, tree in log.trees.items() for r, rest in tree.items()]
    hits = sum(
        c < len(channels)
        and channels[c].parent[rank(r)] == rank(up)
        and sorted(channels[c].children[rank(r)]) == sorted(rank(d) for d in down)
        for c, r, up, down in entries
    )
    yield "trees", hits, len(entries)
    lines = {graph.line() for graph in comm.graphs.values()}
    yield "graphs", sum(line in lines for line in log.patterns), len(log.patterns)
    mine = log_totals(comm)
    for unprinted in (" collnet", " nvls"):
        if all(unprinted not in total for total in log.totals):
            mine = re.sub(rf" \d+{unprinted} channels,", "", mine)
    yield "totals", sum(total == mine for total in log.totals), len(log.totals)
    heads = {head: list(ranks) for head, ranks in enumerate(comm.nvls_heads)}
    yield "heads", sum(heads.get(h) == r for h, r in log.heads.items()), len(log.heads)
    hits = 0
    for key, (latency, bandwidth) in log.costs.items():
        cost = comm.table.costs[key]
        shown = (f"{cost.latency_us:.1f}", f"{cost.bandwidth_GBps:.1f}")
        hits += shown == (f"{latency:.1f}", f"{bandwidth:.1f}")
    yield "costs", hits, len(log.costs)


def choices(
    rows: list[dict[str, str]], log: logs.Log, comm: Communicator
) -> Iterator[tuple[str, int, int]]:
    """Yield the number of logged choices and times that clusim finds, and their totals; `rows` are right."""
    hits = Counter[str]()
    for row in rows:
        size, time_us = int(row["bytes"]), row["time_us"]
        plan = comm.plan(Collective(row["collective"]), size)
        chosen = (plan.selection.algorithm.value, plan.selection.protocol.value)
        count = row["channels"] or str(plan.num_channels)
        right = (row["algorithm"], row["protocol"], int(count))
        hits["choices"] += (*chosen, plan.num_channels) == right
        if time_us:
            modelled_us = comm.select(Collective(row["collective"]), size).time_us
            hits["times"] += abs(modelled_us - float(time_us)) <= 1e-5 * float(time_us)
    yield "choices", hits["choices"], len(rows)
    yield "times", hits["times"], sum(bool(row["time_us"]) for row in rows)
    # The reader of these tests finds the same choices.
    read = {(s, a.value, p.value, str(n)) for s, a, p, n in log.choices}
    read |= {(s, a.value, p.value, "") for s, (a, p, _) in log.times.items()}
    right = {(int(r["bytes"]), r["algorithm"], r["protocol"], r["channels"]) for r in rows}
    yield "choices read", len(read & right), max(len(read), len(log.choices) + len(log.times))


def machine_of(case: Case, tmp_path: Path) -> topology.Fabric:
    """Return the fabric of a case."""
    name = case.machine
    if "\n" in name:
        path = tmp_path / "machine.yaml"
        path.write_text(name)
        name = str(path)
    return topology.load(name, nodes=case.nodes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.file))
def test_log(case: Case, tmp_path: Path) -> None:
    path = CORPUS / "nccl_logs" / case.file
    log = logs.read(path.read_text(encoding="utf-8", errors="replace"))
    comm = communicator(
        machine_of(case, tmp_path),
        parse_version(case.version or log.version),
        parse_env(parse_assignments(case.env)),
        ranks=range(case.ranks) if case.ranks else None,
    )
    known, compared = dict(case.known), 0
    rows = [row for row in answers("choices") if row["file"] == case.file]
    for what, hits, total in (*score(log, comm, case.reverse), *choices(rows, log, comm)):
        compared += total
        if total:
            print(f"  {what} {hits}/{total}", end="")
            assert hits == known.get(what, 1.0) * total, f"{what}: {hits} of {total}"
    assert compared


def test_every_log_with_choices_is_a_case() -> None:
    assert {case.file for case in CASES} >= set(CHOICES)


def sections(text: str) -> Iterator[tuple[int, bool, str]]:
    """Yield number of nodes, whether one GPU of each was used, and the lines of every forced ring run."""
    for part in re.split(r"(?m)^# (?=\d+nodes)", text)[1:]:
        nodes = int(part.split("nodes")[0])
        for section in re.split(r"(?m)^## ", part)[1:]:
            title, _, body = section.partition("\n")
            if title.startswith("Ring"):
                yield nodes, "0x7" in title, body


def test_rings_and_trees_of_many_nodes() -> None:
    path = CORPUS / "nccl_logs" / "ncclgauge_p5en_rings_trees_excerpt.txt"
    for nodes, lone, body in sections(path.read_text(encoding="utf-8")):
        whole = "\n".join(line for line in body.splitlines() if "..." not in line)
        ranks = range(0, 8 * nodes, 8) if lone else None
        settings = parse_env({"NCCL_MIN_NCHANNELS": "16"})
        fabric_ = topology.load("aws-p5en", nodes=nodes)
        comm = communicator(fabric_, parse_version("2.30.4"), settings, ranks=ranks)
        found = {what: (hits, total) for what, hits, total in score(logs.read(whole), comm)}
        assert found["trees"][0] == found["trees"][1] > 0
        assert found["rings"][0] == found["rings"][1] > 0


@pytest.mark.parametrize("path", real_files("topo_xml"), ids=lambda path: str(path.name))
def test_every_topology_can_be_searched(path: Path) -> None:
    machine = topology.load(path)
    if machine.num_ranks == 1:
        with pytest.raises(ClusimError, match="one GPU"):
            communicator(machine, parse_version("2.27"))
        return
    comm = communicator(machine, parse_version("2.27"))
    for collective in Collective:
        assert comm.plan(collective, 1 << 20).num_channels >= 1
    assert len(comm.channels) == comm.num_channels
    for channel in comm.channels:
        assert sorted(channel.ring) == list(range(comm.group.num_ranks))
        assert channel.parent.count(-1) == 1
