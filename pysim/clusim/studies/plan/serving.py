"""Search for the layout of a served model with the most requests within limits for each GPU.

**Model** Layouts on all GPUs of a system: tensor, pipeline, expert and attention data parallelism with as many replicas
as fit, and pools of prefill and decode replicas on separate nodes. They are ordered by a forecast from one prompt step
and one decode step; the first are simulated with the requests of the file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from clusim.base.errors import InputError
from clusim.base.files import write_text
from clusim.base.json_schema import JsonObject, Round3, Round6
from clusim.base.resources import shipped_serving
from clusim.serving.api import ServedModel
from clusim.serving.forward import StepShape
from clusim.serving.requests import draw_requests
from clusim.serving.spec import ReplicaSpec, ServingSpec, load_serving
from clusim.serving.times import pad_tokens
from clusim.simulation.setup import Setup

MEMORY, DIVISION, PLACE = "memory", "division of the model", "number of GPUs"
"""Reasons for which layouts are omitted."""

MOST_PIPELINE = 8

SIZES = ("tensor", "pipeline", "expert", "attention_data")
SHORT = ("TP", "PP", "EP", "DP")


class Pool(NamedTuple):
    """Equal replicas."""

    parallel: ReplicaSpec
    replicas: int

    @property
    def words(self) -> str:
        """Return the layout in a line."""
        sizes = zip(
            SHORT, (getattr(self.parallel, name) for name in SIZES), strict=True
        )
        named = [f"{name}{size}" for name, size in sizes if size > 1] or ["TP1"]
        return f"{self.replicas} x {' '.join(named)}"

    def keys(self) -> dict[str, Any]:
        """Return its keys of a serving file."""
        return {"replicas": self.replicas, "parallel": self.parallel.model_dump()}


class ServedLayout(NamedTuple):
    """Replicas for prompts and for decoding; the same if there is one kind."""

    prefill: Pool
    decode: Pool | None

    @property
    def words(self) -> str:
        """Return the layout in a line."""
        if self.decode is None:
            return self.prefill.words
        return f"prefill {self.prefill.words}, decode {self.decode.words}"


@dataclass(frozen=True, slots=True)
class PlannedServing(JsonObject):
    """A simulated layout.

    Attributes
    ----------
    words : str
        The layout in a line.
    gpus : int
        GPUs that it uses.
    good_per_s_per_gpu : float
        Requests within the limits over the time, for each GPU.
    ttft_ms, tpot_ms : float
        Means [ms].
    tokens_per_s_per_gpu : float
        Output tokens over the time, for each GPU.
    good : float
        Fraction of the requests within the limits.
    verdict : list of str
        Its verdict.
    file : dict
        The serving file with it.
    """

    words: str
    gpus: int
    good_per_s_per_gpu: Round6
    ttft_ms: Round3
    tpot_ms: Round3
    tokens_per_s_per_gpu: Round3
    good: Round3
    verdict: list[str]
    file: dict[str, Any]

    KEYS = (
        *("words", "gpus", "good_per_s_per_gpu", "ttft_ms", "tpot_ms"),
        *("tokens_per_s_per_gpu", "good", "verdict"),
    )


@dataclass(frozen=True, slots=True)
class ServingPlan(JsonObject):
    """Layouts of a served model, the best first.

    Attributes
    ----------
    serving, system : str
        Serving file; system.
    gpus, layouts : int
        GPUs of the system; layouts that were considered.
    omitted : dict
        Number of omitted layouts by reason.
    runs : list of PlannedServing
        Simulated layouts.
    """

    serving: str
    system: str
    gpus: int
    layouts: int
    omitted: dict[str, int]
    runs: list[PlannedServing]


@dataclass
class ServingSpace:
    """Layouts of one serving file on one system."""

    path: Path
    setup: Setup
    place: Mapping[str, Any] = field(default_factory=dict)
    count: int = 0
    omitted: Counter[str] = field(default_factory=Counter)

    @cached_property
    def base(self) -> dict[str, Any]:
        """Keys of the file other than its layout."""
        spec = load_serving(self.path)
        data: dict[str, Any] = yaml.safe_load(self.path.read_text(encoding="utf-8"))
        for name in ("parallel", "replicas", "pools", "topology", "nodes"):
            data.pop(name, None)
        if spec.requests.file:
            data["requests"]["file"] = os.path.abspath(spec.requests.file)
        if spec.model.huggingface:
            data["model"]["huggingface"] = os.path.abspath(spec.model.huggingface)
        return data

    def keys(self, layout: ServedLayout) -> dict[str, Any]:
        """Return the serving file with a layout, as a mapping."""
        data = {**self.place, **self.base, "name": self.path.stem}
        if layout.decode is not None:
            pools = {"prefill": layout.prefill, "decode": layout.decode}
            return {
                **data,
                "pools": {name: pool.keys() for name, pool in pools.items()},
            }
        for name in ("transfer", "beside"):
            data.pop(name, None)
        return {**data, **layout.prefill.keys()}

    def model(self, layout: ServedLayout) -> ServedModel:
        """Return the served model with a layout."""
        return ServedModel(ServingSpec.model_validate(self.keys(layout)), self.setup)

    def layouts(self) -> Iterator[ServedLayout]:
        """Yield the layouts on all GPUs of the system."""
        gpus = self.setup.fabric.num_ranks
        nodes = max(1, self.setup.fabric.num_zones)
        per_node = gpus // nodes
        for parallel in self._parallels(gpus):
            ranks = parallel.tensor * parallel.pipeline * parallel.attention_data
            yield ServedLayout(Pool(parallel, gpus // ranks), None)
        for first in range(1, nodes):
            sides = (first * per_node, (nodes - first) * per_node)
            pools = [
                [
                    Pool(one, side // one.tensor)
                    for one in self._parallels(per_node)
                    if one.pipeline == one.attention_data == 1
                ]
                for side in sides
            ]
            yield from map(ServedLayout._make, product(*pools))

    def _parallels(self, gpus: int) -> Iterator[ReplicaSpec]:
        powers = [1 << bit for bit in range(gpus.bit_length())]
        experts = ServedModel(
            ServingSpec.model_validate(self.base), self.setup
        ).model.experts
        widths = powers if experts else [1]
        for tensor, pipeline, expert, copies in product(
            powers, powers, widths, widths
        ):
            fits = tensor * pipeline * copies <= gpus and pipeline <= MOST_PIPELINE
            if fits and gpus % (tensor * pipeline * copies) == 0:
                yield ReplicaSpec(
                    tensor=tensor,
                    pipeline=pipeline,
                    expert=expert,
                    attention_data=copies,
                )

    def fitting(self) -> list[ServedLayout]:
        """Return the layouts that divide the model and fit the memory."""
        result = []
        for layout in self.layouts():
            self.count += 1
            reason = self._reason(layout)
            if reason:
                self.omitted[reason] += 1
            else:
                result.append(layout)
        return result

    def _reason(self, layout: ServedLayout) -> str:
        """Return why a layout is omitted; empty if it can run."""
        model = self.model(layout)
        for pool in filter(None, layout):
            try:
                parts = model.layout(pool.parallel)
            except InputError:
                return DIVISION
            try:
                blocks = model.cache_blocks(parts) // parts.pipeline
            except InputError:
                return MEMORY
            if blocks * model.spec.cache.block < self._longest:
                return MEMORY
        return ""

    @cached_property
    def _requests(self) -> tuple[float, float, int]:
        """Mean tokens of prompts and of outputs, and the longest request."""
        rows = draw_requests(ServingSpec.model_validate(self.base).requests)
        prompts, outputs = ([row[at] for row in rows] for at in (1, 2))
        longest = max(row.prompt + row.output for row in rows)
        return sum(prompts) / len(rows), sum(outputs) / len(rows), longest

    @property
    def _longest(self) -> int:
        return self._requests[2]

    def forecast(self, layout: ServedLayout) -> tuple[bool, float]:
        """Return whether a layout exceeds the time per token, and less its requests/s; lower is better."""
        model = self.model(layout)
        prompt, output, _ = self._requests
        decode = layout.decode or layout.prefill
        load = model.spec.requests.concurrency or 16 * decode.replicas
        sequences = max(
            1, round(load / decode.replicas / decode.parallel.attention_data)
        )
        context = round(sequences * (prompt + output / 2))
        chunk = round(prompt)
        times = model.step_times(model.layout(layout.prefill.parallel))
        first = StepShape(pad_tokens(chunk), 0, 0, ((chunk, 0),), 1, chunk)
        prefill_s = times.find(first).time_ps * 1e-12
        times = model.step_times(model.layout(decode.parallel))
        rows = sequences * decode.parallel.attention_data
        shape = StepShape(
            pad_tokens(sequences), sequences, context, (), sequences, rows
        )
        token_s = times.find(shape).time_ps * 1e-12 * decode.parallel.pipeline
        if layout.decode is None:
            per_request_s = prefill_s + output * token_s / rows
            rate = decode.replicas / per_request_s
            token_s += rows / output * prefill_s
        else:
            rate = min(
                layout.prefill.replicas / prefill_s,
                decode.replicas * rows / (output * token_s),
            )
        limit = model.spec.limits.tpot
        return limit is not None and token_s * 1e12 > limit, -rate

    def run(self, layout: ServedLayout) -> PlannedServing:
        """Simulate a layout."""
        result = self.model(layout).run()
        return PlannedServing(
            layout.words,
            result.gpus,
            result.good_per_s / result.gpus,
            result.ttft.mean * 1e3,
            result.tpot.mean * 1e3,
            result.tokens_per_s_per_gpu,
            result.good_per_s / result.requests_per_s,
            result.verdict.lines(),
            self.keys(layout),
        )


def plan_serving(
    serving: str | os.PathLike[str],
    topology: str | None = None,
    *,
    nodes: int | None = None,
    estimates: int = 8,
    notify: Callable[[str], None] = lambda _: None,
) -> ServingPlan:
    """Return the layouts of a served model on all GPUs of a system, the most requests within limits for each GPU first.

    Parameters
    ----------
    estimates : int
        Number of layouts that are simulated.
    notify : callable
        Called with the name of each phase.

    Raises
    ------
    InputError
        An invalid file, or no layout fits.
    """
    spec = load_serving(serving)
    name = topology or spec.topology
    if not name:
        raise InputError("topology missing in the serving file; set topology")
    count = nodes if nodes is not None or topology else spec.nodes
    path = Path(serving)
    space = ServingSpace(
        path if path.is_file() else shipped_serving()[str(serving)],
        Setup(name, count),
        {"topology": name} | ({} if count is None else {"nodes": count}),
    )
    notify("memory of layouts")
    layouts = space.fitting()
    if not layouts:
        reasons = ", ".join(
            f"{number} {why}" for why, number in space.omitted.items()
        )
        raise InputError(f"{path}: no layout fits {space.setup.name} ({reasons})")
    notify("steps of layouts")
    layouts.sort(key=space.forecast)
    runs = []
    for layout in layouts[:estimates]:
        notify(f"requests on {layout.words}")
        runs.append(space.run(layout))
    runs.sort(key=lambda row: -row.good_per_s_per_gpu)
    return ServingPlan(
        path.stem,
        space.setup.name,
        space.setup.fabric.num_ranks,
        space.count,
        dict(space.omitted.most_common()),
        runs,
    )


def write_serving(planned: PlannedServing, path: Path) -> None:
    """Write the serving file of a layout."""
    write_text(path, yaml.safe_dump(planned.file, sort_keys=False))
