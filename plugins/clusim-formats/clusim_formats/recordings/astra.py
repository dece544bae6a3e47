"""Text workloads of ASTRA-sim 1: a parallelism, number of layers, one line per layer.

Times are cycles of 1 ns, as in ASTRA-sim. The file does not contain the number of ranks or the dimensions of the
network: all GPUs of the topology are ranks, the first dimension is a node, and the others connect nodes. One pass is
read.

The parallelism determines the order of the parts of layers in a training step, as in ASTRA-sim and SimAI.
Computation is one chain. It includes blocking communication; other communication runs concurrently until a step
waits for it. A step ends when all communication has ended.
"""

from __future__ import annotations

from clusim.base.errors import InputError
from clusim.formats.recordings.model import Recording
from clusim.formats.recordings.source import Paths, only_file
from clusim_formats.recordings.layers import (
    FORWARD,
    INPUT,
    WEIGHT,
    LayerTable,
    TableLayer,
)

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
    name = only_file(paths, "an ASTRA-sim workload")
    if num_ranks is None:
        raise InputError(
            f"{name}: an ASTRA-sim workload does not contain the number of ranks; set --topology and --nodes:"
            " all their GPUs are used"
        )
    table = _Table(name, calls)
    table.divide(num_ranks, machine_ranks or num_ranks)
    table.write()
    return table.recording(num_ranks, table.strides)


