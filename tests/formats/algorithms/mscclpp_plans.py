"""Small MSCCL++ plans for tests, and the sample in ``traces/``; every function returns a plan as JSON has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = [
    "allpairs",
    "alltoall_get",
    "block",
    "chain_packets",
    "gather_put",
    "gpu",
    "local",
    "multicast_gather",
    "nvls_pipeline",
    "plan",
    "port_gather",
    "pulled_scatter",
    "remote",
    "two_waiters",
    "write",
]

Json = dict[str, Any]


def plan(collective: str, gpus: list[Json], protocol: str = "Simple", **fields: Any) -> Json:
    """Return a plan."""
    head = {"name": collective, "collective": collective, "protocol": protocol, "inplace": True}
    return head | fields | {"gpus": gpus}


def gpu(
    number: int, chunks: tuple[int, int, int], peers: list[int], blocks: list[Json], **more: Any
) -> Json:
    """Return a GPU with a memory channel to each of `peers`, and their i, o and s buffers as remote ones."""
    remote_buffers = [
        {"rank": peer, "type": letter, "access_channel_types": ["memory"]}
        for peer in peers
        for letter in "ios"
    ]
    sizes = dict(zip(("input_chunks", "output_chunks", "scratch_chunks"), chunks, strict=True))
    channels = [{"channel_type": "memory", "connected_to": peers}]
    switches = more.pop("switches", [])
    found = {"id": number, **sizes, "channels": [*channels, *switches]}
    found |= {"remote_buffers": remote_buffers, **more}
    for at, one in enumerate(blocks):
        one["id"] = at
        one["channels"] = [{"channel_type": "memory", "channel_ids": list(range(len(peers)))}]
        if switches:
            one["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        refs = {"access_channel_type": "memory", "remote_buffer_ids": list(range(3 * len(peers)))}
        one["remote_buffer_refs"] = [refs]
    return found | {"threadblocks": blocks}


def block(*ops: Json) -> Json:
    """Return a thread block."""
    return {"ops": list(ops)}


def local(letter: str, index: int, size: int = 1) -> Json:
    """Return chunks of an own buffer."""
    return {"type": letter, "index": index, "size": size}


def remote(peers: list[int], peer: int, letter: str, index: int, size: int = 1) -> Json:
    """Return chunks of a buffer of another GPU."""
    return {
        "buffer_id": 3 * peers.index(peer) + "ios".index(letter),
        "index": index,
        "size": size,
    }


def op(name: str, src: Any = None, dst: Any = None, **more: Any) -> Json:
    """Return an operation."""
    found: Json = {"name": name}
    if src is not None:
        found["src_buff"] = src
    if dst is not None:
        found["dst_buff"] = dst
    return found | {"channel_type": "memory"} | more


def _others(size: int, number: int) -> list[int]:
    return [peer for peer in range(size) if peer != number]


def allpairs(size: int, parts: int = 1) -> Json:
    """Return an all-reduce in two steps with packets; each GPU's work is shared by `parts` thread blocks."""
    gpus = []
    for me in range(size):
        peers = _others(size, me)
        blocks = []
        for part in range(parts):
            share: dict[str, Any] = (
                {"tbg_info": {"tb_id": part, "tbg_size": parts}} if parts > 1 else {}
            )
            push = op(
                "ppkt",
                [local("i", peer) for peer in peers],
                [remote(peers, peer, "s", me) for peer in peers],
                **share,
            )
            own = [local("i", me), *(local("s", peer) for peer in peers)]
            spread = [local("i", me), *(remote(peers, peer, "s", size + me) for peer in peers)]
            join = op("respkt", own, spread, reduce_op="sum", **share)
            take = [
                op("upkt", [local("s", size + peer)], [local("i", peer)], **share) for peer in peers
            ]
            blocks.append(block(push, join, *take))
        gpus.append(gpu(me, (size, size, 2 * size), peers, blocks))
    return plan("allreduce", gpus, "LL")


def gather_put(size: int, *, in_place: bool = True, fault: str = "") -> Json:
    """Return an all-gather: one thread block puts and signals, one waits, a third copies what came behind a barrier."""
    gpus = []
    for me in range(size):
        peers = _others(size, me)
        everyone = list(range(len(peers)))
        wrong = 1 if fault == "index" and me == 0 else 0
        put = op(
            "put",
            [local("i", 0)] * len(peers),
            [remote(peers, peer, "s", (me + wrong) % size) for peer in peers],
        )
        sender = block(put, op("signal", channel_ids=everyone))
        if fault == "signal" and me == 1:
            sender["ops"].pop()
        if not in_place:
            sender["ops"].append(op("copy", [local("i", 0)], [local("o", me)]))
        barrier = {"barrier_id": 0, "num_threadblocks": 2}
        waiter = block(op("wait", channel_ids=everyone), op("barrier", **barrier))
        copies = [op("copy", [local("s", peer)], [local("o", peer)]) for peer in peers]
        copier = block(op("barrier", **barrier), *copies)
        gpus.append(gpu(me, (1, size, size), peers, [sender, waiter, copier]))
    return plan("allgather", gpus, inplace=in_place)


def alltoall_get(size: int) -> Json:
    """Return an all-to-all in which everybody fetches what is for it; out of place."""
    gpus = []
    for me in range(size):
        peers = _others(size, me)
        everyone = list(range(len(peers)))
        ops = [op("signal", channel_ids=everyone), op("wait", channel_ids=everyone)]
        ops.append(op("copy", [local("i", me)], [local("o", me)]))
        ops += [op("get", [remote(peers, peer, "i", me)], [local("o", peer)]) for peer in peers]
        gpus.append(gpu(me, (size, size, 0), peers, [block(*ops)]))
    return plan("alltoall", gpus, inplace=False)


