"""Text workloads of ASTRA-sim 1: a parallelism, number of layers, one line per layer.

Times are cycles of 1 ns, as in ASTRA-sim. The file does not contain the number of ranks or the dimensions of the
network: all GPUs of the topology are ranks, the first dimension is a node, and the others connect nodes. One pass is
read.

The parallelism determines the order of the parts of layers in a training step, as in ASTRA-sim and SimAI.
Computation is one chain. It includes blocking communication; other communication runs concurrently until a step
waits for it. A step ends when all communication has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusim.base.errors import InputError
from clusim.formats.recordings.layers import (
    LayerPart,
    LayerTable,
    RankStep,
    TableLayer,
    parameter,
    recording,
)
from clusim.formats.recordings.model import Recording
from clusim.formats.recordings.source import Paths, names_of

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


POLICIES = (
    "MICRO", "DATA", "MODEL", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "HYBRID_CUSTOMIZED", "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED", "HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD", "DISTRIBUTED_INFERENCE",
)  # fmt: skip

_MODEL, _DATA, _ALL = "model", "data", "all ranks"
_OF = {
    "MODEL": (_ALL, ""),
    "DISTRIBUTED_INFERENCE": (_ALL, ""),
    "DATA": ("", _ALL),
    "MICRO": ("", _ALL),
    "HYBRID_DLRM": ("", _ALL),
    "HYBRID_DLRM_ENHANCED": ("", _ALL),
    "HYBRID_DATA_MODEL": ("machine", "across nodes"),
    "HYBRID_MODEL_DATA": ("across nodes", "machine"),
    "HYBRID_TRANSFORMER": (_MODEL, _DATA),
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD": (_MODEL, _DATA),
}
"""Parallelism -> group of forward and input gradient, group of weight gradient, or empty."""


def read(
    paths: Paths,
    *,
    num_ranks: int | None = None,
    machine_ranks: int | None = None,
    calls: int | None = None,
) -> Recording:
    """Read a text workload.

    Parameters
    ----------
    num_ranks, machine_ranks : int or None
        Ranks of the job, and ranks per node.
    calls : int or None
        Number of calls of each rank, from the start; all by default.

    Raises
    ------
    InputError
        The file is invalid, or the number of ranks is not given.
    """
    names = names_of(paths)
    if len(names) != 1:
        raise InputError(f"{names[1]}: an ASTRA-sim workload is one file; use only {names[0]}")
    name = names[0]
    if num_ranks is None:
        raise InputError(
            f"{name}: an ASTRA-sim workload does not contain the number of ranks; set --topology and --nodes:"
            " all their GPUs are used"
        )
    return _Reader(name, num_ranks, machine_ranks or num_ranks).recording(calls)


class _Reader:
    """State of reading one file."""

    def __init__(self, name: str, num_ranks: int, machine_ranks: int) -> None:
        self.name, self.num_ranks, self.machine_ranks = name, num_ranks, machine_ranks
        self.table = LayerTable(name)
        self.policy = self.table.words[0]
        if self.policy not in POLICIES:
            raise InputError(
                f"{name}:1: parallelism {self.policy[:40]!r}; it is one of {', '.join(POLICIES)}"
            )
        if self.policy == "HYBRID_CUSTOMIZED":
            self.table = LayerTable(name, policies=True)
        self.assumed = [
            f"no number of ranks in the file: all {num_ranks} GPUs of the topology; a cycle is 1 ns;"
            " one pass"
        ]
        self.strides = self._strides()

    def _strides(self) -> dict[str, tuple[int, int]]:
        """Return the stride between the ranks of a group and their number, by role."""
        inside = min(self.machine_ranks, self.num_ranks)
        model = inside
        asked = parameter(self.table, ["model_parallel_NPU_group"], self.num_ranks)
        if asked is not None:
            model = asked
        for what, size in (("machine", inside), ("model_parallel_NPU_group", model)):
            if size < 1 or self.num_ranks % size:
                raise InputError(
                    f"{self.name}:1: {what} of {size} ranks: must divide the {self.num_ranks} of the topology"
                )
        if self.policy.startswith("HYBRID_TRANSFORMER") and asked is None:
            self.assumed.append(
                f"no model_parallel_NPU_group: the {inside} ranks of a machine are a group"
            )
        return {
            _ALL: (1, self.num_ranks),
            "machine": (1, inside),
            "across nodes": (inside, self.num_ranks // inside),
            _MODEL: (1, model),
            _DATA: (model, self.num_ranks // model),
        }

    def recording(self, calls: int | None) -> Recording:
        """Read the file."""
        step = RankStep(
            self.table, {role: size for role, (_, size) in self.strides.items()}, gathers_parts=True
        )
        step.most = calls
        self._write(step)
        return recording("astra", step, self.num_ranks, self._group_of, self.assumed)

    def _write(self, step: RankStep) -> None:
        if self.policy == "MICRO":
            if len(self.table.layers) > 1:
                self.assumed.append(
                    "MICRO: the communications of all lines one after the other; ASTRA-sim itself runs the first only"
                )
            micro(step, self.table, self._role)
        elif self.policy == "DATA":
            data_parallel(step, self.table, self._role)
        elif self.policy == "DISTRIBUTED_INFERENCE":
            forward_only(step, self.table, self._role)
        elif self.policy.startswith("HYBRID_DLRM"):
            enhanced = self.policy == "HYBRID_DLRM_ENHANCED"
            dlrm(step, self.table, self._role, self._last_bottom(), enhanced=enhanced)
        elif self.policy.startswith("HYBRID_TRANSFORMER"):
            kept, again = self._listed("checkpoints"), self._listed("checkpoint_initiates")
            transformer(step, self.table, self._role, kept, again)
        else:
            hybrid(step, self.table, self._role)

    def _role(self, layer: TableLayer, what: str, part: LayerPart) -> str:
        policy = layer.policy if self.policy == "HYBRID_CUSTOMIZED" else self.policy
        if policy not in _OF:
            known = ", ".join(sorted(_OF))
            raise InputError(
                f"{self.name}:{layer.line}: parallelism {policy[:40]!r} of a layer; it is one of {known}"
            )
        if part.suffix:
            return ""
        if policy.startswith("HYBRID_DLRM") and layer is self.table.layers[0]:
            return _ALL
        model, data = _OF[policy]
        return data if what == WEIGHT else model

    def _group_of(self, role: str, rank: int) -> Sequence[int]:
        stride, size = self.strides[role]
        first = rank // (stride * size) * (stride * size) + rank % stride
        return range(first, first + stride * size, stride)

    def _last_bottom(self) -> int:
        result = parameter(self.table, ["DLRM_LAST_BOTTOM_LAYER"], len(self.table.layers))
        words = self.table.words
        if result is None and len(words) > 1 and words[1].isdecimal() and len(words[1]) < 9:
            result = int(words[1])
        if result is None or result >= len(self.table.layers):
            raise InputError(
                f"{self.name}:1: {self.policy} needs the number of the last bottom layer,"
                f" 0..{len(self.table.layers) - 1}, after it"
            )
        return result

    def _listed(self, key: str) -> set[int]:
        """Return the layers of ``key: COUNT LAYER LAYER ...``."""
        words = self.table.words
        if f"{key}:" not in words:
            return set()
        at = words.index(f"{key}:") + 1
        result = parameter(self.table, [key], len(self.table.layers)) or 0
        numbers = words[at + 1 : at + 1 + result]
        most = len(self.table.layers) - 1
        if len(numbers) < result or not all(
            n.isdecimal() and len(n) < 9 and int(n) <= most for n in numbers
        ):
            raise InputError(
                f"{self.name}:1: {key}: must be a count and as many layers of 0..{most}"
            )
        return {int(n) for n in numbers}