class _Table(LayerTable):
    """Layers of a file, and the order of their parts in a step."""

    kind = "astra"
    gathers_parts = True

    def __init__(self, name: str, calls: int | None) -> None:
        super().__init__(name, calls)
        self.policy = self.words[0]
        if self.policy not in POLICIES:
            raise self.bad(
                1,
                f"parallelism {self.policy[:40]!r}; it is one of {', '.join(POLICIES)}",
            )
        for layer in self.layers if self.policy == "HYBRID_CUSTOMIZED" else ():
            if not layer.policy:
                raise self.bad(
                    layer.line,
                    "no parallelism in column 13; HYBRID_CUSTOMIZED has one per layer",
                )

    def divide(self, num_ranks: int, machine_ranks: int) -> None:
        """Divide the ranks into groups."""
        self.found.assume(
            f"no number of ranks in the file: all {num_ranks} GPUs of the topology; a cycle is 1 ns; one pass"
        )
        inside = min(machine_ranks, num_ranks)
        tensor = self.parameter(num_ranks, "model_parallel_NPU_group")
        model = inside if tensor is None else tensor
        for dimension, size in (
            ("machine", inside),
            ("model_parallel_NPU_group", model),
        ):
            if size < 1 or num_ranks % size:
                raise self.bad(
                    1,
                    f"{dimension} of {size} ranks: must divide the {num_ranks} of the topology",
                )
        if self.policy.startswith("HYBRID_TRANSFORMER") and tensor is None:
            self.found.assume(
                f"no model_parallel_NPU_group: the {inside} ranks of a machine are a group"
            )
        self.strides = {
            _ALL: (1, num_ranks),
            "machine": (1, inside),
            "across nodes": (inside, num_ranks // inside),
            _MODEL: (1, model),
            _DATA: (model, num_ranks // model),
        }

    def role(self, layer: TableLayer, part: int) -> str:
        policy = layer.policy if self.policy == "HYBRID_CUSTOMIZED" else self.policy
        if policy not in _OF:
            listing = ", ".join(sorted(_OF))
            raise self.bad(
                layer.line,
                f"parallelism {policy[:40]!r} of a layer; it is one of {listing}",
            )
        if layer.parts[part].suffix:
            return ""
        if policy.startswith("HYBRID_DLRM") and layer is self.layers[0]:
            return _ALL
        model, data = _OF[policy]
        return data if part == WEIGHT else model

    def write(self) -> None:
        """Add the events of a step."""
        if self.policy == "MICRO":
            self._micro()
        elif self.policy == "DATA":
            self._data_parallel()
        elif self.policy == "DISTRIBUTED_INFERENCE":
            for layer in self.layers:
                self.run(layer, FORWARD, wait=True)
        elif self.policy.startswith("HYBRID_DLRM"):
            self._dlrm(
                self._last_bottom(), enhanced=self.policy == "HYBRID_DLRM_ENHANCED"
            )
        elif self.policy.startswith("HYBRID_TRANSFORMER"):
            self.transformer(
                self._layers_of_key("checkpoints"),
                self._layers_of_key("checkpoint_initiates"),
            )
        else:
            self._hybrid()

    def _micro(self) -> None:
        """Run only the communication of weight gradients, in sequence."""
        if len(self.layers) > 1:
            self.found.assume(
                "MICRO: the communications of all lines one after the other; ASTRA-sim itself runs the first only"
            )
        for layer in self.layers:
            self.wait(self.communicate(layer, WEIGHT))

    def _data_parallel(self) -> None:
        """Communicate weight gradients only; the first layer needs no input gradient."""
        for layer in self.layers:
            self._only_compute(layer, FORWARD)
            self._omit(layer, INPUT)
        for layer in reversed(self.layers):
            self.run(layer, WEIGHT)
            if layer is not self.layers[0]:
                self.compute(layer, INPUT)

    def _only_compute(self, layer: TableLayer, part: int) -> None:
        self.compute(layer, part)
        self._omit(layer, part)

    def _omit(self, layer: TableLayer, part: int) -> None:
        """Count a communication that is not done."""
        if layer.parts[part].operation:
            self.found.skipped[f"communications that {self.policy} does not do"] += 1

    def _hybrid(self) -> None:
        """Overlap the communication of a layer's input gradient with its weight gradient.

        The first layer has no communication of an input gradient.
        """
        for layer in self.layers:
            self.run(layer, FORWARD, wait=True)
        for layer in reversed(self.layers):
            self.compute(layer, INPUT)
            end = None if layer is self.layers[0] else self.communicate(layer, INPUT)
            self.run(layer, WEIGHT)
            self.wait(end)

    def _dlrm(self, last_bottom: int, *, enhanced: bool) -> None:
        """Exchange embeddings concurrently with the bottom layers, in both directions.

        Parameters
        ----------
        last_bottom : int
            Layer after which the exchange of layer 0 must be complete.
        enhanced : bool
            True if the step does not wait for the exchange of gradients after the first layer's weight gradient.
        """
        first, exchanged = self.layers[0], None
        for at, layer in enumerate(self.layers):
            if layer.parts[FORWARD].operation == "alltoall":
                end = self.run(layer, FORWARD)
                exchanged = end if at == 0 else exchanged
            else:
                self._only_compute(layer, FORWARD)
                if at == last_bottom:
                    self.wait(exchanged)
        end = None
        for at in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[at]
            self.run(layer, WEIGHT)
            if at:
                self._only_compute(layer, INPUT)
            if at == last_bottom + 1:
                end = self.communicate(first, INPUT)
            if not at and not enhanced:
                self.wait(end)

    def _last_bottom(self) -> int:
        result = self.parameter(len(self.layers), "DLRM_LAST_BOTTOM_LAYER")
        words = self.words
        if (
            result is None
            and len(words) > 1
            and words[1].isdecimal()
            and len(words[1]) < 9
        ):
            result = int(words[1])
        if result is None or result >= len(self.layers):
            raise self.bad(
                1,
                f"{self.policy} needs the number of the last bottom layer, 0..{len(self.layers) - 1}, after it",
            )
        return result

    def _layers_of_key(self, key: str) -> set[int]:
        """Return the layers of ``key: COUNT LAYER LAYER ...``."""
        if f"{key}:" not in self.words:
            return set()
        count, last = (
            self.parameter(len(self.layers), key) or 0,
            len(self.layers) - 1,
        )
        numbers = self.words[self.words.index(f"{key}:") + 2 :][:count]
        if len(numbers) < count or not all(
            n.isdecimal() and len(n) < 9 and int(n) <= last for n in numbers
        ):
            raise self.bad(
                1, f"{key}: must be a count and as many layers of 0..{last}"
            )
        return {int(n) for n in numbers}
