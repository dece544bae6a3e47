"""Recomputation of activations before a layer's backward pass: by layers, groups, modules or operators.

**Hardware** Megatron-LM (``--recompute-method block`` and ``uniform``, ``--recompute-modules``; its selective
granularity is the module ``core_attn``, also if attention is one fused kernel), TorchTitan
(``selective_ac_option``: every n-th layer, or ``op``). Only the input of a group of layers is kept, and the
complete group is recomputed before the backward pass of its last layer. A recomputed module frees its output
and its interior; its input is kept. TorchTitan's ``op`` keeps the results of fused attention, of
reduce-scatters, of the absolute maximum of a tensor, and of every second ``aten.mm`` of a layer, from the
first on; everything else is repeated: also 8-bit products (``aten._scaled_mm``) and grouped products.
**Source** pytorch/torchtitan, ``torchtitan/distributed/activation_checkpoint.py`` (``_apply_op_sac``);
Megatron-LM, ``megatron/core/transformer/attention.py`` (``_checkpointed_attention_forward``).
**Model** The same; a layer recomputes everything at the start of its backward pass. Of a product of joined
matrices the columns of the repeated matrices are computed again.
**Not modelled** The end of a repetition at the last tensor that the backward pass needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusim.base.errors import InputError
from clusim.workload.kernels import Gemm, Kernel, Precision
from clusim.workload.layers import Again, Beside, Comm, Layer, Module, Step, Wait
from clusim.workload.memory import ZERO
from clusim.workload.spec import Workload

CORE = "core_attn"
"""Module that ``recompute: selective`` repeats unless modules or operators are named."""

STATISTICS_BYTES = 4
"""Logarithm of a row's sum of exponents, which fused attention keeps [bytes]."""


