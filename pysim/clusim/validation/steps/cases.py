"""Measured rows as workloads on systems, with the assumptions of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from clusim.base.errors import InputError
from clusim.validation.steps.row_machines import RowMachines, machines_of
from clusim.validation.steps.rows import NEEDED, StepRow, model_spec
from clusim.workload import PRECISIONS, Workload
from clusim.workload.spec import RecomputedModule

_LIBRARIES = ("flash1", "flash2", "flash3", "cudnn")
"""Words of the column attention that name a library."""

_FRAMEWORKS = (
    (("megatron-deepspeed",), "megatron-deepspeed"),
    (("megatron", "nemo"), "megatron"),
    (("maxtext", "jax", "alpa", "t5x"), "jax"),
)
"""Words of the column framework -> the host with similar issue costs; PyTorch otherwise."""

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
"""Words of the column framework with PyTorch's issue costs."""


@dataclass(frozen=True, slots=True)
class StepCase:
    """Simulated case of a row.

    Attributes
    ----------
    workload : Workload
        With the measured number of replicas.
    nodes : int
        Number of its nodes.
    notes : tuple of str
        Assumptions on properties that the row does not give.
    """

    row: StepRow
    machines: RowMachines
    nodes: int
    workload: Workload
    notes: tuple[str, ...]


def case_of(row: StepRow) -> StepCase:
    """Return the case of a row; raises `InputError` if it cannot be simulated."""
    notes = [*row.unused]
    notes += [
        f"{name} {text[:40]!r}: no number, as if not given"
        for name, text in row.unread
    ]
    for name, text in row.unread:
        if name in NEEDED or name == "step_s":
            raise InputError(f"{name} {text[:40]!r}: must be a valid number")
    for name in ("seq", "global_batch"):
        if not getattr(row, name):
            raise InputError(f"{name} is not given")
    machines = machines_of(row, notes)
    if not row.measured_s and not row.tflops_per_gpu:
        raise InputError(
            "no time of a step, and no tokens or TFLOP/s to compute it from"
        )
    sizes = _sizes(row, notes)
    spec: dict[str, Any] = {
        "name": row.id or row.where,
        "model": model_spec(row),
        "sequence": row.seq,
        "batch": {"global": row.global_batch, "micro": _micro(row, notes)},
        "precision": _precision(row, notes),
        "attention": _attention(row, notes),
        **_recomputation(row, notes),
        "parallel": sizes,
        "data": _sharding(row, notes),
        "gradient_bits": _gradient_bits(row, notes),
        "host": {"framework": framework_of(row)},
        "hardware": _library(row, notes),
    }
    unsharded = spec["data"]["kind"] not in ("fsdp", "zero3")
    if (
        "Megatron-Bridge" in row.framework
        and spec["precision"].startswith("fp8")
        and unsharded
    ):
        notes.append(
            "only weights in 8 bits assumed, as Megatron-Bridge's fp8_param_gather"
        )
        spec["primary_weights"] = "fp8"
    if _megatron(row) == "megatron-deepspeed":
        # Its vocabulary-parallel cross-entropy is one kernel per operation, and autograd adds gradients up.
        spec |= {"loss": "plain", "accumulation": "added"}
    if row.chunks > 1 and row.pipeline > 1:
        spec["pipeline"] = {"schedule": "interleaved", "chunks": row.chunks}
    if row.tensor > 1:
        spec["tensor"] = _tensor(row, notes)
    nodes, ranks = machines.place_gpus(row.n_gpus)
    if ranks is not None:
        sizes["ranks"] = ranks
    if framework_of(row) == "pytorch" and not any(
        name in row.framework.lower() for name in _EAGER
    ):
        notes.append(
            f"framework {row.framework[:40]!r}: issued as PyTorch's assumed"
        )
    return StepCase(row, machines, nodes, _workload_of(spec), tuple(notes))


def _workload_of(spec: dict[str, Any]) -> Workload:
    """Return a workload; raise `InputError` with the first key that is invalid."""
    try:
        return Workload.model_validate(spec)
    except ValidationError as error:
        result = error.errors(include_url=False)[0]
        key = ".".join(map(str, result["loc"]))
        raise InputError(f"{key}: {result['msg'].lower()}") from None


_TENSOR_OVERLAP = re.compile(r"\bTP(?:, \w+)*(?: and \w+)? overlap on\b")
"""Words of the column notes for tensor-parallel communication beside products (Megatron's ``--tp-comm-overlap``)."""


