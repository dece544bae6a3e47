"""Run a peer's workloads with htsim and clusim in turns: ``make bench HTSIM=DIR``.

Workloads are permutations, an incast and an all-to-all; their flows start at 0. DIR is the folder ``sim`` of a
checkout of https://github.com/Broadcom/csg-htsim with ``datacenter/htsim_roce`` in it (``make libhtsim.a && make -C
datacenter htsim_roce``). Both have the same flows over fat trees of 400 Gb/s links of 500 ns, store-and-forward,
4,096 B packets with 64 B of header and a 64 B acknowledgement each, one path per flow, lossless. One JSON line per
workload: `ratio` is htsim's processor time over the engine's, `whole_ratio` over the process's with Python, and
`goal_ratio` the target. Paths of htsim vary; if an assertion of htsim fails, the line has `error`; the exit code is 1.

    --repeats N      runs of both; the fastest of each count (3)
    --share F        a fraction of the messages (1)
    NAME ...         select workloads
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Workload:
    """Flows over a fat tree of `k` ports: bytes per flow, and the target ratio; None is no target."""

    k: int
    message_bytes: int
    goal: float | None
    pattern: str = "permutation"

    @property
    def hosts(self) -> int:
        """Hosts of the full fat tree."""
        return self.k**3 // 4

    def pairs(self) -> list[tuple[int, int]]:
        """Return (sender, receiver) of every flow; a permutation is a random cycle over all hosts."""
        order = list(range(self.hosts))
        if self.pattern == "incast":
            return [(source, 0) for source in order[1:]]
        if self.pattern == "all-to-all":
            return list(permutations(order, 2))
        random.Random(1).shuffle(order)
        return list(zip(order, [*order[1:], order[0]], strict=True))


WORKLOADS = {
    "perm128": Workload(8, 16 * MIB, 20),
    "perm1024": Workload(16, 4 * MIB, 25),
    "incast128": Workload(8, 4 * MIB, None, "incast"),
    "a2a128": Workload(8, 128 << 10, None, "all-to-all"),
}
PACKET_BYTES = 4096


class HtsimError(Exception):
    """A run of htsim without a result."""


def _matrix(workload: Workload, message_bytes: int) -> str:
    """Return htsim's connection matrix."""
    flows = workload.pairs()
    lines = [f"Nodes {workload.hosts}", f"Connections {len(flows)}"]
    lines += [
        f"{source}->{target} id {number} start 0 size {message_bytes}"
        for number, (source, target) in enumerate(flows, 1)
    ]
    return "\n".join(lines) + "\n"


def run_htsim(
    folder: Path, workload: Workload, message_bytes: int
) -> dict[str, float]:
    """Run htsim's RoCE with one ECMP path per flow and PFC; its processor time and the finished flows."""
    with tempfile.TemporaryDirectory() as scratch:
        matrix = Path(scratch) / "matrix.cm"
        matrix.write_text(_matrix(workload, message_bytes), "ascii")
        command = [str(folder / "datacenter" / "htsim_roce"), "-tm", str(matrix)]
        command += [
            "-o",
            str(Path(scratch) / "log"),
            "-nodes",
            str(workload.hosts),
            "-tiers",
            "3",
        ]
        command += [
            "-linkspeed",
            "400000",
            "-mtu",
            str(PACKET_BYTES),
            "-hop_latency",
            "0.5",
        ]
        command += [
            "-strat",
            "ecmp_host",
            "-paths",
            "1",
            "-end",
            "20000",
            "-seed",
            "1",
        ]
        with (Path(scratch) / "out").open("w+", encoding="utf-8") as out:
            process = subprocess.Popen(command, stdout=out, cwd=scratch)
            _, status, used = os.wait4(process.pid, 0)
            out.seek(0)
            # Line by line: the peak memory of a child is at least that of the process that starts it.
            finished = sum("finished at" in line for line in out)
    if status:
        raise HtsimError(
            f"htsim ended with status {os.waitstatus_to_exitcode(status)}"
        )
    flows = len(workload.pairs())
    if finished != flows:
        raise HtsimError(f"htsim finished {finished} of {flows} flows")
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_MB": used.ru_maxrss / 1024}


def run_clusim(workload: Workload, message_bytes: int) -> dict[str, Any]:
    """Run clusim in this process."""
    from run import engine_cpu_s

    import clusim
    from clusim.simulation.flows import Flow

    cpu_s = engine_cpu_s()
    traffic = clusim.Traffic.of_flows(
        [Flow(source, target, message_bytes) for source, target in workload.pairs()],
        PACKET_BYTES,
        routing="ecmp",
    )
    result = clusim.simulate_traffic(
        clusim.load(f"fat-tree:k={workload.k},ack=64B"), traffic
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_s": sum(cpu_s),
        "whole_cpu_s": used.ru_utime + used.ru_stime,
        "packet_hops": result.packet_hops,
        "time_us": result.time_ps / 1e6,
        "peak_MB": used.ru_maxrss / 1024,
    }


def compare(folder: Path, name: str, repeats: int, share: float) -> dict[str, Any]:
    """Run both in turns."""
    workload = WORKLOADS[name]
    message_bytes = max(1, round(workload.message_bytes * share))
    theirs, ours = [], []
    for _ in range(repeats):
        theirs.append(run_htsim(folder, workload, message_bytes))
        command = [
            sys.executable,
            __file__,
            str(folder),
            name,
            "--one",
            str(message_bytes),
        ]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        ours.append(json.loads(done.stdout))
    htsim = min(theirs, key=lambda run: run["cpu_s"])
    clusim = min(ours, key=lambda run: run["cpu_s"])
    return {
        "workload": name,
        "packet_hops": clusim["packet_hops"],
        "htsim_cpu_s": round(htsim["cpu_s"], 3),
        "cpu_s": round(clusim["cpu_s"], 3),
        "ratio": round(htsim["cpu_s"] / clusim["cpu_s"], 1),
        "goal_ratio": workload.goal,
        "whole_ratio": round(htsim["cpu_s"] / clusim["whole_cpu_s"], 1),
        "htsim_peak_MB": round(htsim["peak_MB"], 1),
        "peak_MB": round(clusim["peak_MB"], 1),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Print one line per workload."""
    parser = argparse.ArgumentParser(description="A peer's workloads, side by side.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("workloads", nargs="*", metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--share", type=float, default=1)
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    names = args.workloads or list(WORKLOADS)
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; one of: {', '.join(WORKLOADS)}")
    if args.one:
        print(json.dumps(run_clusim(WORKLOADS[names[0]], args.one)))
        return
    folder = args.folder.resolve()  # htsim runs in a folder of its own
    if not (folder / "datacenter" / "htsim_roce").exists():
        parser.error(
            f"{folder}/datacenter/htsim_roce does not exist; build htsim first"
        )
    failed = False
    for name in names:
        try:
            line = compare(folder, name, args.repeats, args.share)
        except HtsimError as error:
            line, failed = {"workload": name, "error": str(error)}, True
        print(json.dumps(line), flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
