"""Public PyTorch programs, unmodified: number and bytes of their collectives and messages by arithmetic.

CLUSIM_SCRIPTS names a folder; programs that it lacks are fetched into it.
"""

from __future__ import annotations

import json
import os
import re
import string
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.torch_programs import calls, needs_torch

needs_torch()

FOLDER = os.environ.get("CLUSIM_SCRIPTS", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="CLUSIM_SCRIPTS: no folder")

ALL_REDUCE = "stas00/ml-engineering/744d01e/network/benchmarks/all_reduce_bench.py"
MEGATRON = "IBM/pytorch-communication-benchmarks/51dad6e/megatron-allreduce.py"
EXAMPLES = "pytorch/examples/main/distributed"
MINGPT = f"{EXAMPLES}/minGPT-ddp/mingpt"
NANOGPT = "karpathy/nanoGPT/master"
PARALLEL = f"{EXAMPLES}/tensor_parallelism"
TUTORIALS = "pytorch/tutorials/main"
PIPELINE = f"{TUTORIALS}/intermediate_source/pipelining_tutorial.rst"
ZERO = f"{TUTORIALS}/recipes_source/zero_redundancy_optimizer.rst"


def fetched(name: str) -> Path:
    """Return a file of a repository at a commit."""
    path = Path(FOLDER) / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        address = f"https://raw.githubusercontent.com/{name}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            path.write_bytes(answer.read())
    return path


def program(name: str, folder: Path) -> Path:
    """Return a program; of a page, its blocks of code."""
    path = fetched(name)
    if path.suffix != ".rst":
        return path
    blocks = re.findall(
        r"^(?:\.\. code:: python|.*::)\n\n((?:(?: +.*)?\n)+)", path.read_text("utf-8"), re.M
    )
    code = [
        textwrap.dedent(block)
        for block in blocks
        if re.search(r"^ *(import|def|if|class) ", block, re.M)
    ]
    script = folder / "script.py"
    script.write_text("\n".join(code), encoding="utf-8")
    return script