def _tensor(row: StepRow, notes: list[str]) -> dict[str, bool]:
    """Return the keys of tensor parallelism."""
    along = row.sequence_parallel.lower()
    is_overlapped = "async tp" in f"{row.notes} {along}".lower()
    if is_overlapped or _TENSOR_OVERLAP.search(row.notes):
        # Frameworks overlap gathers and scatters of sequence parallelism only.
        return {"sequence_parallel": True, "overlap": True}
    if along.startswith(("yes", "no")) and not along.startswith("not"):
        return {"sequence_parallel": along.startswith("yes")}
    notes.append("sequence parallelism not given: assumed with Megatron")
    return {"sequence_parallel": _megatron(row) == "megatron"}


def _sizes(row: StepRow, notes: list[str]) -> dict[str, Any]:
    result = {
        name: getattr(row, name) or 1
        for name in ("tensor", "pipeline", "context", "expert")
    }
    model_size = result["tensor"] * result["pipeline"] * result["context"]
    data, remainder = divmod(row.n_gpus, model_size)
    if remainder or not data:
        raise InputError(
            f"{row.n_gpus} GPUs are not a multiple of {model_size}, as its parallelism needs"
        )
    if row.data and row.data != data:
        notes.append(
            f"data {row.data} contradicts the number of GPUs: {data} simulated"
        )
    return {**result, "data": data}


def _micro(row: StepRow, notes: list[str]) -> int:
    if not row.micro_batch:
        notes.append("microbatch not given: 1 assumed")
    return row.micro_batch or 1


_PRECISION_WORDS = {
    "fp8-mx": "mxfp8",
    "fp8-cs": "fp8-current",
    "current scaling": "fp8-current",
    "tensorwise": "fp8-current",
}
"""Words for scales of 8-bit tensors in tables (Megatron-Bridge, torchao) -> precision."""


def _precision(row: StepRow, notes: list[str]) -> str:
    word = row.precision.lower()
    result = [name for name in PRECISIONS if name in word]
    result += [name for text, name in _PRECISION_WORDS.items() if text in word]
    if "rowwise" in word:
        notes.append(
            "scales by rows: as scales of tensors, their cost is not modelled"
        )
    if "other scaling" in word:
        notes.append(
            "scales of 8-bit tensors not given: delayed, one per tensor, assumed"
        )
    if result:
        return min(
            result, key=lambda name: (PRECISIONS[name].gemm_bytes, -len(name))
        )
    if word in ("", "not stated", "unknown"):
        notes.append("precision not given: bf16 assumed")
        return "bf16"
    raise InputError(f"precision {row.precision!r} is not modelled")


def _attention(row: StepRow, notes: list[str]) -> str:
    word = row.attention.lower()
    if "plain" in word or "eager" in word:
        return "plain"
    if not word or word == "unknown":
        notes.append("attention not given: fused assumed")
    return "flash"


def _library(row: StepRow, notes: list[str]) -> dict[str, str]:
    """Return the fused attention library of a row."""
    word = row.attention.lower()
    if _attention(row, []) == "plain":
        return {}
    if "llm-foundry" in row.framework:
        # Otherwise the default of its script until April 2024.
        library = (
            "flash2" if _foundry_sweeps(row, _FOUNDRY_FLASH) else "flash-triton"
        )
        notes.append(
            f"attention {library}, as LLM Foundry's benchmark scripts had it"
        )
        return {"attention_library": library}
    if row.framework.lower().startswith("nemo container 24.0"):
        # Before Transformer Engine adopted FlashAttention 3.
        library = "flash2" if row.context > 1 else "cudnn"
        notes.append(
            f"attention not given: {library} assumed, older than FlashAttention 3"
        )
        return {"attention_library": library}
    named = [name for name in _LIBRARIES if name in word.replace("attention-", "")]
    if named and "not stated" not in word:
        return {"attention_library": named[0]}
    if framework_of(row) in ("pytorch", "torch-compile") and "cudnn" not in word:
        # PyTorch's fused attention is built on it (2.2 and later).
        return {"attention_library": "flash2"}
    return {}


_FOUNDRY_FLASH = ("1b", "3b", "7b", "70b")
"""Models that LLM Foundry's sweep on 128 and more H100 ran with FlashAttention 2; others with Triton's
(``scripts/train/benchmarking/sweep.py`` at 5e85bd62)."""

_FOUNDRY_GRADIENTS = ("1b", "3b")
"""Models with sharded gradients and optimiser in that sweep; other models also shard weights."""


def _foundry_sweeps(row: StepRow, models: tuple[str, ...]) -> bool:
    """Return True if a row is of the sweep and its model in `models`."""
    swept = row.n_gpus >= 128 and "h100" in row.hardware.lower()
    return swept and row.model.lower().rpartition("-")[2] in models


