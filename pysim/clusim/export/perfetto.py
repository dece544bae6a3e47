"""A trace for the Perfetto UI (https://ui.perfetto.dev) and trace_processor, as protobuf.

Tracks: the fabric, below it the machines if there are several, below these their nodes; below the node of a rank its
streams and, if the trace holds slices, its channels, with an arrow from a send to the receive that waited for it, and
the memory traffic that communication causes. Below each machine (and, for wires between switches, below the fabric)
the wires that carried anything, by class, with counters of load, credit stalls and queue. Perfetto's clock has
nanoseconds: times are rounded down to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from clusim.export import protobuf as pb
from clusim.export.run import Piece, Run, TaskRow
from clusim.files import replacing
from clusim.units import format_size

__all__ = ["Counts", "write_perfetto"]

Array = NDArray[Any]

PS_PER_NS = 1000

# Numbers of fields and values in Perfetto's definitions.
_PACKET, _TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 1, 8, 10, 11, 12, 13, 60
_CLEARED, _NEEDS_STATE = 1, 2
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_EXPLICIT_ORDER = 3
_ROOT = 1


@dataclass(slots=True)
class Counts:
    """What was written."""

    tracks: int = 0
    slices: int = 0
    arrows: int = 0
    samples: int = 0


@dataclass(slots=True)
class _Writer:
    """Writes packets of one sequence; names are sent once and then called by number."""

    out: BinaryIO
    counts: Counts = field(default_factory=Counts)
    names: dict[tuple[int, str], int] = field(default_factory=dict)
    started: bool = False

    def packet(self, *parts: bytes) -> None:
        flags = _NEEDS_STATE if self.started else _NEEDS_STATE | _CLEARED
        self.started = True
        head = pb.number(_SEQUENCE, 1) + pb.number(_FLAGS, flags)
        self.out.write(pb.field(_PACKET, head, *parts))

    def track(self, parent: int, name: str, order: int, counter: bytes | None = None) -> int:
        """Add a track below another and return its number."""
        self.counts.tracks += 1
        uuid = _ROOT + self.counts.tracks
        parts = [pb.number(1, uuid), pb.text(2, name), pb.number(11, _EXPLICIT_ORDER)]
        parts.append(pb.number(12, order))
        if parent:
            parts.append(pb.number(5, parent))
        if counter is not None:
            parts.append(pb.field(8, counter))
        self.packet(pb.field(_TRACK, *parts))
        return uuid

    def name(self, kind: int, name: str) -> int:
        """Return the number of a name of an event (2), a category (1) or an argument (3)."""
        number = self.names.get((kind, name))
        if number is None:
            number = self.names[kind, name] = len(self.names) + 1
            entry = pb.field(kind, pb.number(1, number), pb.text(2, name))
            self.packet(pb.field(_INTERNED, entry))
        return number

    def slice(
        self, track: int, span: tuple[int, int], name: str, category: str, more: bytes
    ) -> None:
        """Add a slice from begin to end [ps]; `more` are further fields of its event."""
        self.counts.slices += 1
        head = pb.number(11, track)
        named = pb.number(10, self.name(2, name)) + pb.number(3, self.name(1, category))
        low, high = (pb.number(_TIMESTAMP, time // PS_PER_NS) for time in span)
        if span[0] == span[1]:
            self.packet(low, pb.field(_EVENT, pb.number(9, _INSTANT), head, named, more))
            return
        self.packet(low, pb.field(_EVENT, pb.number(9, _BEGIN), head, named, more))
        self.packet(high, pb.field(_EVENT, pb.number(9, _END), head))

    def argument(self, name: str, value: int | str) -> bytes:
        """Return an argument of an event."""
        key = pb.number(1, self.name(3, name))
        shown = pb.text(6, value) if isinstance(value, str) else pb.number(4, value)
        return pb.field(4, key, shown)

    def samples(self, track: int, edge_ps: Array, values: Array) -> None:
        """Add a counter's values from edge to edge [ps], leaving out those that are as the one before."""
        keep = np.append(True, values[1:] != values[:-1])
        head = pb.number(9, _COUNTER) + pb.number(11, track)
        times = (edge_ps[:-1][keep] // PS_PER_NS).tolist()
        for time, value in zip(times, values[keep].tolist(), strict=True):
            self.packet(pb.number(_TIMESTAMP, time), pb.field(_EVENT, head, pb.real(44, value)))
        last = int(edge_ps[-1]) // PS_PER_NS
        self.packet(pb.number(_TIMESTAMP, last), pb.field(_EVENT, head, pb.real(44, 0.0)))
        self.counts.samples += len(times) + 1


def write_perfetto(
    path: str | Path, target: Path, *, slices: bool = True, counters: bool = True
) -> Counts:
    """Write the trace at `path` to `target` and return what was written.

    Parameters
    ----------
    slices : bool
        Write completed slices on tracks of channels, with arrows, if the trace holds them.
    counters : bool
        Write the histories of wires and memories.
    """
    run = Run.open(path)
    with replacing(target, [path]) as out:
        writer = _Writer(out)
        _write(writer, run, slices=slices, counters=counters)
    return writer.counts


def _write(writer: _Writer, run: Run, *, slices: bool, counters: bool) -> None:
    nodes = _Nodes(writer, run)
    tracks: dict[tuple[int, str], int] = {}
    for tasks in run.by_rank():
        _write_tasks(writer, run, nodes, tasks, tracks)
    if slices and run.has_pieces():
        _write_pieces(writer, run, nodes)
    if counters:
        _write_memory(writer, run, nodes)
        _write_wires(writer, run, nodes)


class _Nodes:
    """Tracks of nodes, below their machine if there are several; only those under which something is shown."""

    def __init__(self, writer: _Writer, run: Run) -> None:
        ranks = [run.rank_name(rank) for rank in range(run.num_ranks)]
        others = [name for name in run.inputs.nodes if name not in set(ranks)]
        self._order = {name: place for place, name in enumerate([*ranks, *others])}
        self._writer = writer
        self._root = writer.track(0, run.result.provenance.fabric, 0)
        self._tracks: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        if name not in self._tracks:
            machine, _, own = name.rpartition("/")
            parent = self.machine(machine)
            self._tracks[name] = self._writer.track(parent, own, self._order[name])
        return self._tracks[name]

    def machine(self, name: str) -> int:
        """Return the track of a machine of a cluster, or of the fabric if it has no name."""
        if not name:
            return self._root
        if name not in self._tracks:
            order = min(place for node, place in self._order.items() if node.startswith(f"{name}/"))
            self._tracks[name] = self._writer.track(self._root, name, order)
        return self._tracks[name]


def _write_tasks(
    writer: _Writer,
    run: Run,
    nodes: _Nodes,
    tasks: list[TaskRow],
    tracks: dict[tuple[int, str], int],
) -> None:
    for task in tasks:
        key = (task.rank, task.stream)
        if key not in tracks:
            tracks[key] = writer.track(
                nodes[run.rank_name(task.rank)], f"stream {task.stream}", len(tracks)
            )
        more = writer.argument("rank", task.rank)
        if task.call >= 0:
            size = int(run.inputs.numbers("calls/bytes")[task.call])
            more += writer.argument("bytes", size) + writer.argument("size", format_size(size))
            more += writer.argument("algorithm", run.inputs.texts("calls/algorithm")[task.call])
        writer.slice(tracks[key], (task.start_ps, task.end_ps), task.name, task.kind, more)


def _write_pieces(writer: _Writer, run: Run, nodes: _Nodes) -> None:
    tracks = _channel_tracks(writer, run, nodes)
    for piece in run.pieces():
        writer.slice(
            tracks(piece.track),
            (piece.start_ps, piece.end_ps),
            piece.name,
            "slice",
            _details(writer, piece),
        )


def _details(writer: _Writer, piece: Piece) -> bytes:
    more = writer.argument("bytes", piece.size_bytes)
    if piece.sends_to >= 0:
        more += writer.argument("to rank", piece.sends_to)
    if piece.gets_from >= 0:
        more += writer.argument("from rank", piece.gets_from)
    if piece.flow:
        more += pb.fixed64(47, piece.flow)
    if piece.source_flow:
        more += pb.fixed64(48, piece.source_flow)
        writer.counts.arrows += 1
    return more


def _channel_tracks(writer: _Writer, run: Run, nodes: _Nodes) -> Callable[[int], int]:
    """Return what finds the track of an instance: one for each rank, stream and channel, and each role in it.

    Instances of one task and channel run side by side (a send and a receive): the first of every task share a track,
    the second another one.
    """
    numbers = run.inputs.numbers
    channel, task = numbers("instances/channel"), numbers("instances/task")
    rank, streams = numbers("tasks/rank"), run.inputs.texts("tasks/stream")
    seen: dict[tuple[int, int], int] = {}
    keys = []
    for own_task, own_channel in zip(task.tolist(), channel.tolist(), strict=True):
        role = seen[own_task, own_channel] = seen.get((own_task, own_channel), -1) + 1
        keys.append((int(rank[own_task]), streams[own_task], own_channel, role))
    order = {key: place for place, key in enumerate(sorted(set(keys)))}
    tracks: dict[Any, int] = {}

    def find(instance: int) -> int:
        key = keys[instance]
        if key not in tracks:
            below = nodes[run.rank_name(key[0])]
            role = f" ({key[3] + 1})" if key[3] else ""
            tracks[key] = writer.track(below, f"{key[1]} channel {key[2]}{role}", 1000 + order[key])
        return tracks[key]

    return find


def _unit(name: str) -> bytes:
    return pb.text(6, name)


def _write_memory(writer: _Writer, run: Run, nodes: _Nodes) -> None:
    bins = run.result.bins
    width = np.maximum(np.diff(bins.edge_ps), 1)
    endpoint_nodes = run.inputs.image["endpoints"]["node"]
    for endpoint, row in enumerate(bins.hbm_bytes):
        if row.any():
            name = run.inputs.nodes[int(endpoint_nodes[endpoint])]
            track = writer.track(
                nodes[name], "memory traffic of communication", 9000, _unit("GB/s")
            )
            writer.samples(track, bins.edge_ps, np.round(row * 1e3 / width, 3))


def _write_wires(writer: _Writer, run: Run, nodes: _Nodes) -> None:
    """Write the wires that carried anything: below their machine, or the network, by class, after its mean."""
    bins, wires = run.result.bins, run.result.wires
    width = np.maximum(np.diff(bins.edge_ps), 1)
    places: dict[tuple[str, str], list[int]] = {}
    for wire, name in enumerate(wires.names):
        if any(bins.wires[column][wire].any() for column in ("busy", "stall_credit", "queue")):
            ends = name.rpartition(".")[0].split("->")
            # A wire between a machine and the network belongs to the machine.
            machine = next(filter(None, (end.rpartition("/")[0] for end in ends)), "")
            places.setdefault((machine, wires.classes[wire]), []).append(wire)
    several = any(machine for machine, _ in places)
    parents: dict[str, int] = {}
    for order, ((machine, wire_class), mine) in enumerate(places.items()):
        if machine not in parents:
            title = "network" if several and not machine else "wires"
            parents[machine] = writer.track(nodes.machine(machine), title, 10000)
        group = writer.track(parents[machine], wire_class.replace("->", " -> "), order)
        if len(mine) > 1:
            values = bins.wires["busy"][mine].mean(axis=0)
            track = writer.track(group, f"mean load of {len(mine)} wires", 0, _unit("%"))
            writer.samples(track, bins.edge_ps, np.round(100 * values / width, 1))
        for place, wire in enumerate(mine):
            name = wires.names[wire].replace(f"{machine}/", "") if machine else wires.names[wire]
            for number, (title, unit, values) in enumerate(
                _counters(bins.wires, wire, bins.edge_ps)
            ):
                track = writer.track(group, f"{name}: {title}", 4 * place + number + 1, _unit(unit))
                writer.samples(track, bins.edge_ps, values)


def _counters(
    tables: dict[str, Array], wire: int, edge_ps: Array
) -> Iterator[tuple[str, str, Array]]:
    """Yield title, unit and values of the histories of a wire that are not all nothing."""
    width = np.maximum(np.diff(edge_ps), 1)
    for column, title in (("busy", "load"), ("stall_credit", "no credit")):
        values = tables[column][wire]
        if values.any():
            yield title, "%", np.round(100 * values / width, 1)
    if tables["queue"][wire].any():
        yield "queue", "B", tables["queue"][wire].astype(np.float64)
