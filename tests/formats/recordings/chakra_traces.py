"""Small Chakra execution traces for tests, and the sample in ``traces/``; run it to write the sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusim.formats.recordings.chakra_schema import COLLECTIVES, NODE_TYPES, message_class

__all__ = ["SAMPLE", "coll", "comp", "files", "message", "node", "sample", "trace"]

SAMPLE = Path(__file__).resolve().parents[3] / "traces" / "chakra-4ranks"


def node(
    at: int,
    kind: str,
    deps: tuple[int, ...] = (),
    *,
    ctrl: tuple[int, ...] = (),
    us: int = 0,
    name: str = "",
    inputs: str = "",
    **attributes: Any,
) -> bytes:
    """Return a node as in a file; an attribute that is a pair is the field of its type, and its value."""
    found = message_class("Node")(
        id=at,
        name=(name or f"n{at}").encode(),
        type=NODE_TYPES[kind],
        data_deps=deps,
        ctrl_deps=ctrl,
        duration_micros=us,
    )
    if inputs:
        found.inputs.values = inputs.encode()
    for key, value in attributes.items():
        field, value = value if isinstance(value, tuple) else (_field(value), value)
        attribute = found.attr.add(name=key.encode())
        if isinstance(value, list):
            getattr(attribute, field).values.extend(value)
        else:
            setattr(attribute, field, value.encode() if isinstance(value, str) else value)
    return pack(found)


def pack(message: Any) -> bytes:
    """Return a message as stored in a file: after its length."""
    body: bytes = message.SerializeToString(deterministic=True)
    size, result = len(body), bytearray()
    while size >= 0x80:
        result.append(size & 0x7F | 0x80)
        size >>= 7
    result.append(size)
    return bytes(result) + body


def _field(value: Any) -> str:
    if isinstance(value, list):
        return "bool_list"
    return {bool: "bool_val", int: "int64_val", str: "string_val", float: "double_val"}[type(value)]


def comp(at: int, us: int, deps: tuple[int, ...] = (), **more: Any) -> bytes:
    """Return a node that computes on the GPU for `us` [us]."""
    return node(at, "COMP_NODE", deps, us=us, is_cpu_op=False, **more)


def coll(at: int, operation: str, size: int, deps: tuple[int, ...] = (), **more: Any) -> bytes:
    """Return a collective of `size` [bytes]."""
    return node(
        *(at, "COMM_COLL_NODE", deps),
        is_cpu_op=False,
        comm_type=COLLECTIVES.index(operation),
        comm_size=size,
        **more,
    )


def message(
    at: int, kind: str, peer: int, size: int, tag: int = 0, deps: tuple[int, ...] = ()
) -> bytes:
    """Return a send or recv."""
    end = {"comm_dst": peer} if kind == "send" else {"comm_src": peer}
    return node(at, f"COMM_{kind.upper()}_NODE", deps, comm_size=size, comm_tag=tag, **end)


def trace(*nodes: bytes, version: str = "0.0.4") -> bytes:
    """Return a file: metadata, and nodes."""
    return pack(message_class("GlobalMetadata")(version=version.encode())) + b"".join(nodes)


def files(folder: Path, *ranks: bytes, job: str = "job") -> str:
    """Write the traces of ranks into a folder; returns its name."""
    for number, data in enumerate(ranks):
        (folder / f"{job}.{number}.et").write_bytes(data)
    return str(folder)


def sample() -> dict[str, bytes]:
    """Return the files of the sample: two stages of two tensor-parallel ranks each, one step with one micro-batch."""
    groups = {"1": [0, 1], "2": [2, 3]}
    found = {"comm_group.json": json.dumps(groups).encode() + b"\n"}
    size = 8 << 20
    for rank in range(4):
        first, tensor = rank < 2, "1" if rank < 2 else "2"
        peer = (rank + 2) % 4
        rows = [node(1, "COMP_NODE", us=20, name="load batch", is_cpu_op=True)]
        begin = (1,)
        if not first:
            rows.append(message(2, "recv", peer, size, tag=1))
            begin = (1, 2)
        rows += [
            comp(3, 150, begin, name="forward"),
            coll(4, "ALL_REDUCE", size, (3,), name="forward sum", pg_name=tensor),
        ]
        if first:
            rows += [
                message(5, "send", peer, size, tag=1, deps=(4,)),
                message(6, "recv", peer, size, tag=2),
            ]
        rows += [
            comp(7, 300, (4,) if not first else (4, 6), name="backward"),
            coll(8, "ALL_REDUCE", size, (7,), name="backward sum", pg_name=tensor),
        ]
        if not first:
            rows.append(message(9, "send", peer, size, tag=2, deps=(8,)))
        rows.append(
            node(
                *(10, "COMP_NODE", (8,)),
                name="optimizer",
                is_cpu_op=False,
                num_ops=("uint64_val", 400_000_000),
                tensor_size=("uint64_val", 200_000_000),
            )
        )
        rows.append(coll(11, "BARRIER", 0, (10,), name="end of step"))
        found[f"job.{rank}.et"] = trace(*rows)
    return found


def main() -> None:
    """Write the sample."""
    SAMPLE.mkdir(exist_ok=True)
    for name, data in sample().items():
        (SAMPLE / name).write_bytes(data)


if __name__ == "__main__":
    main()
