"""Reads what NCCL logs say of graphs, channels, costs and choices."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from clusim.base.terms.operations import ALGORITHMS, PROTOCOLS, Algorithm, Collective, Protocol

ALGOS = {a.value.upper().replace("COLLNETDIRECT", "COLLNET_DIRECT"): a for a in ALGORITHMS}
ALGOS |= {"NVLS_TREE": Algorithm.NVLS_TREE, "COLLNET_CHAIN": Algorithm.COLLNET_CHAIN}
PROTOS = {p.value.upper(): p for p in PROTOCOLS}


@dataclass
class Log:
    """What one log says."""

    version: str = ""
    num_ranks: int = 0
    rings: dict[int, list[int]] = field(default_factory=dict)
    trees: dict[int, dict[int, tuple[int, tuple[int, ...]]]] = field(default_factory=dict)
    patterns: list[str] = field(default_factory=list)
    totals: set[str] = field(default_factory=set)
    thresholds: set[str] = field(default_factory=set)
    heads: dict[int, list[int]] = field(default_factory=dict)
    costs: dict[tuple[Collective, Algorithm, Protocol], tuple[float, float]] = field(
        default_factory=dict
    )
    choices: set[tuple[int, Algorithm, Protocol, int]] = field(default_factory=set)
    times: dict[int, tuple[Algorithm, Protocol, float]] = field(default_factory=dict)


def read(text: str) -> Log:
    """Return what the lines of a log say; the first rank that prints something is believed."""
    log = Log()
    algorithms: list[Algorithm] = []
    collectives = {c.value: c for c in Collective}
    for line in text.splitlines():
        body = line.partition("NCCL INFO ")[2] or line
        if match := re.search(r"NCCL version (\d+\.\d+\.\d+)", line):
            log.version = log.version or match[1]
        if match := re.search(r"nranks (\d+)|nRanks (\d+)", line):
            log.num_ranks = log.num_ranks or int(match[1] or match[2])
        if match := re.match(r"Channel (\d+)(?:/\d+)? : +(\d+(?: +\d+)+)\s*$", body):
            log.rings.setdefault(int(match[1]), [int(r) for r in match[2].split()])
        if body.startswith("Trees ["):
            pattern = r"\[(\d+)\] (-?\d+)/(-?\d+)/(-?\d+)->(\d+)->(-?\d+)"
            for channel, *down, rank, up in re.findall(pattern, body):
                below = tuple(int(d) for d in down if d != "-1")
                log.trees.setdefault(int(channel), {})[int(rank)] = (int(up), below)
        if match := re.match(r"Tree (\d+) : (-?\d+) -> (\d+) -> (-?\d+)/(-?\d+)/(-?\d+)", body):
            channel, up, rank, *down = (int(n) for n in match.groups())
            log.trees.setdefault(channel, {})[rank] = (up, tuple(d for d in down if d != -1))
        if body.startswith("Pattern ") and body not in log.patterns:
            log.patterns.append(body.strip())
        if match := re.match(r"(\d+ coll channels.*per peer)\s*$", body):
            log.totals.add(match[1])
        if match := re.match(r"threadThresholds (.*\S)", body):
            log.thresholds.add(match[1])
        if match := re.match(r"NVLS Head +(\d+): +(\d+(?: +\d+)*)", body):
            log.heads[int(match[1])] = [int(r) for r in match[2].split()]
        cells = [cell.strip() for cell in body.split("|")]
        if cells[0] == "Algorithm":
            algorithms = [Algorithm(cell) for cell in cells[1:] if cell]
        if cells[0] in collectives and len(cells) > 3 and algorithms:
            for place, cell in enumerate(cell for cell in cells[1:] if cell):
                latency, _, bandwidth = cell.partition("/")
                key = (collectives[cells[0]], algorithms[place // 3], PROTOCOLS[place % 3])
                log.costs.setdefault(key, (float(latency), float(bandwidth)))
        pattern = r"AllReduce: (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}"
        if match := re.search(pattern, line):
            size, algo, proto, low, high = match.groups()
            log.choices.add((int(size), ALGOS[algo], PROTOS[proto], int(high) - int(low) + 1))
        if match := re.search(r"(\d+) Bytes -> Algo (\d) proto (\d) time ([\d.]+)", line):
            key = (ALGORITHMS[int(match[2])], PROTOCOLS[int(match[3])], float(match[4]))
            log.times[int(match[1])] = key
    return log


def same_ring(a: list[int] | tuple[int, ...], b: list[int] | tuple[int, ...]) -> bool:
    """Return whether two rings are the same up to where they start and which way they go."""
    if len(a) != len(b) or set(a) != set(b):
        return False
    start = list(b).index(a[0])
    turned = [*b[start:], *b[:start]]
    return list(a) in (turned, [turned[0], *reversed(turned[1:])])