_SCRIPTED = (
    "nemo container 24.03.01",
    "nemo container 24.05",
    "nemo container 24.07",
)
"""Releases with scripts that reduce gradients of 16 bits and do not recompute (24.03 reduced 32)."""


def _recomputation(row: StepRow, notes: list[str]) -> dict[str, Any]:
    """Return the keys of a workload for the recomputation of a row."""
    kind, _, detail = row.recompute.lower().replace(")", "").partition("(")
    kind, detail = kind.strip(), detail.strip()
    if kind in ("none", "full"):
        return {"recompute": kind}
    if kind == "selective":
        return _selective(row, detail, notes)
    if _nemo_scripts(row):
        notes.append(
            "recomputation not given: none, as in the scripts of NeMo-Framework-Launcher"
        )
    else:
        notes.append("recomputation not given: the least that fits into memory")
    return {"recompute": "none"}


def _selective(row: StepRow, detail: str, notes: list[str]) -> dict[str, Any]:
    """Return the keys for selective recomputation: of every n-th layer, of modules, or by operators."""
    if every := re.search(r"every (other|second|third|\d+)", detail):
        ordinals = {"other": 2, "second": 2, "third": 3}
        number = ordinals.get(every[1]) or int(every[1])
        return {"recompute": "full", "recomputation": {"every": number}}
    names = re.findall(r"\w+", detail)
    if names and set(names) <= set(get_args(RecomputedModule)):
        return {"recompute": "selective", "recomputation": {"modules": names}}
    titan = "torchtitan" in row.framework.lower()
    if titan and not detail:
        notes.append(
            "selective recomputation of operators assumed, TorchTitan's default"
        )
    if re.search(r"\bop", detail) or (titan and not detail):
        return {
            "recompute": "selective",
            "recomputation": {"operators": "torchtitan"},
        }
    if detail:
        notes.append(
            f"recomputation {detail!r}: ignored, the core of attention assumed"
        )
    return {"recompute": "selective"}


def _nemo_scripts(row: StepRow) -> bool:
    """Return True if NVIDIA published the training scripts of a row's container.

    The scripts are in NeMo-Framework-Launcher.
    """
    return row.framework.lower().startswith(_SCRIPTED)


def _gradient_bits(row: StepRow, notes: list[str]) -> int:
    """Return the bits of the gradients that ranks reduce.

    NeMo's scripts of 2024 set ``grad_sync_dtype=bf16``, Megatron-Bridge's scripts ``grad_reduce_in_fp32: false``.
    """
    if "mode DEFAULT" in row.notes:
        return 32
    if _megatron(row) != "megatron":
        return 16
    if _nemo_scripts(row) or "Megatron-Bridge" in row.framework:
        notes.append(
            "gradients of 16 bits assumed, as NVIDIA's scripts for its tables have them"
        )
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
    # Megatron gathers parameters beside the forward pass only with its distributed optimiser.
    if "distributed" in word or "overlap of gradients and parameters" in word:
        return {"kind": "distributed-optimizer", "overlap": overlap}
    if word in ("", "unknown", "not stated"):
        if "llm-foundry" in row.framework:
            kind = "zero2" if _foundry_sweeps(row, _FOUNDRY_GRADIENTS) else "fsdp"
            notes.append(
                f"sharding not given: {kind}, as LLM Foundry's benchmark scripts had it"
            )
            return {"kind": kind}
        if _megatron(row) == "megatron":
            notes.append("sharding not given: distributed optimiser assumed")
            return {"kind": "distributed-optimizer", "overlap": overlap}
        notes.append("sharding not given: plain data parallelism assumed")
    # Megatron-DeepSpeed reduces its gradients after the last backward pass.
    return {
        "kind": "ddp",
        "overlap": overlap and _megatron(row) != "megatron-deepspeed",
    }


def _megatron(row: StepRow) -> str:
    """Return the Megatron variant of a row; empty for other frameworks."""
    word = framework_of(row)
    return word if word.startswith("megatron") else ""


def framework_of(row: StepRow) -> str:
    """Return the framework that determines the host overhead of a row."""
    word, mode = row.framework.lower(), row.compile.lower()
    if mode.startswith("cuda-graph") and "part" not in mode:
        return "cuda-graph"
    for names, result in _FRAMEWORKS:
        if any(name in word for name in names):
            return result
    if "compile" in mode and not mode.startswith(("eager", "no")):
        return "torch-compile"
    return "pytorch"
