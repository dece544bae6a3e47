"""Order of the parts of layers in a training step of ASTRA-sim and SimAI, by parallelism.

Computation is one chain. It includes blocking communication; other communication runs concurrently until a step
waits for it. A step ends when all communication has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from clusim.base.errors import InputError
from clusim.formats.recordings.layers import LayerPart, LayerTable, RankStep, TableLayer

Roles = Callable[[TableLayer, str, LayerPart], str]
"""Role of a communication's groups.

The arguments are a layer, ``forward``, ``input`` or ``weight``, and the part.
"""

FORWARD, INPUT, WEIGHT = "forward", "input", "weight"


def _forward(step: RankStep, layer: TableLayer, roles: Roles) -> None:
    """Run a layer forward; later steps wait for its communication."""
    step.compute(layer, layer.forward, "forward")
    step.wait(
        step.communicate(layer, layer.forward, "forward", roles(layer, FORWARD, layer.forward))
    )


def _weight(step: RankStep, layer: TableLayer, roles: Roles) -> None:
    """Compute a weight gradient and start its communication; no step waits for it."""
    step.compute(layer, layer.weight_grad, "weight gradient")
    role = roles(layer, WEIGHT, layer.weight_grad)
    step.communicate(layer, layer.weight_grad, "weight gradient", role)


def _input(step: RankStep, layer: TableLayer, roles: Roles) -> int | None:
    """Compute an input gradient and start its communication; return the end."""
    step.compute(layer, layer.input_grad, "input gradient")
    role = roles(layer, INPUT, layer.input_grad)
    return step.communicate(layer, layer.input_grad, "input gradient", role)


def micro(step: RankStep, table: LayerTable, roles: Roles) -> None:
    """Run only the communication of weight gradients, in sequence."""
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
    """Overlap the communication of a layer's input gradient with its weight gradient.

    The first layer has no communication of an input gradient.
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
    """Run the blocking communication of input gradients, with recomputation of layers.

    Parameters
    ----------
    checkpoints, restarts : set of int
        Layers with stored inputs, and layers before whose backward pass the forward pass is repeated from the last
        checkpoint.
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
    """Exchange embeddings concurrently with the bottom layers, in both directions.

    Parameters
    ----------
    last_bottom : int
        Layer after which the exchange of layer 0 must be complete.
    enhanced : bool
        True if the step does not wait for the exchange of gradients after the first layer's weight gradient.
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
