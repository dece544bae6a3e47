"""Content of a trace: names, units and descriptions for writer and reader.

The format has a number, `FORMAT`, in the root's attribute ``clusim_format``. A reader accepts files of the same
number and older. New groups and datasets do not change the number; a change of meaning does.
"""

from __future__ import annotations

from clusim.results.bins import COLUMNS

FORMAT = 2

CHUNK_BYTES = 4 << 20
"""Largest HDF5 chunk of a column; a reader holds one in memory [bytes]."""

WIRE_TOTALS: dict[str, tuple[str, str]] = {
    "packets": ("1", "packets put on the wire; a burst counts as its packets"),
    "grants": ("1", "packets or bursts put on the wire one by one"),
    "bytes": ("B", "bytes put on the wire, headers included, control bytes not"),
    "payload": ("B", "payload bytes put on the wire"),
    "control_bytes": ("B", "acknowledgements and other owed control bytes"),
    "busy_ps": ("ps", "time the wire was busy"),
    "stall_credit_ps": ("ps", "time the wire was idle only due to lack of credit"),
    "stall_arbitration_ps": ("ps", "time a packet waited while the wire served another"),
    "queued_bytes": ("B", "bytes queued for the wire at the end"),
    "queued_max": ("B", "most bytes ever queued for the wire"),
    "replays": ("1", "packets sent again after a bit error"),
    "overflows": ("1", "packets that arrived at a full buffer of a wire that is paused"),
    "pauses": ("1", "times the receiver stopped the wire"),
    "marks": ("1", "packets marked for congestion"),
    "held_max": ("B", "most bytes a receive buffer held, on a wire that is paused"),
}
"""Final counters of each wire, in /wires/total: unit and description."""

PRIMITIVES: dict[str, tuple[str, str, str, str]] = {
    "time": ("time_ps", "<i8", "ps", "completion of the slice"),
    "gate": ("gate_ps", "<i8", "ps", "when its gate was open, so that it could begin"),
    "instance": ("instance", "<u4", "1", "program instance: one rank on one channel"),
    "seq": ("seq", "<u4", "1", "number of the slice within its instance"),
    "wire": ("wire", "<u4", "1", "wire its data crossed last, 2^32 - 1 without a transfer"),
    "cause": ("cause", "|u1", "1", "last wait: 1 data, 2 buffer space, 0 no wait"),
}
"""Columns of /primitives: engine's field, type, unit and description."""

IMAGE = "/image"
"""Group with the engine's input, array for array; `clusim.engine.image` has the layouts."""