class Recomputer:
    """Assignment of recomputation to layers; equal layers with equal settings are one object."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self.kind, self.spec = workload.recompute, workload.recomputation
        self.precision, self.tensor = precision, workload.parallel.tensor
        self._variants: dict[tuple[object, ...], tuple[Layer, Layer]] = {}
        spec = self.spec
        parts = [spec.layers is not None, spec.every is not None, spec.group > 1]
        if any(parts) and self.kind != "full":
            raise InputError("layers, every and group need 'recompute: full'")
        if spec.modules is not None and self.kind != "selective":
            raise InputError("modules need 'recompute: selective'")
        if sum(parts) > 1:
            raise InputError("choose one of layers, every and group")
        if spec.group > 1 and ZERO.get(workload.data.kind) == 3:
            raise InputError("groups of layers need complete weights, not sharded")
        if spec.operators is not None:
            self._check_operators(workload)

    def _check_operators(self, workload: Workload) -> None:
        if self.kind != "selective":
            raise InputError("operators need 'recompute: selective'")
        if self.spec.modules is not None:
            raise InputError("choose one of modules and operators")
        if workload.attention != "flash":
            raise InputError(
                "operators need 'attention: flash': the policy keeps its results"
            )

    def check(self, layers: Sequence[Layer]) -> None:
        """Raise an error for modules that no layer of the model has."""
        names = {module.name for layer in layers for module in layer.modules}
        for name in self.spec.modules or ():
            if name not in names:
                raise InputError(
                    f"recompute: no layer has a module {name!r}; there are {', '.join(sorted(names)) or 'none'}"
                )

    def assign(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return the layers of a part of a stage with their recomputation."""
        if self.kind == "none":
            return list(layers)
        if self.kind == "full":
            return self._by_place(layers)
        if self.spec.operators is not None:
            return [
                self._variant(
                    layer, _by_operators(layer, self.precision, self.tensor)
                )
                if _is_recomputable(layer)
                else layer
                for layer in layers
            ]
        modules = [CORE] if self.spec.modules is None else self.spec.modules
        return [
            self._variant(layer, _by_modules(layer, modules)) for layer in layers
        ]

    def _by_place(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return layers with some layers, or groups of layers, recomputed in full."""
        result = list(layers)
        blocks = [i for i, layer in enumerate(layers) if _is_recomputable(layer)]
        for place, index in enumerate(blocks):
            low = place - place % self.spec.group
            group = [layers[i] for i in blocks[low : low + self.spec.group]]
            again = Again(kept=layers[index].activations.none)
            if self._is_chosen(place):
                again = _in_group(group, place - low)
            result[index] = self._variant(layers[index], again)
        return result

    def _is_chosen(self, place: int) -> bool:
        """True if the block at this place of a part is recomputed."""
        if self.spec.layers is not None:
            return place < self.spec.layers
        return (place + 1) % (self.spec.every or 1) == 0

    def _variant(self, layer: Layer, again: Again) -> Layer:
        # Narrowed products are new objects each time; otherwise equal steps are the same objects.
        steps = (
            () if self.spec.operators is not None else tuple(map(id, again.steps))
        )
        key = (id(layer), again.kept, again.transient, steps)
        if key not in self._variants:
            self._variants[key] = (layer, replace(layer, again=again))
        return self._variants[key][1]


def _is_recomputable(layer: Layer) -> bool:
    """True if full recomputation saves memory: not for embeddings and heads."""
    return layer.activations.full < layer.activations.none


def _in_group(group: Sequence[Layer], place: int) -> Again:
    """Return the recomputation of a layer in a group.

    The first layer keeps its input, the last recomputes the group.
    """
    last = place == len(group) - 1
    steps = tuple(step for layer in group for step in layer.forward) if last else ()
    restored = sum(layer.activations.none for layer in group) if last else 0
    return Again(steps, group[0].activations.full if place == 0 else 0, restored)


# ---- modules --------------------------------------------------------------------------------------


def _by_modules(layer: Layer, names: Sequence[str]) -> Again:
    """Return the recomputation of the named modules of a layer; nested modules are counted once."""
    chosen = [module for module in layer.modules if module.name in names]
    outer = [
        one for one in chosen if not any(_is_inside(one, other) for other in chosen)
    ]
    outer.sort(key=lambda module: module.first)
    steps = tuple(
        step
        for module in outer
        for step in layer.forward[module.first : module.last]
    )
    kept_bytes = layer.activations.none - sum(module.freed for module in outer)
    return Again(
        steps, kept_bytes, max((module.freed for module in outer), default=0)
    )


def _is_inside(one: Module, other: Module) -> bool:
    return one is not other and other.first <= one.first and one.last <= other.last


# ---- operators ------------------------------------------------------------------------------------


def _by_operators(layer: Layer, precision: Precision, tensor: int) -> Again:
    """Return the recomputation of a layer by TorchTitan's policy."""
    policy = _OperatorPolicy(layer, precision, tensor)
    for place, step in enumerate(layer.forward):
        policy.add(place, step)
    kept_bytes = layer.activations.full + policy.kept_bytes
    return Again(
        tuple(policy.steps), kept_bytes, max(0, layer.activations.none - kept_bytes)
    )


class _OperatorPolicy:
    """Repeated steps, and kept results [bytes], of a layer by TorchTitan's policy."""

    def __init__(self, layer: Layer, precision: Precision, tensor: int) -> None:
        self.steps: list[Step] = []
        self._element_bytes, self._eight_bits = (
            precision.bytes,
            bool(precision.recipe),
        )
        self._tensor = tensor
        self._core = next(m for m in layer.modules if m.name == CORE)
        self._columns = dict(layer.joined)
        self._products = 0
        self._repeated: dict[str, int] = {}
        self._attention_bytes = 0
        self._result_bytes: dict[str, int] = {}
        self._kept_keys: set[str] = set()
        self._started: dict[str, type] = {}

    @property
    def kept_bytes(self) -> int:
        """Results that are kept [bytes]."""
        return self._attention_bytes + sum(self._result_bytes.values())

    def add(self, place: int, step: Step) -> None:
        """Repeat a step, or keep its result."""
        if isinstance(step, Kernel | Comm):
            self._started.setdefault(step.name.removesuffix(" forward"), type(step))
        if self._core.first <= place < self._core.last:
            self._keep_attention(step)
        elif isinstance(step, Beside) or not self._is_kept(step):
            self.steps.append(step)
        elif isinstance(step, Kernel) and step.gemm is not None:
            self._add_product(step, step.gemm)

    def _keep_attention(self, step: Step) -> None:
        """Keep the result of attention; the parts of a ring have one result."""
        if isinstance(step, Kernel) and step.fused is not None:
            shape = step.fused
            row_bytes = shape.value * self._element_bytes + STATISTICS_BYTES
            size = shape.batch * shape.heads * shape.rows * row_bytes
            self._attention_bytes = max(self._attention_bytes, size)

    def _is_kept(self, step: Kernel | Comm | Wait) -> bool:
        """True of a step with a result that is kept, completely or in part."""
        if isinstance(step, Wait):
            return step.key in self._kept_keys
        if isinstance(step, Comm):
            return self._keep_sum(step)
        if step.gemm is not None:
            return step.gemm.batch == 1 and not self._eight_bits
        return (
            step.name.endswith(" amax")
            or step.name.removesuffix(" add") in self._result_bytes
        )

    def _keep_sum(self, step: Comm) -> bool:
        """Keep a rank's received part of a scattered sum; True if the step is one.

        Messages of an overlapped product have its name: sums follow its first kernel, inputs precede it.
        """
        pieces = step.operation == "sendrecv" and self._started[step.name] is Kernel
        if step.operation == "reduce_scatter":
            self._result_bytes[step.name] = step.bytes // self._tensor
        elif pieces:
            self._result_bytes[step.name] = step.bytes
        else:
            return False
        self._kept_keys.add(step.key)
        return True

    def _add_product(self, step: Kernel, gemm: Gemm) -> None:
        """Repeat every second matrix of a product; its pieces are one product."""
        if step.name not in self._repeated:
            matrices = self._columns.get(
                step.name.removesuffix(" forward"), (gemm.n,)
            )
            odd = self._products % 2
            self._repeated[step.name] = sum(matrices[1 - odd :: 2])
            self._products += len(matrices)
        repeated, result = self._repeated[step.name], step.name + " result"
        kept_bytes = gemm.m * (gemm.n - repeated) * self._element_bytes
        self._result_bytes[result] = self._result_bytes.get(result, 0) + kept_bytes
        if repeated:
            self.steps.append(_narrow(step, gemm, repeated))


def _narrow(kernel: Kernel, gemm: Gemm, columns: int) -> Kernel:
    """Return a product of fewer columns."""
    less = replace(gemm, n=columns)
    size = round(kernel.bytes * less.elements / gemm.elements)
    return replace(kernel, flops=less.flops, bytes=size, gemm=less)
