"""Compare all-reduce kernels of inference engines with measurements.

``python benchmarks/custom_allreduce.py ROWS.csv`` reads rows of aiconfigurator's collectors
(``custom_allreduce_perf``): system, version, kernel_source, num_gpus, message_size [elements of two
bytes], latency [ms]. Rows measured in CUDA graphs are compared; eager rows measure the host.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from statistics import median

import clusim
from clusim.topology import Fabric, load

MACHINES = {"a100_sxm": "dgx-a100", "h100_sxm": "dgx-h100", "b200_sxm": "hgx-b200"}
ENGINES = ("oneshot-pull", "twoshot-pull", "oneshot-lamport")
MIB = 1 << 20
KIB = 1 << 10


def engines(system: str, ranks: int, size: int) -> str:
    """Return the kernel of vLLM and SGLang: one-step, two-step, or NCCL from 8 MiB."""
    if size >= 8 * MIB:
        return ""
    one = ranks == 2 or size < (512 * KIB if ranks <= 4 else 256 * KIB)
    return "oneshot-pull" if one else "twoshot-pull"


def newer_vllm(system: str, ranks: int, size: int) -> str:
    """Return vLLM's kernel with symmetric memory: custom kernels up to a size, then multimem."""
    most = {
        "h100_sxm": {2: 8 * MIB, 4: 8 * MIB, 8: 256 * KIB},
        "b200_sxm": {2: 2 * MIB, 4: 2 * MIB, 8: MIB},
    }[system][ranks]
    if size < most:
        return engines(system, ranks, size)
    both = (system == "h100_sxm" and ranks >= 4) or ranks == 8
    return "multimem" if both and size < 32 * MIB else ""


def trtllm(system: str, ranks: int, size: int) -> str:
    """Return the kernel in TensorRT-LLM's table for 4096 columns.

    It is one Lamport step, then two, then NCCL.
    """
    one: float
    two: float
    if system == "b200_sxm":
        one, two = {2: (16, 16), 4: (4, 16), 8: (2, 32)}[ranks]
    else:
        one, two = {2: (16, 16), 4: (1, 8), 8: (0.5, 4)}[ranks]
    if system == "a100_sxm":
        one, two = min(one, 0.5), min(two, 0.5)
    if size <= one * MIB:
        return "oneshot-lamport"
    return "ld-st" if size <= two * MIB and size != MIB else ""


def kernel_of(row: dict[str, str]) -> str:
    """Return the algorithm of a row; empty is NCCL's or unknown."""
    system, ranks = row["system"], int(row["num_gpus"])
    size = 2 * int(row["message_size"])
    source = row["kernel_source"]
    if source.endswith("_eager"):
        return ""
    if source == "TRTLLM":
        return trtllm(system, ranks, size)
    if source.startswith("vLLM") and system != "a100_sxm":
        return newer_vllm(system, ranks, size)
    return engines(system, ranks, size)


def predicted_us(
    machine: Fabric, system: str, ranks: int, size: int, algorithm: str
) -> float:
    """Return the time of a kernel in a CUDA graph [us]."""
    result = clusim.collective(
        machine,
        "allreduce",
        size,
        algorithm=algorithm,
        ranks=range(ranks),
        dtype="bfloat16",
    )
    launched_ps = result.launched_ps
    assert launched_ps is not None or algorithm not in ENGINES
    return (launched_ps or result.time_ps) / 1e6


def main(path: str, shown: str = "") -> None:
    """Print errors by system, engine and size; with `shown`, rows of that system."""
    machines = {system: load(name) for system, name in MACHINES.items()}
    times: dict[tuple[str, int, int, str], float] = {}
    errors: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    with open(path, encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            algorithm = kernel_of(row)
            if not algorithm:
                continue
            system, ranks, size = (
                row["system"],
                int(row["num_gpus"]),
                2 * int(row["message_size"]),
            )
            key = (system, ranks, size, algorithm)
            if key not in times:
                times[key] = predicted_us(machines[system], *key)
            measured = float(row["latency"]) * 1e3
            error = 100 * (times[key] / measured - 1)
            errors[system, row["kernel_source"]].append((size, error))
            if shown == system:
                name = row["kernel_source"]
                print(
                    f"{name:30} {ranks} {size:9} {algorithm:16} {measured:8.1f} {times[key]:8.1f} {error:+6.1f}"
                )
    print(f"{'':44} rows   up to 64 KiB       to 1 MiB      above")
    for (system, source), result in sorted(errors.items()):
        cells = []
        for low, high in ((0, 64 * KIB), (64 * KIB + 1, MIB), (MIB + 1, 1 << 40)):
            own = [error for size, error in result if low <= size <= high]
            cells.append(
                f"{median(map(abs, own)):5.1f} ({median(own):+6.1f})"
                if own
                else " " * 14
            )
        print(f"{system:10} {source:32} {len(result):5}  {'  '.join(cells)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
