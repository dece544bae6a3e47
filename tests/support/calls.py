"""Calls of every command that answers something, with the files they need."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from pathlib import Path

from clusim.hardware.kernels.calibrate import measure
from clusim_cli.main import run
from support import traces
from support.fake_gpu import FakeGpu
from support.measured_steps import table

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "traces"
ROWS = ROOT / "tests" / "validation" / "rows.csv"

SMALL = ("dgx-1v", "--size", "64KiB")
FAULT = ("--fault", "rank 1 slow x1.5")

SERVED_RUNS = """hardware,engine,model,precision,tp,input_len,output_len,concurrency_or_batch,ttft_ms,tpot_ms
A100,vllm,llama-3-8b,bf16,1,64,8,1,30,10
TPU,vllm,llama-3-8b,bf16,1,64,8,1,30,10
"""

SERVED = """
topology: dgx-a100
model: {base: llama3-8b, layers: 2}
requests: {input: 64, output: 8, concurrency: 2, count: 4}
"""

JOBS = """
topology: dgx-h100
nodes: 2
jobs:
  reduce: {collective: {operation: allreduce, size: 16KiB}}
  copies: {nodes: 0, storage: {servers: 1, size: 16KiB}}
"""

# Command -> the words of calls that between them print every form it has.
CALLS: dict[str, list[tuple[str | Path, ...]]] = {
    "run": [
        SMALL,
        (*SMALL, "--algorithm", "ring", "--verify", *FAULT),
        ("dgx-h100", "--nodes", "2", "--size", "1MiB", "--symmetric"),
        ("fat-tree:k=4", "--size", "16KiB"),
        ("dgx-1v", "--size", "1KiB", "--sensitivity"),
    ],
    "traffic": [("ring:4", "--message", "64KiB")],
    "train": [
        ("resnet50-dgx1v",),
        ("resnet50-dgx1v", "--layers"),
        ("resnet50-dgx1v", "--scaling", "weak", "--replicas", "1,2"),
        ("resnet50-dgx1v", "--estimate"),
        ("SPENT",),
    ],
    "serve": [("SERVED",), ("SERVED", "--concurrency", "1,2"), ("SERVED", "--step-parts")],
    "jobs": [("JOBS", "--no-pairs"), ("JOBS",)],
    "info": [("TRACE",), ("RUN",)],
    "log summary": [(TRACES / "nccl-8xh100.log",), ("TABLE",)],
    "explain": [
        ("dgx-h100", "--size", "1MiB"),
        ("dgx-a100", "--nodes", "2", "--size", "8", "--symmetric"),
        ("dgx-h100", "--size", "1KiB", "--symmetric"),
    ],
    "crossover": [("dgx-1v", "--size", "1KiB", "--jobs", "1")],
    "plan": [
        ("gpt2", "a100x4-mesh", "--batch", "4", "--sequence", "128", "--estimates", "1"),
        ("SERVED", "--serve", "--estimates", "1"),
    ],
    "shrink": [("dgx-1v", "--lose", "3", "--size", "1KiB")],
    "policy check": [("swift", "--incast", "2", "--fabrics", "1")],
    "nccl-tests": [
        ("all_reduce_perf", "dgx-1v", "-b", "8", "-e", "16", "-c", "1", "--jobs", "1"),
        ("sendrecv_perf", "dgx-1v", "-b", "8", "-e", "8", "-i", "8", "-f", "1", "-C", "1", "--explain", "--jobs", "1"),
    ],
    "sweep": [("GRID", "--jobs", "1")],
    "validate": [
        (ROWS, "--system", "dgx-a100", "--sizes", "1", "--jobs", "1"),
        (ROWS, "--row", "1"),
        ("STEPS", "--jobs", "1"),
        ("RUNS", "--jobs", "1"),
    ],
    "replay": [
        (TRACES / "nccl-8xh100.log", "--calls", "2", "--granularity", "256KiB"),
        (TRACES / "nccl-8xh100.log", "--calls", "1", "--as", "dgx-a100", *FAULT),
        (TRACES / "ring-4.goal", "dgx-1v"),
    ],
    "analyze congestion": [("TRACE",), ("TRACE", "--over-time", "--top", "40")],
    "analyze overlap": [("TRACE",)],
    "analyze servers": [("TRACE",)],
    "analyze flows": [("TRACE",)],
    "analyze blame": [("TRACE",), ("RUN", "--confirm")],
    "analyze critical-path": [("TRACE",), ("RUN", "--what-if", "hbm", "x2", "--confirm")],
    "analyze pipeline": [("TRACE",)],
    "analyze collectives": [("TRACE",)],
    "analyze memory": [("TRACE",)],
    "diff": [("RUN", "RUN")],
    "what-if": [(f"run {' '.join(SMALL)}", "nvlink x2", "--ranks 0-99")],
    "cache": [()],
    "expected": [("dgx-1v", "2", "--size", "4KiB")],
    "calibrate system": [("dgx-1v", "TABLE", "--jobs", "1")],
    "calibrate gpu": [("--from", "RECORD", "-o", "KERNELS")],
    "topo list": [()],
    "topo show": [("dgx-h100",)],
    "topo check": [("dgx-1v", "dgx-h100")],
    "topo diff": [("dgx-1v", "dgx-1p")],
    "topo import": [(TRACES / "nvlink-4xh100nvl.txt",)],
}  # fmt: skip


GRID = """
run: {topology: dgx-1v, size: [64KiB, 3], root: [0, 9]}
train: {workload: resnet50-dgx1v, steps: 1}
"""

SPENT = """
reliability: {gpu_mtbf_h: 10000, restart_s: 300, checkpoint: {write: 10 GB/s, every: 100}}
"""


def write_files(folder: Path) -> dict[str, Path]:
    """Write the files that stand in `CALLS` by a word."""
    found = {
        "TRACE": traces.write_training(folder / "step.h5"),
        "RUN": traces.write_collective(folder / "run.h5"),
        "STEPS": table(folder / "steps.csv", {}, {"tensor": 3}),
        "KERNELS": folder / "kernels.json",
        "RUNS": folder / "runs.csv",
    }
    step = (TRACES / "resnet50-dgx1v.yaml").read_text(encoding="utf-8")
    record = json.dumps(measure(FakeGpu(), lambda text: None))
    texts = {"GRID": GRID, "SPENT": step + SPENT, "RECORD": record, "SERVED": SERVED, "JOBS": JOBS}
    for name, text in texts.items():
        found[name] = folder / f"{name.lower()}.yaml"
        found[name].write_text(text, encoding="utf-8")
    found["RUNS"].write_text(SERVED_RUNS, encoding="utf-8")
    found["TABLE"] = folder / "table.log"
    words = ["nccl-tests", "all_reduce_perf", "dgx-1v", "-b", "8", "-e", "8", "--jobs", "1"]
    with found["TABLE"].open("w", encoding="utf-8") as file, redirect_stdout(file):
        assert run(words) == 0
    return found
