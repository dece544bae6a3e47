"""Speed and memory of the log reader, as one JSON line.

    python benchmarks/log_reader.py [--size 256] [--kind calls|init|mixed|stamped] [--file LOG]

Writes a log of the requested size [MB] to a temporary file, or uses an existing one, and reads it.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RANKS = 16
CHANNELS = 16


def init_lines(job: int) -> Iterator[str]:
    """Yield the lines of the start of a job of 16 ranks on two hosts."""
    for rank in range(RANKS):
        host, device = f"node{job % 100}-{rank // 8}", rank % 8
        who = f"{host}:{1000 * (job % 1000) + rank}:{1000 * (job % 1000) + 100 + rank} [{device}] NCCL INFO "
        comm = f"comm 0x55{job:06x}{rank:02x}10 rank {rank} nranks {RANKS} cudaDev {device}"
        more = f"nvmlDev {device} busId {device + 1}b000 commId 0x{job + 1:x}a5"
        yield f"{who}ncclCommInitRank {comm} {more} - Init START"
        yield f"{who}NCCL_CROSS_NIC set by environment to 1."
        if rank == 0:
            for channel in range(CHANNELS):
                order = " ".join(f"{r:>3}" for r in range(RANKS))
                yield f"{who}Channel {channel:02}/{CHANNELS} : {order}"
        tree = " ".join(
            f"[{c}] {rank + 1 if rank + 1 < RANKS else -1}/-1/-1->{rank}->{rank - 1}"
            for c in range(CHANNELS)
        )
        yield f"{who}Trees {tree}"
        for channel in range(CHANNELS):
            after = (rank + 1) % RANKS
            route = (
                "P2P/CUMEM/read" if after // 8 == rank // 8 else "NET/IB/0/GDRDMA"
            )
            side = "" if after // 8 == rank // 8 else "[send] "
            yield (
                f"{who}Channel {channel:02}/0 : {rank}[{device}] -> {after}[{after % 8}]"
                f" {side}via {route}"
            )
        for i in range(40):
            yield f"{who}NET/OFI NIC group {i % 8} device #{i % 4} 0000:{i:02x}:00.0"
        counts = f"{CHANNELS} coll channels, 0 collnet channels, 0 nvls channels, 32 p2p channels"
        yield f"{who}{counts}, 2 p2p channels per peer"
        yield f"{who}ncclCommInitRank {comm} {more} - Init COMPLETE"


def call_lines(step: int, *, stamped: bool = False) -> Iterator[str]:
    """Yield the lines of one all-reduce and one all-gather of all ranks."""
    for rank in range(RANKS):
        device = rank % 8
        day, hour, minute = (
            1 + step // 86400 % 28,
            step // 3600 % 24,
            step // 60 % 60,
        )
        stamp = f"[2026-03-{day:02} {hour:02}:{minute:02}:{step % 60:02}.{rank:06}] "
        who = f"{stamp if stamped else ''}node0-{rank // 8}:{rank}:{rank} [{device}] NCCL INFO "
        pointers = f"sendbuff 0x7f{step % 65536:04x}{rank:02x}0000 recvbuff 0x7e{step % 65536:04x}{rank:02x}0000"
        comm = (
            f"comm 0x55000000{rank:02x}10 [nranks={RANKS}] stream 0x56{rank:02x}0020"
        )
        count = 1 << 10 + step % 14
        yield f"{who}AllReduce: opCount {2 * step:x} {pointers} count {count} datatype 9 op 0 root 0 {comm}"
        yield f"{who}AllGather: opCount {2 * step + 1:x} {pointers} count {count} datatype 9 op 0 root 0 {comm}"
        if rank == 0:
            yield f"{who}AllReduce: {2 * count} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..15}}"


def other_lines(step: int) -> Iterator[str]:
    """Yield lines of the application."""
    for i in range(24):
        loss = f"loss scale: {i}.0 | grad norm: 0.{step % 997:03d} |"
        yield f" iteration {step:8d}/ 500000 | consumed samples: {step * 64:12d} | {loss}"


def write(path: Path, kind: str, size_bytes: int) -> None:
    """Write a log of one kind."""
    written, step = 0, 0
    with path.open("w") as out:
        while written < size_bytes:
            lines: list[str] = []
            if kind == "init" or step == 0:
                lines += init_lines(step)
            if kind in ("calls", "mixed", "stamped"):
                for part in range(16):
                    lines += call_lines(16 * step + part, stamped=kind == "stamped")
                    if kind == "mixed":
                        lines += other_lines(16 * step + part)
            text = "\n".join(lines) + "\n"
            out.write(text)
            written += len(text)
            step += 1


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256, help="MB of log")
    parser.add_argument(
        "--kind", choices=("calls", "init", "mixed", "stamped"), default="calls"
    )
    parser.add_argument("--file", help="an existing log")
    options = parser.parse_args()
    from clusim.formats.logs import read_logs

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.file) if options.file else Path(folder) / "nccl.log"
        if not options.file:
            write(path, options.kind, options.size * 10**6)
        start = time.perf_counter()
        log = read_logs([str(path)])
        seconds = time.perf_counter() - start
        size = log.facts.bytes
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {
        "benchmark": "log_reader",
        "kind": "file" if options.file else options.kind,
        "MB": round(size / 1e6, 1),
        "s": round(seconds, 3),
        "MBps": round(size / 1e6 / seconds, 1),
        "lines": log.facts.lines,
        "calls": len(log.calls["line"]),
        "peak_MiB": after >> 10,
        "peak_over_start_MiB": (after - before) >> 10,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
