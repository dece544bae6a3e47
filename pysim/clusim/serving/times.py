"""Times of steps: kernels of a forward pass, and its collectives simulated on the system, each once.

**Model** Ranks of a group are equal, and a step's kernels and collectives follow each other, so that its time is their
sum. Collectives are the engine's choice of algorithm, or NCCL's. Tokens of products are padded to the sizes of the
engine's graphs, so that a run has few distinct sizes; contexts and prompts are rounded to `STEP_CLASSES` an octave.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log2
from typing import TYPE_CHECKING

from clusim.serving.exchange import exchange_legs
from clusim.serving.forward import ForwardPass, StepMessage, StepShape
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.workload.layers import Comm

if TYPE_CHECKING:
    from clusim.jobs.times import Times

STEP_CLASSES = 32
"""Classes of an octave of tokens: within 1.1 %."""

GRAPH_TOKENS = 512
"""Largest number of tokens of a CUDA graph (vLLM, ``cudagraph_capture_sizes``)."""


class ServedStepTime(dict[str, float]):
    """Time of a step by part [s]."""

    @property
    def time_ps(self) -> int:
        """Return the sum [ps]."""
        return round(sum(self.values()) * 1e12)


def pad_tokens(tokens: int) -> int:
    """Return the tokens of the smallest graph for some tokens; larger steps are not padded.

    Graphs have 1, 2 and 4 tokens, multiples of 8 up to 256, and of 16 up to `GRAPH_TOKENS`.
    """
    if tokens > GRAPH_TOKENS or tokens < 1:
        return tokens
    if tokens <= 4:
        return 1 << (tokens - 1).bit_length()
    unit = 8 if tokens <= 256 else 16
    return -(-tokens // unit) * unit


def round_tokens(tokens: int) -> int:
    """Return tokens rounded to the classes of an octave; few tokens are exact."""
    if tokens <= STEP_CLASSES:
        return tokens
    return round(2 ** (round(log2(tokens) * STEP_CLASSES) / STEP_CLASSES))


@dataclass
class ServedStepTimes:
    """Times of the steps of a replica.

    Attributes
    ----------
    setup : Setup
        System, with all its GPUs.
    forward : ForwardPass
        Kernels and messages of a step.
    times : Times
        Times of collectives.
    first : int
        First rank of the replica.
    compute_speed : float
        Factor of the speed of kernels.
    """

    setup: Setup
    forward: ForwardPass
    times: Times
    first: int = 0
    compute_speed: float = 1.0
    _known: dict[StepShape, ServedStepTime] = field(default_factory=dict)
    _messages: dict[StepMessage, float] = field(default_factory=dict)

    @cached_property
    def per_node(self) -> int:
        """GPUs of a node."""
        fabric = self.setup.fabric
        return fabric.num_ranks // max(1, fabric.num_zones)

    def find(self, shape: StepShape) -> ServedStepTime:
        """Return the time of a stage for a step by part, collectives included."""
        key = shape._replace(
            tokens=round_tokens(shape.tokens),
            cached=round_tokens(shape.cached),
            chunks=tuple(
                (round_tokens(new), round_tokens(old)) for new, old in shape.chunks
            ),
            everywhere=round_tokens(shape.everywhere),
        )
        if key not in self._known:
            self._known[key] = self._compute(key)
        return self._known[key]

    @property
    def different(self) -> int:
        """Return the number of distinct steps."""
        return len(self._known)

    def _compute(self, shape: StepShape) -> ServedStepTime:
        result = ServedStepTime()
        for kernel in self.forward.kernels(shape):
            seconds = kernel.time_s * kernel.number / self.compute_speed
            result[kernel.name] = result.get(kernel.name, 0.0) + seconds
        for message in self.forward.messages(shape):
            seconds = self.message_s(message) * message.number
            name = message.operation
            result[name] = result.get(name, 0.0) + seconds
        return result

    def message_s(self, message: StepMessage) -> float:
        """Return the time of one collective [s]."""
        one = message._replace(number=1)
        if one not in self._messages:
            self._messages[one] = self._simulated_s(one)
        return self._messages[one]

    def _simulated_s(self, message: StepMessage) -> float:
        engine, first = self.forward.engine, self.first
        if first % self.per_node + message.ranks <= self.per_node:
            first %= self.per_node
        ranks = tuple(range(first, first + message.ranks))
        one_node = message.ranks <= self.per_node
        algorithm, more_ps = "", 0
        if message.operation == "allreduce" and one_node:
            algorithm = engine.reduce_algorithm(message.ranks, message.size_bytes)
            more_ps = engine.host_ps("reduction") if algorithm else 0
        operation = message.operation
        if message.exchange is not None:
            return self._exchange_s(message.exchange, range(first, ranks[-1] + 1))
        if operation == "send":
            operation, stage = "sendrecv", self.forward.layout.group
            ranks = (first, first + stage)
        request = Request(
            replace(self.setup, ranks=ranks),
            operation,
            max(message.size_bytes, 2 * len(ranks)),
            algorithm=algorithm,
            dtype="bfloat16",
        )
        return (self._kernel_ps(request, algorithm) + more_ps) * 1e-12

    def _kernel_ps(self, request: Request, *key: object) -> int:
        """Return the time of a collective, stored [ps]."""
        setup = request.setup
        system = setup.identity, setup.nodes, setup.ranks, setup.env
        size = request.operation, request.size_bytes, str(setup.release)
        return self.times.stored(
            ("serve", *system, *size, *key),
            lambda: self.times.kernel(request).time_ps,
        )

    def _exchange_s(self, step: Comm, ranks: range) -> float:
        """Return the time of a dispatch or combine of DeepEP: of its longest leg [s]."""
        times = [step.least_ps]
        for leg in exchange_legs(step, ranks, self.per_node):
            request = Request(
                replace(self.setup, ranks=leg.ranks),
                "alltoall",
                leg.bytes,
                protocol=leg.protocol,
                channels=leg.channels,
                dtype="bfloat16",
            )
            times.append(self._kernel_ps(request, leg.protocol, leg.channels))
        return max(times) * 1e-12
