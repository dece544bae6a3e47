"""Run all plans of a directory and count the outcomes.

``python benchmarks/plans.py DIR [SIZE...]``: MSCCL's files (``.xml``) run on DGX A100s, MSCCL++'s
(``.json``) on a DGX H100, each at every size (default: 64 KiB and 2 MiB), with data checks.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import clusim
from clusim.base.errors import ClusimError
from clusim.formats.algorithms import msccl, msccl_xml
from clusim.schedule import Schedule
from clusim.topology import Fabric
from clusim_formats.algorithms import mscclpp, mscclpp_json

SIZES = (64 << 10, 2 << 20)
PER_MACHINE = 8
OUTCOMES = {
    True: "verified",
    False: "data wrong",
    None: "runs; no definition to compare with",
}


def machine(preset: str, gpus: int) -> Fabric:
    """Return a system of nodes with `gpus` GPUs in total."""
    nodes = -(-gpus // PER_MACHINE)
    return clusim.load(preset, nodes=nodes if nodes > 1 else None)


def scheduled(path: Path, size: int) -> tuple[Fabric, Schedule]:
    """Return a plan as a schedule, and its system."""
    if path.suffix == ".xml":
        plan = msccl_xml.read_plan(path)
        gpus, fabric = len(plan.gpus), machine("dgx-a100", len(plan.gpus))
        return fabric, msccl.load(path, fabric, size, ranks=tuple(range(gpus)))
    other = mscclpp_json.read_plan(path)
    gpus, fabric = len(other.gpus), machine("dgx-h100", len(other.gpus))
    return fabric, mscclpp.load(path, fabric, size, ranks=tuple(range(gpus)))


def outcome(path: Path, size: int) -> str:
    """Return the outcome of a plan at a size, without file names and line numbers."""
    try:
        fabric, schedule = scheduled(path, size)
        result = clusim.simulate(fabric, schedule, verify=True)
    except ClusimError as error:
        return re.sub(r"^\S+?(?::\d+)?: ", "", str(error))[:120]
    custom = schedule.calls[0].operation == "messages"
    return OUTCOMES[None if custom else result.verified]


def main(folder: str, *sizes: str) -> None:
    """Print the outcome of every plan, and a table of counts."""
    wanted = tuple(map(int, sizes)) or SIZES
    counts: Counter[str] = Counter()
    for path in sorted(Path(folder).iterdir()):
        result = list(dict.fromkeys(outcome(path, size) for size in wanted))
        counts[" / ".join(result)] += 1
        print(f"{path.name}: {' / '.join(result)}", flush=True)
    print("\n| plans | outcome |\n|---|---|")
    for what, count in counts.most_common():
        print(f"| {count} | {what} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
