"""Measure speed and memory: one JSON line per case, each run in a separate process.

Goals (on one core of a small shared computer, counters on) are printed beside the measurements; no
goal is enforced. Run all with ``make bench``, or some: ``python benchmarks/run.py ring-dgx-a100``.

    --repeats N      runs of a case; the fastest is printed (1)
    --instructions   count the instructions and the misses of caches of 32 KB and 1 MB
                     per hop of a small twin of the case, set-up excluded (valgrind, after
                     ``make test-c``)
    --write-counts   write these counts to ``counts.json``, with which
                     ``tests/engine/test_counts.py`` compares them
    --threads N      also run with N threads, in turns; `threads_ratio` is the wall-clock time
                     of one thread over that of N; with --instructions, `threads_limit` is this
                     ratio without wake-ups and cache transfers: instructions of a single
                     thread over those of the first of N
    --against DIR    also run another build (``older.py``), in turns; `ratio` is its time
                     over ours
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import CASES

RUN_IMAGE = Path(__file__).resolve().parents[1] / "build" / "c" / "run_image"
COUNTS = Path(__file__).resolve().with_name("counts.json")


def engine_cpu_s() -> list[float]:
    """Enable the engine's processor time; wall-clock time is unreliable on a shared computer."""
    import clusim.engine.simulation

    run: Any = clusim.engine.simulation.Simulation.run
    took_s: list[float] = []

    def timed(self: Any, *args: Any, **options: Any) -> Any:
        began_s = time.process_time()
        try:
            return run(self, *args, **options)
        finally:
            took_s.append(time.process_time() - began_s)

    clusim.engine.simulation.Simulation.run = timed  # type: ignore[method-assign]
    return took_s


def _use_threads(threads: int) -> None:
    """Make every simulation use `threads` threads."""
    import clusim.engine.simulation

    make: Any = clusim.engine.simulation.Simulation.__init__

    def threaded(self: Any, image: Any, **options: Any) -> None:
        make(self, image, **{**options, "threads": threads})

    clusim.engine.simulation.Simulation.__init__ = threaded  # type: ignore[assignment,method-assign]


def measure(case: str, threads: int) -> dict[str, Any]:
    """Run `case` in this process."""
    if threads > 1:  # an older build has no threads option
        _use_threads(threads)
    cpu_s = engine_cpu_s()
    began_s = time.perf_counter()
    result = CASES[case].run(CASES[case].size)
    total_s = time.perf_counter() - began_s
    return {
        "case": case,
        "packet_hops": result.packet_hops,
        "grants": result.grants,
        "cpu_s": round(sum(cpu_s), 3),
        "wall_s": round(result.wall_s, 3),
        "total_s": round(total_s, 3),
        "Mhops_per_s": round(result.packet_hops / sum(cpu_s) / 1e6, 1),
        "Mgrants_per_s": round(result.grants / sum(cpu_s) / 1e6, 1),
        "peak_rss_MB": round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1
        ),
        "time_ps": result.time_ps,
        "fingerprint": f"{result.fingerprint:016x}",
    } | CASES[case].goals