def pulled_scatter(size: int) -> Json:
    """Return a reduce-scatter whose data two thread blocks bring to scratch before others read and reduce them."""
    gpus = []
    for me in range(size):
        peers = _others(size, me)
        everyone = list(range(len(peers)))
        stage = block(
            op("copy", [local("i", 0, size)], [local("s", 0, size)]),
            op("sem_release", semaphore_ids=[0]),
        )
        reduce = block(
            op("sem_acquire", semaphore_ids=[0]),
            op("signal", channel_ids=everyone),
            op("wait", channel_ids=everyone),
            op(
                "rre",
                [local("s", me), *(remote(peers, peer, "s", me) for peer in peers)],
                [local("o", 0)],
            ),
        )
        gpus.append(
            gpu(me, (size, 1, size), peers, [stage, reduce], semaphores=[{"init_value": 0}])
        )
    return plan("reducescatter", gpus, inplace=False)


def _switch(size: int, letter: str) -> list[Json]:
    group = {"size": size, "ranks": list(range(size))}
    return [{"channel_type": "switch", "buffer_type": letter, "rank_groups": [group]}]


def _meet(peers: list[int]) -> list[Json]:
    everyone = list(range(len(peers)))
    return [op("rlxsignal", channel_ids=everyone), op("rlxwait", channel_ids=everyone)]


def multicast_gather(size: int) -> Json:
    """Return an all-gather whose GPUs store their chunk to all at once, through the switches."""
    gpus = []
    for me in range(size):
        peers = _others(size, me)
        group = {"switch_channel_id": 0, "index": me, "size": 1}
        store = op("gstore", [local("i", 0)], [group], channel_type="switch")
        blocks = [block(*_meet(peers), store, *_meet(peers))]
        gpus.append(gpu(me, (1, size, 0), peers, blocks, switches=_switch(size, "o")))
    return plan("allgather", gpus)


def nvls_pipeline(size: int, unit: int) -> Json:
    """Return an all-reduce in the switches, in iterations of `unit` bytes that two thread blocks hand on."""
    context = {"iter_context": {"unit_size": unit, "num_chunks": 1}}
    gpus = []
    for me in range(size):
        peers = _others(size, me)
        group = {"switch_channel_id": 0, "index": me, "size": 1}
        stage = [op("copy", [local("i", chunk)], [local("s", chunk)]) for chunk in range(size)]
        add = op("glres", [group], [group], channel_type="switch")
        bring = [op("copy", [local("s", chunk)], [local("i", chunk)]) for chunk in range(size)]
        first = [op("sem_acquire", semaphore_ids=[1]), *stage, op("sem_release", semaphore_ids=[0])]
        second = [op("sem_acquire", semaphore_ids=[0]), *_meet(peers), add, *_meet(peers), *bring]
        second.append(op("sem_release", semaphore_ids=[1]))
        blocks = [block({"name": "pipeline", **context, "ops": ops}) for ops in (first, second)]
        gpus.append(
            gpu(
                me,
                (size, size, size),
                peers,
                blocks,
                switches=_switch(size, "s"),
                semaphores=[{"init_value": 0}, {"init_value": 2}],
            )
        )
    return plan("allreduce", gpus)


def chain_packets() -> Json:
    """Return a broadcast to 3 GPUs: packets made here, handed on twice, and read by two thread blocks at GPU 1."""
    first = [
        block(op("cpkt", [local("i", 0)], [local("s", 0)])),
        block(op("rppkt", [local("s", 0)], [remote([1, 2], 1, "s", 1)])),
    ]
    second = [
        block(op("upkt", [local("s", 1)], [local("o", 0)])),
        block(op("rppkt", [local("s", 1)], [remote([0, 2], 2, "s", 2)])),
    ]
    third = [block(op("upkt", [local("s", 2)], [local("o", 0)]))]
    blocks = (first, second, third)
    peers = ([1, 2], [0, 2], [0, 1])
    return plan("broadcast", [gpu(at, (1, 1, 3), peers[at], blocks[at]) for at in range(3)], "LL")


def two_waiters(*, tied: bool = True) -> Json:
    """Return a broadcast to GPU 1, of which two thread blocks are told; the second copies the data to the output.

    Without `tied` only the first is told.
    """
    store = op("put", [local("i", 0)], [remote([1, 1], 1, "s", 0)])
    sender = block(store, op("signal", channel_ids=[0, 1]))
    keep = block(op("copy", [local("i", 0)], [local("o", 0)]))
    noted = block(op("wait", channel_ids=[0]))
    copy = block(op("wait", channel_ids=[1]), op("copy", [local("s", 0)], [local("o", 0)]))
    if not tied:
        copy["ops"].pop(0)
    gpus = [gpu(0, (1, 1, 1), [1, 1], [sender, keep]), gpu(1, (1, 1, 1), [0, 0], [noted, copy])]
    return plan("broadcast", gpus, inplace=False)


def port_gather() -> Json:
    """Return an all-gather of 2 GPUs with stores that signal, over port channels."""
    gpus = []
    for me in range(2):
        peer = 1 - me
        put = op("pws", [local("i", 0)], [remote([peer], peer, "o", me)], channel_ids=[0])
        ops = [put, op("wait", channel_ids=[0]), op("flush", channel_ids=[0])]
        one = gpu(me, (1, 2, 0), [peer], [block(*ops)])
        gpus.append(json.loads(json.dumps(one).replace('"memory"', '"port"')))
    return plan("allgather", gpus)


def write(tmp_path: Path, value: Json, change: Callable[[str], str] = str) -> Path:
    """Write a plan, its text changed by `change`; returns the file."""
    path = tmp_path / "plan.json"
    path.write_text(change(json.dumps(value, indent=1)))
    return path
