"""Measured rows as workloads on machines, and what had to be assumed of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from clusim.base.errors import InputError
from clusim.validation.steps.machines import RowMachines, machines_of
from clusim.validation.steps.models import model_spec
from clusim.validation.steps.rows import NEEDED, StepRow
from clusim.workload import PRECISIONS, Workload

_LIBRARIES = ("flash1", "flash2", "flash3", "cudnn")
"""Words of the column attention that name a library."""

_FRAMEWORKS = (
    (("megatron-deepspeed",), "megatron-deepspeed"),
    (("megatron", "nemo"), "megatron"),
    (("maxtext", "jax", "alpa", "t5x"), "jax"),
)
"""Words of the column framework -> the host that issues as it does; PyTorch otherwise."""


_EAGER = (
    "pytorch",
    "torch",
    "llm-foundry",
    "composer",
    "fsdp",
    "simumax",
    "deepspeed",
    "huggingface",
)
"""Words of the column framework that issue as PyTorch does."""


@dataclass(frozen=True, slots=True)
class StepCase:
    """What is simulated for a row.

    Attributes
    ----------
    workload : Workload
        With the measured number of replicas.
    nodes : int
        Number of its machines.
    notes : tuple of str
        What was assumed, because the row does not say it.
    """

    row: StepRow
    machines: RowMachines
    nodes: int
    workload: Workload
    notes: tuple[str, ...]


def case_of(row: StepRow) -> StepCase:
    """Return what to simulate for a row; raises `InputError` if it cannot be."""
    notes = [f"{name} {text[:40]!r}: no number, as if not given" for name, text in row.unread]
    for name, text in row.unread:
        if name in NEEDED or name == "step_s":
            raise InputError(f"{name} {text[:40]!r}: is no number that it can be")
    for name in ("seq", "global_batch"):
        if not getattr(row, name):
            raise InputError(f"{name} is not given")
    machines = machines_of(row, notes)
    if not row.measured_s and not row.tflops_per_gpu:
        raise InputError("no time of a step, and no tokens or TFLOP/s that give one")
    sizes = _sizes(row, notes)
    spec: dict[str, Any] = {
        "name": row.id or row.where,
        "model": model_spec(row),
        "sequence": row.seq,
        "batch": {"global": row.global_batch, "micro": _micro(row, notes)},
        "precision": _precision(row, notes),
        "attention": _attention(row, notes),
        "recompute": _recompute(row, notes),
        "parallel": sizes,
        "data": _sharding(row, notes),
        "gradient_bits": _gradient_bits(row, notes),
        "host": {"framework": framework_of(row)},
        "hardware": _library(row, notes),
    }
    whole = spec["data"]["kind"] not in ("fsdp", "zero3")
    if "Megatron-Bridge" in row.framework and spec["precision"].startswith("fp8") and whole:
        notes.append("weights in 8 bits alone assumed, as Megatron-Bridge's fp8_param_gather")
        spec["primary_weights"] = "fp8"
    if _megatron(row) == "megatron-deepspeed":
        # Its vocabulary-parallel cross-entropy is one kernel per operation, and autograd adds gradients up.
        spec |= {"loss": "plain", "accumulation": "added"}
    if row.chunks > 1 and row.pipeline > 1:
        spec["pipeline"] = {"schedule": "interleaved", "chunks": row.chunks}
    along = row.sequence_parallel.lower()
    if row.tensor > 1:
        said = along.startswith(("yes", "no")) and not along.startswith("not")
        if not said:
            notes.append("sequence parallelism not said: assumed with Megatron")
        wanted = along.startswith("yes") if said else _megatron(row) == "megatron"
        spec["tensor"] = {"sequence_parallel": wanted}
    nodes, ranks = machines.placed(row.n_gpus)
    if ranks is not None:
        sizes["ranks"] = ranks
    if framework_of(row) == "pytorch" and not any(name in row.framework.lower() for name in _EAGER):
        notes.append(f"framework {row.framework[:40]!r}: issued as PyTorch's assumed")
    try:
        workload = Workload.model_validate(spec)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        raise InputError(f"{'.'.join(map(str, found['loc']))}: {found['msg'].lower()}") from None
    return StepCase(row, machines, nodes, workload, tuple(notes))


def _sizes(row: StepRow, notes: list[str]) -> dict[str, Any]:
    found = {name: getattr(row, name) or 1 for name in ("tensor", "pipeline", "context", "expert")}
    others = found["tensor"] * found["pipeline"] * found["context"]
    data, rest = divmod(row.n_gpus, others)
    if rest or not data:
        raise InputError(
            f"{row.n_gpus} GPUs are no multiple of {others}, what its parallelism needs"
        )
    if row.data and row.data != data:
        notes.append(f"data {row.data} does not go with the number of GPUs: {data} simulated")
    return {**found, "data": data}


def _micro(row: StepRow, notes: list[str]) -> int:
    if not row.micro_batch:
        notes.append("microbatch not said: 1 assumed")
    return row.micro_batch or 1


def _precision(row: StepRow, notes: list[str]) -> str:
    word = row.precision.lower()
    found = [name for name in PRECISIONS if name in word]
    if found:
        return min(found, key=lambda name: (PRECISIONS[name].gemm_bytes, -len(name)))
    if word in ("", "not stated", "unknown"):
        notes.append("precision not said: bf16 assumed")
        return "bf16"
    raise InputError(f"precision {row.precision!r} is not modelled")


def _attention(row: StepRow, notes: list[str]) -> str:
    word = row.attention.lower()
    if "plain" in word or "eager" in word:
        return "plain"
    if not word or word == "unknown":
        notes.append("attention not said: fused assumed")
    return "flash"


def _library(row: StepRow, notes: list[str]) -> dict[str, str]:
    """Return whose fused attention a row ran."""
    word = row.attention.lower()
    if _attention(row, []) == "plain":
        return {}
    if "llm-foundry" in row.framework:
        # Otherwise the default of its script until April 2024.
        library = "flash2" if _foundry_sweeps(row, _FOUNDRY_FLASH) else "flash-triton"
        notes.append(f"attention {library}, as LLM Foundry's benchmark scripts had it")
        return {"attention_library": library}
    if row.framework.lower().startswith("nemo container 24.0"):
        # Before Transformer Engine took FlashAttention 3.
        library = "flash2" if row.context > 1 else "cudnn"
        notes.append(f"attention not said: {library} assumed, as it is older than FlashAttention 3")
        return {"attention_library": library}
    named = [name for name in _LIBRARIES if name in word.replace("attention-", "")]
    if named and "not stated" not in word:
        return {"attention_library": named[0]}
    if framework_of(row) in ("pytorch", "torch-compile") and "cudnn" not in word:
        # What its own fused attention is built on (2.2 and later).
        return {"attention_library": "flash2"}
    return {}


_FOUNDRY_FLASH = ("1b", "3b", "7b", "70b")
"""Models that LLM Foundry's sweep on 128 and more H100 ran with FlashAttention 2; others with Triton's
(``scripts/train/benchmarking/sweep.py`` at 5e85bd62)."""

_FOUNDRY_GRADIENTS = ("1b", "3b")
"""Models of which it shards gradients and optimiser, and of all others the weights too."""


def _foundry_sweeps(row: StepRow, models: tuple[str, ...]) -> bool:
    """Return whether a row is of the sweep, and its model one of these."""
    swept = row.n_gpus >= 128 and "h100" in row.hardware.lower()
    return swept and row.model.lower().rpartition("-")[2] in models


_SCRIPTED = ("nemo container 24.03.01", "nemo container 24.05", "nemo container 24.07")
"""Releases whose scripts reduce gradients of 16 bits and compute nothing again (24.03 reduced 32)."""


def _recompute(row: StepRow, notes: list[str]) -> str:
    word = row.recompute.lower()
    for name in ("full", "selective", "none"):
        if word.startswith(name):
            return name
    if _nemo_scripts(row):
        notes.append("recomputation not said: none, as in the scripts of NeMo-Framework-Launcher")
        return "none"
    notes.append("recomputation not said: the least that fits into memory")
    return "none"


def _nemo_scripts(row: StepRow) -> bool:
    """Return whether a row is of a container whose training scripts NVIDIA published: NeMo-Framework-Launcher."""
    return row.framework.lower().startswith(_SCRIPTED)


def _gradient_bits(row: StepRow, notes: list[str]) -> int:
    """Return the bits of the gradients that ranks reduce.

    NeMo's scripts of 2024 have ``grad_sync_dtype=bf16``, those of Megatron-Bridge ``grad_reduce_in_fp32: false``.
    """
    if "mode DEFAULT" in row.notes:
        return 32
    if _megatron(row) != "megatron":
        return 16
    if _nemo_scripts(row) or "Megatron-Bridge" in row.framework:
        notes.append("gradients of 16 bits assumed, as NVIDIA's scripts for its tables have them")
        return 16
    return 32


def _sharding(row: StepRow, notes: list[str]) -> dict[str, Any]:
    word = row.sharding.lower()
    if "fsdp" in word:
        return {"kind": "zero2" if "gradients and optimizer" in word else "fsdp"}
    for name in ("zero3", "zero2", "zero1"):
        if name in word.replace("-", "").replace(" ", ""):
            return {"kind": name}
    overlap = "overlap off" not in row.notes
    if "distributed" in word:
        return {"kind": "distributed-optimizer", "overlap": overlap}
    if word in ("", "unknown", "not stated"):
        if "llm-foundry" in row.framework:
            kind = "zero2" if _foundry_sweeps(row, _FOUNDRY_GRADIENTS) else "fsdp"
            notes.append(f"sharding not said: {kind}, as LLM Foundry's benchmark scripts had it")
            return {"kind": kind}
        if _megatron(row) == "megatron":
            notes.append("sharding not said: distributed optimiser assumed")
            return {"kind": "distributed-optimizer", "overlap": overlap}
        notes.append("sharding not said: plain data parallelism assumed")
    # Megatron-DeepSpeed reduces its gradients behind the last backward pass.
    return {"kind": "ddp", "overlap": overlap and _megatron(row) != "megatron-deepspeed"}


def _megatron(row: StepRow) -> str:
    """Return which Megatron a row is from; empty is none."""
    word = framework_of(row)
    return word if word.startswith("megatron") else ""


def framework_of(row: StepRow) -> str:
    """Return the framework whose host issues the work of a row."""
    word, mode = row.framework.lower(), row.compile.lower()
    if mode.startswith("cuda-graph") and "part" not in mode:
        return "cuda-graph"
    for names, found in _FRAMEWORKS:
        if any(name in word for name in names):
            return found
    if "compile" in mode and not mode.startswith(("eager", "no")):
        return "torch-compile"
    return "pytorch"
