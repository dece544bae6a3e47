"""Operations of a step as the source of a measured row counts them: a time from TFLOP/s per GPU.

Sources differ in what they count (formulas and code read at these releases):

- Megatron-LM of 2021 counts full recomputation and whole attention: ``96 B s l h^2 (1 + s / 6h + V / 16 l h)``
  (arXiv 2104.04473, section 5.1).
- Megatron-Core until 2025 (core_v0.8.0, ``num_floating_point_operations``) counts neither recomputation nor the mask:
  ``12 B s l h^2 (1 + g / n + s / h + gated f / h + V / 2 l h)``.
- NeMo (``nemo/utils/flops_formulas.py``, causal) and Megatron-Bridge (``flop_utils.py``) count no recomputation and
  half of the attention with a causal mask: what clusim counts as useful.

Rates of other frameworks are refused.
"""

from __future__ import annotations

from typing import Any

from clusim.base.errors import InputError
from clusim.validation.steps.rows import StepRow
from clusim.workload import Workload
from clusim.workload.parallel.plan import model_of


def counted_flops(row: StepRow, workload: Workload, useful: float) -> tuple[float, str]:
    """Return the operations of a step of all GPUs as a row's source counts them, and how [FLOP].

    Parameters
    ----------
    useful : float
        Operations of the step without recomputation and without what a mask leaves out [FLOP].
    """
    framework = row.framework.lower()
    if "nemo" in framework or "megatron-bridge" in framework:
        return useful, "without recomputation, half of causal attention"
    model: Any = model_of(workload.model)
    known = "megatron" in framework and "deepspeed" not in framework
    if not known or getattr(model, "experts", True):  # only transformers have the field
        raise InputError(
            f"{row.framework} of {row.model}: how operations were counted is not known; give the step's time"
        )
    size, layers, seq = model.hidden, model.layers, row.seq
    whole = row.global_batch * seq * layers * size**2
    if "2021" in framework or "including recompute" in row.notes:
        counted = 96 * whole * (1 + seq / (6 * size) + model.vocab / (16 * layers * size))
        return counted, "with full recomputation and whole attention"
    wide = model.intermediate / size * (1.5 if model.gated else 1.0)
    attention = 1 + model.kv_heads / model.heads + seq / size
    counted = 12 * whole * (attention + wide + model.vocab / (2 * layers * size))
    return counted, "without recomputation, with whole attention"