def _in_a_process(case: str, site: str = "", threads: int = 1) -> dict[str, Any]:
    """Measure a case in a separate process, with the package in `site` if given."""
    command, env = (
        [sys.executable, __file__, "--one", case, "--threads", str(threads)],
        None,
    )
    if site:
        command.insert(1, "-S")  # without the installed one
        env = {**os.environ, "PYTHONPATH": f"{site}:{sysconfig.get_path('platlib')}"}
    done = subprocess.run(
        command, check=True, env=env, stdout=subprocess.PIPE, text=True
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


class _SavedError(Exception):
    """The image is in its file, and need not run."""


def save_image(case: str, path: Path) -> None:
    """Write the image of the small twin of a case as the C programs read it."""
    import numpy as np

    import clusim.engine.simulation
    from clusim.engine.ranges import TABLES

    def save(_self: Any, image: Any, **_options: Any) -> None:
        tables = image.tables()
        with path.open("wb") as file:
            file.write(b"climage1" + np.uint32(image.nvc).tobytes())
            file.write(np.uint64(image.seed).tobytes())
            for name in TABLES:
                rows = np.array(
                    [tables[name].dtype.itemsize, len(tables[name])], np.uint64
                )
                file.write(rows.tobytes() + tables[name].tobytes())
        raise _SavedError

    clusim.engine.simulation.Simulation.__init__ = save  # type: ignore[assignment,method-assign]
    try:
        CASES[case].run(CASES[case].small)
    except _SavedError:
        return
    raise SystemExit(f"{case}: nothing was simulated")


CACHES = ["--cache-sim=yes", "--D1=32768,8,64", "--LL=1048576,16,64"]
"""Caches of the counts: size, ways and line [bytes]."""

COUNTED = [
    "Ir",
    "Dr",
    "Dw",
    "I1mr",
    "D1mr",
    "D1mw",
    "ILmr",
    "DLmr",
    "DLmw",
    "Bc",
    "Bcm",
    "Bi",
    "Bim",
]
"""Counts of callgrind, in its order."""


def _counted(image: Path, options: list[str], threads: int) -> tuple[list[int], int]:
    """Return callgrind's counts of a run (instructions first), without set-up, and its hops."""
    command = [
        "valgrind",
        "--tool=callgrind",
        f"--callgrind-out-file={image}.counts",
        *options,
    ]
    command.append(
        "--toggle-collect=clusim_sim_run"
    )  # threads but the first never enter it
    usual = "-1"  # from as many events on as windows are shared
    shared = [str(RUN_IMAGE), "-w", "-t", str(threads), usual, str(image)]
    done = subprocess.run(
        [*command, *shared], check=True, capture_output=True, text=True
    )
    collected = next(
        line for line in done.stderr.splitlines() if "Collected" in line
    )
    return [int(count) for count in collected.split(":")[1].split()], int(
        done.stdout.split()[1]
    )


def instructions(case: str, threads: int) -> dict[str, float]:
    """Return instructions, mispredicted branches and cache misses per hop of a case's small twin, if countable."""
    if not (CASES[case].small and RUN_IMAGE.exists() and shutil.which("valgrind")):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "case.img"
        subprocess.run(
            [sys.executable, __file__, "--save", case, str(image)], check=True
        )
        counts, hops = _counted(image, ["--branch-sim=yes", *CACHES], 1)
        per_hop = dict(zip(COUNTED, (count / hops for count in counts), strict=True))
        result = {
            "instructions_per_hop": round(per_hop["Ir"], 1),
            "mispredictions_per_hop": round(per_hop["Bcm"] + per_hop["Bim"], 2),
            "misses_32KB_per_hop": round(per_hop["D1mr"] + per_hop["D1mw"], 2),
            "misses_1MB_per_hop": round(per_hop["DLmr"] + per_hop["DLmw"], 2),
        }
        if threads > 1:
            alone, together = (_counted(image, [], n)[0][0] for n in (1, threads))
            result["threads_limit"] = round(alone / together, 2)
    return result


COUNTED_PER_HOP = {
    "instructions_per_hop",
    "misses_32KB_per_hop",
    "misses_1MB_per_hop",
}


def write_counts(case: str, counts: dict[str, float]) -> None:
    """Replace the counts of a case in ``counts.json``."""
    known = json.loads(COUNTS.read_text("utf-8")) if COUNTS.exists() else {}
    known[case] = counts
    COUNTS.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", "utf-8")


def compare(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a case the requested number of times, in turns with another build if there is one."""
    ours, others, shared = [], [], []
    for _ in range(args.repeats):
        if args.threads > 1:
            shared.append(_in_a_process(case, threads=args.threads))
        if args.against:
            others.append(_in_a_process(case, args.against))
        ours.append(_in_a_process(case))
    best = min(ours, key=lambda run: float(run["cpu_s"]))
    if args.instructions or args.write_counts:
        best |= instructions(case, args.threads)
    if args.write_counts and best.keys() >= COUNTED_PER_HOP:
        write_counts(case, {name: best[name] for name in sorted(COUNTED_PER_HOP)})
    if shared:
        best["threads_ratio"] = round(
            min(run["wall_s"] for run in ours)
            / min(run["wall_s"] for run in shared),
            2,
        )
        best["same_with_threads"] = shared[0]["fingerprint"] == best["fingerprint"]
    if others:
        other = min(others, key=lambda run: float(run["cpu_s"]))
        # The model may differ, so that the work does, too: by the hop.
        best["ratio"] = round(
            other["cpu_s"]
            / other["packet_hops"]
            / (best["cpu_s"] / best["packet_hops"]),
            2,
        )
        best["other_Mhops_per_s"] = other["Mhops_per_s"]
        best["same_work"] = other["fingerprint"] == best["fingerprint"]
    return best


def _resident_bytes() -> int:
    return (
        int(Path("/proc/self/statm").read_text("ascii").split()[1])
        * resource.getpagesize()
    )


def measure_memory(case: str = "permutation-fat-tree-16") -> dict[str, Any]:
    """Measure the engine's memory for a topology before a run, and its memory during the run."""
    import clusim.engine.simulation
    from clusim.engine.abi import RECORD

    make: Any = clusim.engine.simulation.Simulation.__init__
    result: dict[str, int] = {}

    def measured(self: Any, image: Any, **options: Any) -> None:
        before = _resident_bytes()
        make(self, image, **options)
        result["wires"] = len(image.wires)
        result["bytes_per_wire"] = (_resident_bytes() - before) // len(image.wires)

    clusim.engine.simulation.Simulation.__init__ = measured  # type: ignore[assignment,method-assign]
    CASES[case].run(CASES[case].small)
    return {
        "case": "memory",
        **result,
        "bytes_per_packet": 64
        + 8
        + 16,  # itself, its links, its place on the way to a switch
        "bytes_per_completion": RECORD.itemsize,
    }


def measure_shell(repeats: int = 5) -> dict[str, Any]:
    """Time a 1 MiB run as a user types it, best of `repeats`."""
    command = [
        sys.executable,
        "-m",
        "clusim",
        "run",
        "dgx-a100",
        "--size",
        "1MiB",
        "--no-progress",
    ]
    times = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began_s)
    return {
        "case": "shell-1MiB",
        "total_s": round(min(times), 3),
        "goal_total_s": 0.6,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure speed and memory.")
    parser.add_argument("cases", nargs="*", default=[*CASES, "shell-1MiB", "memory"])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--write-counts", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--against", default="")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--save", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Print one line per case."""
    args = _arguments()
    if args.one:
        print(json.dumps(measure(args.one, args.threads)), flush=True)
    elif args.save:
        save_image(args.save[0], Path(args.save[1]))
    else:
        alone: dict[str, Callable[[], dict[str, Any]]] = {
            "shell-1MiB": measure_shell,
            "memory": measure_memory,
        }
        for case in args.cases:
            if case in alone:
                print(json.dumps(alone[case]()), flush=True)
            elif case in CASES:
                print(json.dumps(compare(case, args)), flush=True)
            else:
                raise SystemExit(
                    f"no case {case!r}; one of {', '.join([*CASES, *alone])}"
                )


if __name__ == "__main__":
    main()
