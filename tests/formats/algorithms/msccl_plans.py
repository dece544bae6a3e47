"""Plans in MSCCL's XML, written for tests: a collective of every kind, and whether a schedule is right."""

from __future__ import annotations

from pathlib import Path

from clusim.schedule import Schedule
from clusim.schedule.executor import Executor
from clusim.schedule.semantics import run_untimed

Step = tuple[str, str, str, int, str]
Block = tuple[int, int, list[Step]]


def text_of(coll: str, chunks: int, gpus: list[list[Block]], *, in_place: bool = False) -> str:
    """Return a plan; a step is (type, source, target, count, wait), where places are like ``i3`` and waits ``1.0``."""
    lines = [
        f'<algo name="test" proto="Simple" nchannels="1" nchunksperloop="{chunks}" ngpus="{len(gpus)}" coll="{coll}"'
        f' inplace="{int(in_place)}">'
    ]
    for number, blocks in enumerate(gpus):
        lines.append(
            f'<gpu id="{number}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="{chunks}">'
        )
        for own, (send, recv, steps) in enumerate(blocks):
            lines.append(f'<tb id="{own}" send="{send}" recv="{recv}" chan="0">')
            for at, (kind, src, dst, count, wait) in enumerate(steps):
                depid, _, deps = wait.partition(".") if wait else ("-1", "", "-1")
                lines.append(
                    f'<step s="{at}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}"'
                    f' dstoff="{dst[1:]}" cnt="{count}" depid="{depid}" deps="{deps}" hasdep="1"/>'
                )
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def others(size: int, me: int) -> list[int]:
    return [peer for peer in range(size) if peer != me]


def allgather(size: int, in_place: bool) -> str:
    """Everybody sends two chunks to everybody."""
    gpus: list[list[Block]] = []
    for me in range(size):
        blocks: list[Block] = [
            (peer, peer, [("s", "i0", f"o{2 * me}", 2, ""), ("r", "i0", f"o{2 * peer}", 2, "")])
            for peer in others(size, me)
        ]
        if not in_place:
            blocks.append((-1, -1, [("cpy", "i0", f"o{2 * me}", 2, "")]))
        gpus.append(blocks)
    return text_of("allgather", 2 * size, gpus, in_place=in_place)


def reduce_scatter(size: int, in_place: bool) -> str:
    """Everybody gets its chunk of everybody in scratch and adds them up."""
    gpus: list[list[Block]] = []
    for me in range(size):
        peers = others(size, me)
        blocks: list[Block] = [
            (peer, peer, [("s", f"i{peer}", "s0", 1, ""), ("r", "i0", f"s{peer}", 1, "")])
            for peer in peers
        ]
        first: list[Step] = [] if in_place else [("cpy", f"i{me}", "o0", 1, "")]
        adds = [("re", f"s{peer}", "o0", 1, f"{at}.1") for at, peer in enumerate(peers)]
        gpus.append([*blocks, (-1, -1, [*first, *adds])])
    return text_of("reduce_scatter", size, gpus, in_place=in_place)


def alltoall(size: int, in_place: bool) -> str:
    gpus: list[list[Block]] = []
    for me in range(size):
        blocks: list[Block] = [
            (peer, peer, [("s", f"i{peer}", f"o{me}", 1, ""), ("r", f"i{me}", f"o{peer}", 1, "")])
            for peer in others(size, me)
        ]
        gpus.append([*blocks, (-1, -1, [("cpy", f"i{me}", f"o{me}", 1, "")])])
    return text_of("alltoall", size, gpus)


def broadcast(size: int, in_place: bool) -> str:
    """GPU 0 sends down a chain."""
    blocks: list[Block] = [(1, -1, [("s", "i0", "o0", 3, "")])]
    blocks += [(at + 1, at - 1, [("rcs", "o0", "o0", 3, "")]) for at in range(1, size - 1)]
    blocks.append((-1, size - 2, [("r", "o0", "o0", 3, "")]))
    gpus = [[block] for block in blocks]
    if not in_place:
        gpus[0].append((-1, -1, [("cpy", "i0", "o0", 3, "")]))
    return text_of("broadcast", 3, gpus, in_place=in_place)


def reduce(size: int, in_place: bool) -> str:
    """The last GPU sends up a chain, everybody adds its own; GPU 0 keeps the sum."""
    blocks: list[Block] = [(-1, 1, [("rrc", "i0", "o0", 2, "")])]
    blocks += [(at - 1, at + 1, [("rrs", "i0", "o0", 2, "")]) for at in range(1, size - 1)]
    blocks.append((size - 2, -1, [("s", "i0", "o0", 2, "")]))
    return text_of("reduce", 2, [[block] for block in blocks], in_place=in_place)


def gather(size: int, in_place: bool) -> str:
    root: list[Block] = [(-1, peer, [("r", "i0", f"o{peer}", 1, "")]) for peer in range(1, size)]
    if not in_place:
        root.append((-1, -1, [("cpy", "i0", "o0", 1, "")]))
    leaves: list[list[Block]] = [[(0, -1, [("s", "i0", f"o{at}", 1, "")])] for at in range(1, size)]
    return text_of("gather", size, [root, *leaves], in_place=in_place)


def scatter(size: int, in_place: bool) -> str:
    root: list[Block] = [(peer, -1, [("s", f"i{peer}", "o0", 1, "")]) for peer in range(1, size)]
    if not in_place:
        root.append((-1, -1, [("cpy", "i0", "o0", 1, "")]))
    leaves: list[list[Block]] = [[(-1, 0, [("r", "i0", "o0", 1, "")])] for _ in range(1, size)]
    return text_of("scatter", size, [root, *leaves], in_place=in_place)


def two_steps(size: int, in_place: bool, *, waits: bool = True) -> str:
    """All-reduce: reduce-scatter into the output, whose chunk then goes to everybody."""
    gpus: list[list[Block]] = []
    for me in range(size):
        peers = others(size, me)
        last = f"0.{len(peers) - in_place}" if waits else ""
        wait = [f"{at + 1}.1" if waits else "" for at in range(len(peers))]
        adds = [("re", f"s{peer}", f"o{me}", 1, wait[at]) for at, peer in enumerate(peers)]
        first: list[Step] = [] if in_place else [("cpy", f"i{me}", f"o{me}", 1, "")]
        blocks: list[Block] = [(-1, -1, [*first, *adds])]
        for peer in peers:
            steps: list[Step] = [("s", f"i{peer}", "s0", 1, ""), ("r", "i0", f"s{peer}", 1, "")]
            steps += [("s", f"o{me}", "o0", 1, last), ("r", "i0", f"o{peer}", 1, "")]
            blocks.append((peer, peer, steps))
        gpus.append(blocks)
    return text_of("allreduce", size, gpus, in_place=in_place)


PLANS = {
    "allreduce": two_steps,
    "all_gather": allgather,
    "reduce_scatter": reduce_scatter,
    "alltoall": alltoall,
    "broadcast": broadcast,
    "reduce": reduce,
    "gather": gather,
    "scatter": scatter,
}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.xml"
    path.write_text(text)
    return path


def right(schedule: Schedule, seed: int | None) -> bool:
    """Return whether a schedule computes its collective, in a random legal order if there is a seed."""
    executor = Executor(schedule, data="random")
    run_untimed(executor, seed)
    (check,) = executor.check(8.0)
    return check.ok
