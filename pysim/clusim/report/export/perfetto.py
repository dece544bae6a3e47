"""A trace for the Perfetto UI (https://ui.perfetto.dev) and trace_processor, as protobuf.

Tracks: the fabric, below it the machines if there are several, below these their nodes; below the node of a rank its
streams and, if the trace holds slices, its channels, with an arrow from a send to the receive that waited for it, and
the memory traffic that communication causes. Below each machine (and, for wires between switches, below the fabric)
the wires that carried anything, by class, with counters of load, credit stalls and queue. Below the node of a sender
the flows with rate control: payload rate, rate limit, window, round trip and marks. Perfetto's clock has
nanoseconds: times are rounded down to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clusim.analysis.tasks import RankTasks
from clusim.base.arrays import Array
from clusim.base.files import replacing
from clusim.base.units import format_size
from clusim.report.export.perfetto_packets import (
    PS_PER_NS,
    Counts,
    PacketWriter,
    TrackEvent,
    pb_fixed64,
    pb_text,
)
from clusim.report.export.run import Piece, Run
from clusim.results.replicated import KINDS


def write_perfetto(
    path: str | Path, target: Path, *, slices: bool = True, counters: bool = True
) -> Counts:
    """Write the trace at `path` to `target` and return a summary of the output.

    Parameters
    ----------
    slices : bool
        Write completed slices on tracks of channels, with arrows, if the trace holds them.
    counters : bool
        Write the histories of wires, memories and flows.
    """
    run = Run.open(path)
    with replacing(target, [path]) as out:
        writer = PacketWriter(out)
        _write(writer, run, slices=slices, counters=counters)
    return writer.counts


def _write(writer: PacketWriter, run: Run, *, slices: bool, counters: bool) -> None:
    nodes = _Nodes(writer, run)
    tasks = _Tasks(writer, run, nodes)
    tasks.write()
    if slices and run.has_pieces():
        _write_pieces(writer, run, nodes)
    if counters:
        _write_memory(writer, run, nodes)
        _write_wires(writer, run, nodes)
        _write_flows(writer, run, nodes)


class _Nodes:
    """Tracks of graph nodes, below their server if there are several; empty tracks are omitted."""

    def __init__(self, writer: PacketWriter, run: Run) -> None:
        names = dict.fromkeys(run.rank_name(rank) for rank in range(run.num_ranks))
        names.update(dict.fromkeys(run.inputs.nodes))
        self._order = {name: place for place, name in enumerate(names)}
        self._machines: dict[str, int] = {}
        for name, place in self._order.items():
            while name := name.rpartition("/")[0]:
                self._machines.setdefault(name, place)
        self._writer = writer
        self._root = writer.track(0, run.result.provenance.fabric, 0)
        self._tracks: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        if name not in self._tracks:
            machine, _, local = name.rpartition("/")
            parent = self.machine(machine)
            self._tracks[name] = self._writer.track(parent, local, self._order[name])
        return self._tracks[name]

    def machine(self, name: str) -> int:
        """Return the track of a node of a cluster, or of the system if it has no name."""
        if not name:
            return self._root
        if name not in self._tracks:
            self._tracks[name] = self._writer.track(
                self._root, name, self._machines[name]
            )
        return self._tracks[name]


class _Tasks:
    """Writer of the tasks of ranks; tasks that differ only in time share one event."""

    def __init__(self, writer: PacketWriter, run: Run, nodes: _Nodes) -> None:
        self._writer, self._run, self._nodes = writer, run, nodes
        self._streams: dict[tuple[int, str], int] = {}
        self._tasks = run.columns()
        number_of_call: dict[tuple[int, str], int] = {}
        if self._tasks is not None:
            sizes = run.inputs.numbers("calls/bytes").tolist()
            calls = zip(sizes, run.inputs.texts("calls/algorithm"), strict=True)
            self._call = np.array(
                [
                    number_of_call.setdefault(call, len(number_of_call))
                    for call in calls
                ]
                + [-1]
            )
        self._calls = list(number_of_call)

    def write(self) -> None:
        """Write the tasks of all ranks."""
        for tasks in self._tasks or ():
            # The last call is the placeholder of tasks without a call.
            columns = (tasks.stream, tasks.name, tasks.kind, self._call[tasks.call])
            rows, first, which = np.unique(
                np.stack(columns), axis=1, return_index=True, return_inverse=True
            )
            order = np.argsort(first)
            places = np.argsort(order)[which.ravel()]
            events = [self._event(tasks, *row) for row in rows[:, order].T.tolist()]
            self._writer.slices(events, places, tasks.start_ps, tasks.end_ps)

    def _event(
        self, tasks: RankTasks, stream: int, name: int, kind: int, call: int
    ) -> TrackEvent:
        assert self._tasks is not None
        more = self._writer.argument("rank", tasks.rank)
        if call >= 0:
            size, algorithm = self._calls[call]
            more += self._writer.argument("bytes", size)
            more += self._writer.argument("size", format_size(size))
            more += self._writer.argument("algorithm", algorithm)
        track = self._stream(tasks.rank, self._tasks.streams[stream])
        return TrackEvent(track, self._tasks.names[name], KINDS[kind], more)

    def _stream(self, rank: int, stream: str) -> int:
        key = rank, stream
        if key not in self._streams:
            below = self._nodes[self._run.rank_name(rank)]
            self._streams[key] = self._writer.track(
                below, f"stream {stream}", len(self._streams)
            )
        return self._streams[key]


def _write_pieces(writer: PacketWriter, run: Run, nodes: _Nodes) -> None:
    tracks = _channel_tracks(writer, run, nodes)
    for piece in run.pieces():
        event = TrackEvent(
            tracks(piece.track), piece.name, "slice", _details(writer, piece)
        )
        writer.slice(event, piece.start_ps, piece.end_ps)


def _details(writer: PacketWriter, piece: Piece) -> bytes:
    more = writer.argument("bytes", piece.size_bytes)
    if piece.sends_to >= 0:
        more += writer.argument("to rank", piece.sends_to)
    if piece.gets_from >= 0:
        more += writer.argument("from rank", piece.gets_from)
    if piece.flow:
        more += pb_fixed64(47, piece.flow)
    if piece.source_flow:
        more += pb_fixed64(48, piece.source_flow)
        writer.counts.arrows += 1
    return more


def _channel_tracks(
    writer: PacketWriter, run: Run, nodes: _Nodes
) -> Callable[[int], int]:
    """Return a function from instances to tracks, one per rank, stream, channel and role.

    Instances of one task and channel run side by side (a send and a receive): the first of every task share
    a track, the second another one.
    """
    numbers = run.inputs.numbers
    channel, task = numbers("instances/channel"), numbers("instances/task")
    rank, streams = numbers("tasks/rank"), run.inputs.texts("tasks/stream")
    last_role: dict[tuple[int, int], int] = {}
    keys = []
    for own_task, own_channel in zip(task.tolist(), channel.tolist(), strict=True):
        role = last_role[own_task, own_channel] = (
            last_role.get((own_task, own_channel), -1) + 1
        )
        keys.append((int(rank[own_task]), streams[own_task], own_channel, role))
    order = {key: place for place, key in enumerate(sorted(set(keys)))}
    tracks: dict[Any, int] = {}

    def find(instance: int) -> int:
        key = keys[instance]
        if key not in tracks:
            below = nodes[run.rank_name(key[0])]
            role = f" ({key[3] + 1})" if key[3] else ""
            tracks[key] = writer.track(
                below, f"{key[1]} channel {key[2]}{role}", 1000 + order[key]
            )
        return tracks[key]

    return find


def _unit(name: str) -> bytes:
    return pb_text(6, name)


def _write_memory(writer: PacketWriter, run: Run, nodes: _Nodes) -> None:
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


def _write_wires(writer: PacketWriter, run: Run, nodes: _Nodes) -> None:
    """Write the wires with traffic: below their node or the network, by class, after its mean."""
    bins, wires = run.result.bins, run.result.wires
    width = np.maximum(np.diff(bins.edge_ps), 1)
    places: dict[tuple[str, str], list[int]] = {}
    for wire, name in enumerate(wires.names):
        if any(
            bins.wires[column][wire].any()
            for column in ("busy", "stall_credit", "queue")
        ):
            ends = name.rpartition(".")[0].split("->")
            # A wire between a node and the network belongs to the node.
            machine = next(
                filter(None, (end.rpartition("/")[0] for end in ends)), ""
            )
            places.setdefault((machine, wires.classes[wire]), []).append(wire)
    several = any(machine for machine, _ in places)
    parents: dict[str, int] = {}
    for order, ((machine, wire_class), mine) in enumerate(places.items()):
        if machine not in parents:
            title = "network" if several and not machine else "wires"
            parents[machine] = writer.track(nodes.machine(machine), title, 10000)
        group = writer.track(
            parents[machine], wire_class.replace("->", " -> "), order
        )
        if len(mine) > 1:
            values = bins.wires["busy"][mine].mean(axis=0)
            track = writer.track(
                group, f"mean load of {len(mine)} wires", 0, _unit("%")
            )
            writer.samples(track, bins.edge_ps, np.round(100 * values / width, 1))
        for place, wire in enumerate(mine):
            name = (
                wires.names[wire].replace(f"{machine}/", "")
                if machine
                else wires.names[wire]
            )
            for number, (title, unit, values) in enumerate(
                _counters(bins.wires, wire, bins.edge_ps)
            ):
                track = writer.track(
                    group, f"{name}: {title}", 4 * place + number + 1, _unit(unit)
                )
                writer.samples(track, bins.edge_ps, values)


def _write_flows(writer: PacketWriter, run: Run, nodes: _Nodes) -> None:
    """Write the flows with rate control that sent payload, below their senders."""
    flows, edge_ps = run.result.bins.flows, run.result.bins.edge_ps
    width_ps = np.maximum(np.diff(edge_ps), 1)
    endpoint_nodes = run.inputs.image["endpoints"]["node"]
    for row, name in enumerate(flows.names):
        values = {column: table[row] for column, table in flows.tables.items()}
        if not values["sent"].any():
            continue
        below = nodes[run.inputs.nodes[int(endpoint_nodes[flows.source[row]])]]
        counters = [
            ("payload rate", "GB/s", np.round(values["sent"] * 1e3 / width_ps, 3)),
            ("rate limit", "GB/s", np.round(values["rate"] / 1e9, 3)),
            ("marked", "B", values["marked"]),
        ]
        window_bytes = values["window"]
        if (window_bytes >= 0).any():
            counters.append(("window", "B", np.maximum(window_bytes, 0)))
        rtt_ps = values["rtt"]
        if (rtt_ps >= 0).any():
            counters.append(("round trip", "ns", np.maximum(rtt_ps, 0) / PS_PER_NS))
        for number, (title, unit, samples) in enumerate(counters):
            place = 9100 + 5 * row + number
            track = writer.track(below, f"flow {name}: {title}", place, _unit(unit))
            writer.samples(track, edge_ps, samples)


def _counters(
    tables: dict[str, Array], wire: int, edge_ps: Array
) -> Iterator[tuple[str, str, Array]]:
    """Yield title, unit and values of a wire's histories with any nonzero value."""
    width = np.maximum(np.diff(edge_ps), 1)
    for column, title in (("busy", "load"), ("stall_credit", "no credit")):
        values = tables[column][wire]
        if values.any():
            yield title, "%", np.round(100 * values / width, 1)
    if tables["queue"][wire].any():
        yield "queue", "B", tables["queue"][wire].astype(np.float64)
