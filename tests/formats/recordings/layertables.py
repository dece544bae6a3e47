"""Small workloads of ASTRA-sim and SimAI for tests."""

from __future__ import annotations

from pathlib import Path

from clusim.formats.recordings import Recording
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from clusim.replays.report import Replay

NONE = ("NONE", 0)
START = 1
"""What a kernel takes beyond its computing [ps]."""

Comm = tuple[str, int]


def layer(
    name: str = "layer",
    forward: int = 0,
    input_grad: int = 0,
    weight_grad: int = 0,
    *,
    f: Comm = NONE,
    i: Comm = NONE,
    w: Comm = NONE,
    update: int = 0,
    policy: str = "",
) -> str:
    """Return a line of a table: computing [ns], then communication and size of each part."""
    words = [name, -1, forward, *f, input_grad, *i, weight_grad, *w, update, policy]
    return "\t".join(str(word) for word in words).rstrip()


def table(path: Path, head: str, *layers: str) -> str:
    """Write a workload; returns its name."""
    name = path / "workload.txt"
    name.write_text("\n".join([head, str(len(layers)), *layers]) + "\n")
    return str(name)


def total(name: str, topology: str = "dgx-h100", nodes: int | None = None) -> int:
    """Return how long a workload takes [ps]."""
    return whole(name, topology, nodes).total_ps


def whole(name: str, topology: str = "dgx-h100", nodes: int | None = None) -> Replay:
    """Replay a workload."""
    return replay(ReplayRequest((name,), topology=topology, nodes=nodes))


def rank_events(found: Recording, rank: int = 0) -> list[str]:
    """Return what a rank does, with what it waits for, in short."""
    own = [e for e in found.events if e.rank == rank]
    first = found.events.index(own[0])
    return [
        f"{e.name}{'' if e.kind != 'collective' else ' ' + e.stream}"
        + (" <- " + " ".join(str(d - first) for d in e.deps) if e.deps else "")
        for e in own
    ]
