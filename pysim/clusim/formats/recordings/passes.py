"""The order in which ASTRA-sim and SimAI run the parts of layers in a training step, by parallelism.

Computing is one chain. A blocking communication holds it; one that does not runs beside it until something waits for
it. A step ends when all communication has.
"""

from __future__ import annotations

from collections.abc import Callable

from clusim.base.errors import InputError
from clusim.formats.recordings.layers import LayerPart, LayerTable, RankStep, TableLayer

Roles = Callable[[TableLayer, str, LayerPart], str]
"""Takes a layer, one of ``forward``, ``input`` and ``weight``, and the part; returns the role of its groups."""

FORWARD, INPUT, WEIGHT = "forward", "input", "weight"


def _forward(step: RankStep, layer: TableLayer, roles: Roles) -> None:
    """Run a layer forward; what follows waits for its communication."""
    step.compute(layer, layer.forward, "forward")
    step.wait(
        step.communicate(layer, layer.forward, "forward", roles(layer, FORWARD, layer.forward))
    )


def _weight(step: RankStep, layer: TableLayer, roles: Roles) -> None:
    """Compute a weight gradient and start its communication, which nothing in the step waits for."""
    step.compute(layer, layer.weight_grad, "weight gradient")
    role = roles(layer, WEIGHT, layer.weight_grad)
    step.communicate(layer, layer.weight_grad, "weight gradient", role)


def _input(step: RankStep, layer: TableLayer, roles: Roles) -> int | None:
    """Compute an input gradient and start its communication; returns its end."""
    step.compute(layer, layer.input_grad, "input gradient")
    role = roles(layer, INPUT, layer.input_grad)
    return step.communicate(layer, layer.input_grad, "input gradient", role)


def micro(step: RankStep, table: LayerTable, roles: Roles) -> None:
    """Run nothing but the communication of weight gradients, one after the other."""
    for layer in table.layers:
        role = roles(layer, WEIGHT, layer.weight_grad)
        step.wait(step.communicate(layer, layer.weight_grad, "weight gradient", role))


def forward_only(step: RankStep, table: LayerTable, roles: Roles) -> None:
    """Run the layers forward."""
    for layer in table.layers:
        _forward(step, layer, roles)


def data_parallel(step: RankStep, table: LayerTable, roles: Roles) -> None:
    """Communicate weight gradients only; the first layer needs no input gradient."""
    for layer in table.layers:
        step.compute(layer, layer.forward, "forward")
        _left_out(table, layer.forward, layer.input_grad)
    for layer in reversed(table.layers):
        _weight(step, layer, roles)
        if layer is not table.layers[0]:
            step.compute(layer, layer.input_grad, "input gradient")


def _left_out(table: LayerTable, *parts: LayerPart) -> None:
    for part in parts:
        if part.operation:
            table.skipped[f"communications that {table.words[0]} does not do"] += 1


def hybrid(step: RankStep, table: LayerTable, roles: Roles) -> None:
    """Let the communication of input gradients run beside the weight gradient of the same layer.

    The first layer has none.
    """
    for layer in table.layers:
        _forward(step, layer, roles)
    for layer in reversed(table.layers):
        if layer is table.layers[0]:
            step.compute(layer, layer.input_grad, "input gradient")
            end = None
        else:
            end = _input(step, layer, roles)
        _weight(step, layer, roles)
        step.wait(end)


def transformer(
    step: RankStep, table: LayerTable, roles: Roles, checkpoints: set[int], restarts: set[int]
) -> None:
    """Let everything wait for the communication of input gradients, and run layers forward again where asked.

    Parameters
    ----------
    checkpoints, restarts : set of int
        Layers whose input is kept, and those before whose backward pass layers are run forward again from there.
    """
    for layer in table.layers:
        _forward(step, layer, roles)
    for at in range(len(table.layers) - 1, -1, -1):
        if at in restarts:
            start = max((c for c in checkpoints if c <= at), default=None)
            if start is None:
                raise InputError(
                    f"{table.name}:1: layer {at} is in checkpoint_initiates, and no checkpoint is at or before it"
                )
            for layer in table.layers[start:at]:
                _forward(step, layer, roles)
        layer = table.layers[at]
        step.wait(_input(step, layer, roles))
        _weight(step, layer, roles)


def dlrm(
    step: RankStep, table: LayerTable, roles: Roles, last_bottom: int, *, enhanced: bool
) -> None:
    """Exchange embeddings beside the bottom layers, in both directions.

    Parameters
    ----------
    last_bottom : int
        The layer after which the exchange of layer 0 must be done.
    enhanced : bool
        Whether the first layer's weight gradient need not wait for the exchange of gradients.
    """
    first, ends = table.layers[0], {}
    for at, layer in enumerate(table.layers):
        step.compute(layer, layer.forward, "forward")
        if layer.forward.operation == "alltoall":
            role = roles(layer, FORWARD, layer.forward)
            ends[at] = step.communicate(layer, layer.forward, "forward", role)
        else:
            _left_out(table, layer.forward)
            if at == last_bottom:
                step.wait(ends.get(0))
    end = None
    for at in range(len(table.layers) - 1, -1, -1):
        layer = table.layers[at]
        _weight(step, layer, roles)
        if at:
            step.compute(layer, layer.input_grad, "input gradient")
            _left_out(table, layer.input_grad)
        if at == last_bottom + 1:
            role = roles(first, INPUT, first.input_grad)
            end = step.communicate(first, first.input_grad, "input gradient", role)
        if not at and not enhanced:
            step.wait(end)
