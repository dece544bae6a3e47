"""Recomputation by layers and by modules: what a layer keeps and does again, if not all layers do alike.

**Hardware** Megatron-LM (``--recompute-method block`` and ``uniform``, ``--recompute-modules``), TorchTitan
(``selective_ac_option``). Of a group of layers only the input is kept, and the whole group is computed again before
the backward pass of its last layer. A module that is computed again frees its output and what is inside; its input is
kept. **Model** The same; a layer does all that it does again at the start of its backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusim.base.errors import InputError
from clusim.workload.layers import Again, Layer, Module
from clusim.workload.memory import ZERO
from clusim.workload.spec import Workload


class Recomputer:
    """Gives layers what they compute again; layers that are alike and do so alike are one object."""

    def __init__(self, workload: Workload) -> None:
        self.own = workload.recomputation
        self._known: dict[tuple[object, ...], tuple[Layer, Layer]] = {}
        whole = self.own.layers is not None or self.own.every is not None or self.own.group > 1
        if whole and workload.recompute != "full":
            raise InputError("layers, every and group need 'recompute: full'")
        if self.own.modules is not None and workload.recompute != "selective":
            raise InputError("modules need 'recompute: selective'")
        if sum((self.own.layers is not None, self.own.every is not None, self.own.group > 1)) > 1:
            raise InputError("give one of layers, every and group")
        if self.own.group > 1 and ZERO.get(workload.data.kind) == 3:
            raise InputError("groups of layers need whole weights, which sharded ones are not")

    def check(self, layers: Sequence[Layer]) -> None:
        """Raise an error for modules that no layer of the model has."""
        known = {module.name for layer in layers for module in layer.modules}
        for name in self.own.modules or ():
            if name not in known:
                raise InputError(
                    f"recompute: no layer has a module {name!r}; there are {', '.join(sorted(known)) or 'none'}"
                )

    def part(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return the layers of a part of a stage with what they compute again."""
        found = list(layers)
        if self.own.modules is not None:
            return [self._variant(layer, _by_modules(layer, self.own.modules)) for layer in layers]
        blocks = [i for i, layer in enumerate(layers) if _kept_less(layer)]
        for place, index in enumerate(blocks):
            layer = layers[index]
            if self.own.group > 1:
                low = place - place % self.own.group
                group = [layers[i] for i in blocks[low : low + self.own.group]]
                found[index] = self._variant(layer, _in_group(group, place - low))
            elif not self._chosen(place):
                found[index] = self._variant(layer, Again(kept=layer.activations.none))
        return found

    def _chosen(self, place: int) -> bool:
        """Return True if the block at this place of a part is computed again."""
        if self.own.layers is not None:
            return place < self.own.layers
        return (place + 1) % (self.own.every or 1) == 0

    def _variant(self, layer: Layer, again: Again) -> Layer:
        key = (id(layer), again.kept, again.transient, tuple(map(id, again.steps)))
        if key not in self._known:
            self._known[key] = (layer, replace(layer, again=again))
        return self._known[key][1]


def _kept_less(layer: Layer) -> bool:
    """Return True if full recomputation means anything to a layer: not to embeddings and heads."""
    return layer.activations.full < layer.activations.none


def _in_group(group: Sequence[Layer], place: int) -> Again:
    """Return what the layer at a place of a group does: the first keeps the input, the last computes all again."""
    last = place == len(group) - 1
    steps = tuple(step for layer in group for step in layer.forward) if last else ()
    whole = sum(layer.activations.none for layer in group) if last else 0
    return Again(steps, group[0].activations.full if place == 0 else 0, whole)


def _by_modules(layer: Layer, names: Sequence[str]) -> Again:
    """Return what a layer does that computes these modules again; those inside others are not counted twice."""
    chosen = [module for module in layer.modules if module.name in names]
    outer = [own for own in chosen if not any(_inside(own, other) for other in chosen)]
    outer.sort(key=lambda own: own.first)
    steps = tuple(step for own in outer for step in layer.forward[own.first : own.last])
    kept = layer.activations.none - sum(own.freed for own in outer)
    return Again(steps, kept, max((own.freed for own in outer), default=0))


def _inside(one: Module, other: Module) -> bool:
    return one is not other and other.first <= one.first and one.last <= other.last