UNITS: dict[str, tuple[str, str]] = {
    "/meta/fabric_text": ("", "topology, verbatim"),
    "/meta/schedule_text": ("", "schedule in its text form"),
    "/meta/faults": ("", "faults, and their effects on rates"),
    "/meta/notes": ("", "notes on the plan"),
    "/meta/verdict": ("", "bottleneck, as JSON"),
    "/meta/progress": (
        "",
        "simulated time [ps], bins in use, records written, all at the last flush",
    ),
    "/fabric/wire_class": ("", "class of wire: kind of link, from kind of node -> to kind of node"),
    "/fabric/rate": ("B/s", "nominal rate of the wire"),
    "/fabric/from_endpoint": (
        "1",
        "1 where the wire leaves an endpoint, 0 where it leaves a switch",
    ),
    "/fabric/node": ("", "node"),
    "/fabric/node_kind": ("", "kind of node: gpu, host, memory, switch, nic"),
    "/fabric/node_tier": (
        "",
        "tier of node, as in classes of wires: gpu, switch, pcie, root, memory, nic, leaf",
    ),
    "/fabric/node_zone": ("1", "server of graph node, -1 for the network between nodes"),
    "/fabric/rank_endpoint": ("1", "endpoint of each rank"),
    "/tasks/name": ("", "task"),
    "/tasks/start": ("ps", "start of the task, -1 if it did not start"),
    "/tasks/end": ("ps", "end of the task, -1 if it did not end"),
    "/messages/source": ("1", "endpoint that sends"),
    "/messages/destination": ("1", "endpoint that receives"),
    "/messages/bytes": ("B", "size of the message"),
    "/messages/start": ("ps", "when the message was due"),
    "/messages/end": ("ps", "when its last byte was visible, -1 if it was not"),
    "/wires/wire": ("", "wire, one direction of a link"),
    "/wires/time": ("ps", "start of the time bin"),
    "/hbm/endpoint": ("1", "endpoint"),
    "/hbm/time": ("ps", "start of the time bin"),
    "/hbm/bytes": ("B", "memory traffic caused by communication in the bin"),
}
FOLDED: dict[str, tuple[str, str]] = {
    "stream": ("", "stream of tasks of blocks"),
    "name": ("", "name of tasks of blocks"),
    "parts/ranks": ("1", "ranks of the part"),
    "parts/tasks_off": ("1", "tasks of the part: from this row of tasks to the next"),
    "parts/calls_off": ("1", "collectives of the part: from this row of calls to the next"),
    "tasks/slot": ("1", "which rank of the place does the task"),
    "tasks/kind": ("1", "0 kernel, 1 program, 2 pause, 3 marker"),
    "tasks/stream": ("1", "row of stream"),
    "tasks/name": ("1", "row of name, -1: name of the pause without its suffix"),
    "tasks/start": ("ps", "start of the task, from the start of the block"),
    "tasks/moves": ("ps", "when its data begin to move, from the start of the block"),
    "tasks/end": ("ps", "end of the task, from the start of the block"),
    "tasks/call": ("1", "collective of the part, -1 without"),
    "tasks/memory": ("B", "memory traffic of the kernel"),
    "calls/operation": ("", "operation of the collective"),
    "calls/algorithm": ("", "algorithm of the collective"),
    "calls/protocol": ("", "protocol of the collective"),
    "calls/dtype": ("", "type of its elements"),
    "calls/redop": ("", "what it reduces by"),
    "calls/root": ("1", "root, as rank of the place, -1 without"),
    "calls/bytes": ("B", "size of the collective"),
    "calls/channels": ("1", "channels of the collective"),
    "calls/ranks": ("1", "ranks of the collective"),
    "places/part": ("1", "part that is done there"),
    "places/ranks_off": ("1", "ranks of the place: from this row of ranks to the next"),
    "places/wires_off": ("1", "wires of the place: from this row of wires to the next"),
    "ranks/rank": ("1", "rank"),
    "ranks/endpoint": ("1", "endpoint of the rank"),
    "ranks/hbm": ("B", "memory traffic caused by communication of a block at this rank"),
    "wires/wire": ("1", "row of /wires/wire"),
    "blocks/place": ("1", "place of the block"),
    "pauses/task": ("1", "task that replaces it, for every rank of every block in turn"),
}
"""Columns of /folded: unit and description; see `clusim.results.replicated`."""
FOLDED |= {f"wires/{name}": (u, f"by a block: {text}") for name, (u, text) in WIRE_TOTALS.items()}

UNITS |= {f"/folded/{name}": said for name, said in FOLDED.items()}
UNITS |= {f"/wires/{name}": (unit, text) for name, (_, unit, text) in COLUMNS.items()}
UNITS |= {f"/primitives/{name}": (unit, text) for name, (_, _, unit, text) in PRIMITIVES.items()}
UNITS |= {f"/wires/total/{name}": said for name, said in WIRE_TOTALS.items()}
"""Unit and long name of every dataset outside /schedule and /image."""

_SIZES = ("bytes", "offset", "length", "limit", "stride", "align", "slice_min")
"""Ends of the names of columns of /schedule that are sizes, or places in a buffer [bytes]."""


def about(name: str, is_text: bool) -> dict[str, str]:
    """Return a dataset's attributes: unit, description, and for texts xarray's encoding."""
    if name in UNITS:
        unit, text = UNITS[name]
    elif name.startswith(f"{IMAGE}/"):
        unit, text = "", "engine's input, as in clusim.engine.image"
    else:
        *_, table, column = name.split("/")
        text = f"{column.replace('_', ' ')} of {table}"
        unit = "ps" if column.endswith("_ps") else "B" if column.endswith(_SIZES) else "1"
    return (
        {"units": "", "long_name": text, "_Encoding": "utf-8"}
        if is_text
        else {
            "units": unit,
            "long_name": text,
        }
    )