def result(folder: Path, name: str, options: str = "", arguments: str = "") -> dict[str, Any]:
    """Return the JSON output of a program."""
    script = program(name, folder)
    words = [sys.executable, "-m", "clusim", "torchrun", "--json", *options.split()]
    run = subprocess.run(
        [*words, str(script), *arguments.split()],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (folder / "output.txt").write_text(run.stdout + run.stderr, encoding="utf-8")
    done: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return done


def test_the_example_of_ddp_reduces_its_gradients_once(tmp_path: Path) -> None:
    done = result(tmp_path, f"{EXAMPLES}/ddp/example.py")
    assert calls(done)["allreduce", 8] == (1, 4 * ((10 * 10 + 10) + (10 * 5 + 5)))


def test_the_tutorial_of_ddp_reduces_once_per_step(tmp_path: Path) -> None:
    """2,048 samples in batches of 32 on 8 ranks, two epochs."""
    fetched(f"{EXAMPLES}/ddp-tutorial-series/datautils.py")
    done = result(tmp_path, f"{EXAMPLES}/ddp-tutorial-series/multigpu_torchrun.py", "", "2 1")
    steps = 2 * 2048 // 8 // 32
    assert calls(done)["allreduce", 8] == (steps, steps * 4 * (20 + 1))


def test_fsdp2_gathers_layers_twice_and_the_root_once(tmp_path: Path) -> None:
    """Ten steps of ten layers and a root, clipping by the norms of 125 tensors, and a checkpoint of their states."""
    for name in ("model", "checkpoint", "utils"):
        fetched(f"{EXAMPLES}/FSDP2/{name}.py")
    done = calls(result(tmp_path, f"{EXAMPLES}/FSDP2/example.py"))
    layers, root = 10 * 3_216, 33_824
    every = 4 * (layers + root)
    assert done["reduce_scatter", 8] == (10 * 11, 10 * every)
    assert done["allreduce", 8] == (10, 10 * 4 * 125)
    assert done["all_gather", 8] == (10 * 21 + 3 * 125, 10 * (every + 4 * layers) + 3 * every)


def test_tensor_parallel_layers_reduce_their_outputs(tmp_path: Path) -> None:
    fetched(f"{PARALLEL}/log_utils.py")
    done = calls(result(tmp_path, f"{PARALLEL}/tensor_parallel_example.py"))
    assert done["allreduce", 8] == (10, 10 * 20 * 5 * 4)


def test_sequence_parallel_layers_gather_inputs_and_scatter_outputs(tmp_path: Path) -> None:
    fetched(f"{PARALLEL}/log_utils.py")
    done = calls(result(tmp_path, f"{PARALLEL}/sequence_parallel_example.py"))
    assert done["all_gather", 8] == (10 * 2, 10 * 160 * (10 + 5) * 4)
    assert done["reduce_scatter", 8] == (10, 10 * 160 * 5 * 4)


def test_fsdp_and_tensor_parallelism_have_collectives_of_their_own_groups(tmp_path: Path) -> None:
    """Two tensor-parallel ranks with half of the model each, four replicas, ten steps of two layers."""
    for name in ("log_utils", "llama2_model"):
        fetched(f"{PARALLEL}/{name}.py")
    done = calls(result(tmp_path, f"{PARALLEL}/fsdp_tp_example.py"))
    activation, logits = 2_097_152, 262_144_000
    assert done["all_gather", 2] == (10 * 11, 10 * (10 * activation + logits))
    assert done["reduce_scatter", 2] == (10 * 10, 10 * 10 * activation)
    assert done["allreduce", 2] == (10 * 5, 10 * 5 * 1_024)
    half = 4 * (8_192_000 + 2 * (131_072 + 294_912 + 512) + 256)
    assert half == 36_180_992
    assert done["all_gather", 4] == done["reduce_scatter", 4] == (10, 10 * half)


def test_nanogpt_reduces_only_in_the_last_accumulation_step(tmp_path: Path) -> None:
    """GPT-2 124M with 16 / 8 accumulated batches; the first step has one bucket, later ones thirteen."""
    fetched(f"{NANOGPT}/model.py")
    configurator = fetched(f"{NANOGPT}/configurator.py")
    (tmp_path / configurator.name).write_bytes(configurator.read_bytes())
    data = tmp_path / "data" / "openwebtext"
    data.mkdir(parents=True)
    for name in ("train", "val"):
        tokens = np.random.default_rng(0).integers(0, 50257, 300_000)
        tokens.astype(np.uint16).tofile(data / f"{name}.bin")
    words = (
        "--batch_size=12 --block_size=1024 --gradient_accumulation_steps=16 --max_iters=2"
        " --eval_interval=1000 --eval_iters=1 --log_interval=1"
    )
    done = result(tmp_path, f"{NANOGPT}/train.py", "--compare off", words)
    steps = len(done["steps"])
    assert steps == 3
    parameters = 12 * (12 * 768 * 768 + 2 * 768) + (50304 + 1024 + 1) * 768
    assert calls(done)["allreduce", 8] == (1 + 13 * (steps - 1), steps * 4 * parameters)


def test_mingpt_reduces_all_gradients_once_per_step(tmp_path: Path) -> None:
    """31 characters, 8 ranks; the first step has one bucket, later ones five."""
    for name in ("hydra", "boto3", "fsspec"):
        pytest.importorskip(name, reason=f"minGPT needs {name}")
    for name in ("model.py", "trainer.py", "char_dataset.py", "gpt2_train_cfg.yaml"):
        fetched(f"{MINGPT}/{name}")
    text = tmp_path / "text.txt"
    text.write_text((string.ascii_lowercase + " .,\n?") * 6500, encoding="utf-8")
    words = f"data_config.path={text} trainer_config.max_epochs=1 data_config.truncate=0.02"
    done = result(tmp_path, f"{MINGPT}/main.py", "", words)
    parameters = 8 * 3_415_040 + 31 * 512 * 2 + 128 * 512 + 1_024
    steps = len(done["steps"])
    assert steps >= 2
    assert calls(done)["allreduce", 8] == (1 + 5 * (steps - 1), steps * parameters * 4)


def test_the_zero_recipe_reduces_once_and_broadcasts_every_parameter(tmp_path: Path) -> None:
    """Two jobs with DDP, which broadcasts the parameters; with ZeRO, their owners broadcast them again."""
    done = calls(result(tmp_path, ZERO))
    parameters = 20 * (2000 * 2000 + 2000) * 4
    assert parameters == 320_160_000
    assert done["allreduce", 2] == (2, 2 * parameters)
    count, size = done["broadcast", 2]
    # ZeRO also broadcasts objects.
    assert 0 <= size - 3 * parameters < 10_000
    assert count >= 40 + 2


def test_the_pipelining_tutorial_moves_four_activations_and_gradients(tmp_path: Path) -> None:
    done = result(tmp_path, PIPELINE, "--nproc-per-node 2")
    moved = 4 * 8 * 500 * 512 * 4
    assert moved == 4 * 8_192_000
    for rank in (done, done["others"][0]):
        for operation in ("send", "recv"):
            count, size = calls(rank)[operation, 2]
            # Sizes and shapes precede them as objects.
            assert 4 <= count <= 4 + 3
            assert 0 <= size - moved < 10_000


def test_the_benchmark_of_reductions_measures_the_simulated_time(tmp_path: Path) -> None:
    done = result(tmp_path, ALL_REDUCE, "", "--payload_size_in_gib 0.0625")
    size, trials = 1 << 26, 5 + 20
    assert calls(done)["allreduce", 8] == (2 * trials, trials * (size + 4))
    assert calls(done)["reduce", 8] == (trials, 4 * trials)
    (row,) = [c for c in done["calls"] if c["operation"] == "allreduce"]
    shown = re.search(
        r"64MiB \| +([0-9.]+)GBps \| +([0-9.]+)GBps", (tmp_path / "output.txt").read_text("utf-8")
    )
    assert shown is not None
    measured_us = size / float(shown[2]) / 1e3
    alone_us = row["time_us"] / trials
    # The events also enclose the host's time for one call.
    assert 0 < measured_us - alone_us < 40


def test_the_benchmark_of_megatron_groups_knows_its_groups_per_node(tmp_path: Path) -> None:
    """Ranks 0 and 1 are the first of their groups, rank 2 represents those that are not."""
    done = calls(result(tmp_path, MEGATRON, "--distinct 0,1,2", "-t 2 -c data"))
    assert done["allreduce", 4][0] == 18 * 102 + 17 * 22 + 5 * 12 + 7 * 7 == 2_319
    assert done["allreduce", 8][0] == 2_272 + 1
    assert "groups_per_node =  2" in (tmp_path / "output.txt").read_text("utf-8")
