"""Checks for contradictions of a workload with its settings, model or topology.

Each error names its place in the file. The module also computes expert imbalance: tokens of each rank's
experts, and the all-to-all with uneven parts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.collectives.api import ALGORITHMS
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import CollectiveCall, Prim
from clusim.schedule.shapes import shape_of
from clusim.topology.keys import did_you_mean
from clusim.topology.model import Fabric
from clusim.workload.host import host_way
from clusim.workload.kernels import PRECISIONS
from clusim.workload.mesh import Mesh, zones_of
from clusim.workload.models import Model, Recurrent, ResNet, Transformer
from clusim.workload.parallel.volumes import spread
from clusim.workload.pipeline_schedules import Crew, layout_of, order
from clusim.workload.spec import Workload
from clusim.workload.workload_file import complain


def expert_loads(
    ranks: int,
    skew: float,
    capacity: float = 0.0,
    seed: int = 0,
    *,
    pad: bool = False,
) -> list[float]:
    """Return the load of each rank's experts relative to the mean.

    The busiest rank has 1 + `skew`, at most `capacity`. The others decrease linearly, shuffled with `seed`,
    so that the mean is 1 before the limit is applied. With `pad` all are filled up to the limit.
    """
    if pad and capacity:
        return [capacity] * max(1, ranks)
    if ranks < 2 or skew <= 0:
        load = min(1.0, capacity) if capacity else 1.0
        return [load] * max(1, ranks)
    top = min(1 + skew, ranks)
    weights = [(ranks - 1 - i) / (ranks - 1) for i in range(ranks)]
    mean = sum(weights[1:]) / (ranks - 1)
    mean_rest = (ranks - top) / (ranks - 1)
    lower_loads = [
        mean_rest if mean == 0 else min(top, mean_rest * w / mean)
        for w in weights[1:]
    ]
    loads = [top, *lower_loads]
    scale = ranks / sum(loads)
    loads = [load * scale for load in loads]
    random.Random(seed).shuffle(loads)
    return [min(load, capacity) if capacity else load for load in loads]


@dataclass(frozen=True, slots=True)
class Uneven:
    """All-to-all of a group in which a rank receives in proportion to the load of its experts.

    Attributes
    ----------
    size_bytes : int
        Size that a rank receives with a load of 1 [bytes].
    loads : sequence of float
        Load of each rank's experts relative to the mean.
    back : bool
        True if a rank sends in proportion to its load: the results of experts return to the tokens' ranks.
    """

    group: Sequence[int]
    size_bytes: int
    loads: Sequence[float]
    back: bool = False

    def parts(self) -> list[int]:
        """Return the size that each rank's experts exchange with every other rank [bytes]."""
        share = self.size_bytes / len(self.group)
        return [max(16, round(share * load) // 16 * 16) for load in self.loads]


def write_uneven(
    builder: ProgramBuilder,
    fabric: Fabric,
    uneven: Uneven,
    stream: str,
    after: Mapping[int, Sequence[int]],
) -> tuple[tuple[int, ...], int]:
    """Add an uneven all-to-all; return its tasks and the bytes sent."""
    group, parts = uneven.group, uneven.parts()
    count = len(group)
    call = CollectiveCall(
        "alltoallv", sum(parts), tuple(group), "uint8", algorithm="direct"
    )
    shape = shape_of("simple", protocols=fabric.protocols)
    writer = CollectiveWriter.add(
        builder,
        call,
        shape,
        stream=stream,
        after=[after.get(rank, ()) for rank in group],
    )
    offsets = [sum(parts[:index]) for index in range(count)]
    for src in range(count):
        for hop in range(1, count):
            dst = (src + hop) % count
            expert = src if uneven.back else dst
            part = Part(hop % 8, offsets[expert], parts[expert])
            pipe = writer.connect(src, dst, part.channel)
            writer.program(
                src, part, [Prim("send", send=0)], [pipe], name="alltoallv send"
            )
            writer.program(
                dst,
                part,
                [Prim("recv", recv=0)],
                [pipe],
                name="alltoallv recv",
                sm=0,
            )
    return writer.tasks, (count - 1) * sum(parts)


WHOLE_WEIGHTS = ("ddp", "distributed-optimizer")
"""Kinds of data parallelism with 8-bit weights in Megatron-LM."""


def check_kind(workload: Workload, model: Model) -> None:
    """Raise an error for settings that only some kinds of models support."""
    pipeline = workload.pipeline
    if getattr(model, "window", 0):
        message = f"windows of attention of {model.name} are modelled by `clusim serve` only"
        raise complain(workload, ("model",), message)
    if workload.offload.optimizer and workload.data.kind == "parameter-server":
        raise complain(
            workload, ("offload", "optimizer"), "servers step, not workers"
        )
    if workload.data.batchnorm > 1 and not isinstance(model, ResNet):
        message = f"{model.name} normalises no batches"
        raise complain(workload, ("data", "batchnorm"), message)
    if pipeline.schedule == "wavefront" and not isinstance(model, Recurrent):
        message = f"wavefront: {model.name} is not recurrent; its layers need complete sequences"
        raise complain(workload, ("pipeline", "schedule"), message)
    if pipeline.pieces > 1 and pipeline.schedule != "wavefront":
        raise complain(
            workload, ("pipeline", "pieces"), "pieces need schedule wavefront"
        )
    if workload.sequence % pipeline.pieces:
        message = f"sequence {workload.sequence} cannot be cut into {pipeline.pieces} pieces"
        raise complain(workload, ("pipeline", "pieces"), message)


def check_weights(workload: Workload) -> None:
    """Raise an error for 8-bit weights without 8-bit products or with gathers of 16 bits."""
    if workload.primary_weights != "fp8":
        return
    message = ""
    if not PRECISIONS[workload.precision].recipe:
        message = f"products of {workload.precision} need weights of 16 bits; use a precision of 8 bits"
    elif workload.data.kind not in WHOLE_WEIGHTS:
        message = f"{workload.data.kind} hands out weights of 16 bits; use one of {', '.join(WHOLE_WEIGHTS)}"
    if message:
        raise complain(workload, ("primary_weights",), message)


def check_checkpoints(workload: Workload, fabric: Fabric) -> None:
    """Raise an error for checkpoints that are ambiguous, missing or impossible in a step."""
    checkpoint, spec = workload.checkpoint, workload.checkpoints
    if workload.reliability is not None and spec is None:
        raise complain(workload, ("reliability",), "'checkpoint' is missing")
    if spec is None:
        return
    place = (
        ("checkpoint",) if checkpoint is not None else ("reliability", "checkpoint")
    )
    if (
        checkpoint is not None
        and workload.reliability is not None
        and workload.reliability.checkpoint
    ):
        message = "checkpoints are described twice; leave one of the two out"
        raise complain(workload, ("reliability", "checkpoint"), message)
    if spec.every is not None and spec.every_s is not None:
        raise complain(
            workload, (*place, "every_s"), "set every (steps) or every_s, not both"
        )
    if spec.overlap and not spec.asynchronous:
        message = "copies concurrent with passes are written later; set asynchronous"
        raise complain(workload, (*place, "overlap"), message)
    message = ""
    if workload.data.kind == "parameter-server":
        message = "states are on the servers; set checkpoint in reliability, which computes it"
    if workload.pipeline.schedule == "pipedream" and workload.parallel.pipeline > 1:
        message = "pipedream steps overlap; set checkpoint in reliability, which computes it"
    if message and (checkpoint is not None or spec.overlap):
        raise complain(workload, place, message)
    try:
        host_way(fabric)
    except InputError as error:
        raise complain(workload, place, str(error)) from None


def check_names(workload: Workload, fabric: Fabric) -> None:
    """Raise an error for ranks, operations and algorithms that do not exist."""
    for rank in workload.stragglers.ranks:
        if not rank.isdecimal() or int(rank) >= fabric.num_ranks:
            message = f"rank {rank!r}: {fabric.name} has 0..{fabric.num_ranks - 1}"
            raise complain(workload, ("stragglers", "ranks", rank), message)
    for dim, spec in workload.communicators.items():
        for operation, algorithm in (spec.algorithm or {}).items():
            place = ("communicators", dim, "algorithm", operation)
            algorithms = ALGORITHMS.get(operation)
            if algorithms is None:
                message = f"no operation{did_you_mean(operation, ALGORITHMS)}"
                raise complain(workload, place, message)
            if algorithm not in algorithms:
                message = f"{algorithm!r}: {operation} has {', '.join(algorithms)}"
                raise complain(workload, place, message)


def check_servers(workload: Workload, fabric: Fabric) -> None:
    """Raise an error for more parameter servers than there are ranks for."""
    parallel, data = workload.parallel, workload.data
    if data.kind != "parameter-server":
        return
    workers = parallel.data or (
        len(parallel.ranks) if parallel.ranks is not None else fabric.num_ranks
    )
    if data.colocated and data.servers > workers:
        message = f"{data.servers} servers on {workers} workers: at most one on each"
        raise complain(workload, ("data", "servers"), message)
    if not data.colocated and data.servers >= fabric.num_ranks:
        message = f"{data.servers} servers use all of the {fabric.num_ranks} GPUs; workers need at least one"
        raise complain(workload, ("data", "servers"), message)


def check_chunks(workload: Workload) -> None:
    """Raise an error for chunks without a schedule for them, and for layers given twice."""
    pipeline = workload.pipeline
    if pipeline.layers is not None and pipeline.partition != "even":
        raise complain(
            workload,
            ("pipeline", "layers"),
            f"{pipeline.partition} chooses the layers itself",
        )
    _check_replicas(workload)
    if workload.pipeline.chunks == 1:
        return
    if workload.parallel.pipeline == 1:
        raise complain(
            workload, ("pipeline", "chunks"), "chunks need pipeline parallelism"
        )
    if workload.pipeline.schedule != "interleaved":
        raise complain(
            workload, ("pipeline", "chunks"), "chunks need schedule interleaved"
        )


def _check_replicas(workload: Workload) -> None:
    pipeline, mesh = workload.pipeline, workload.parallel
    chosen = pipeline.partition == "replicated"
    if pipeline.replicas is None and not chosen:
        return
    place = ("pipeline", "partition" if chosen else "replicas")
    if chosen and pipeline.replicas is not None:
        message = "replicated chooses the replicas itself"
    elif pipeline.schedule != "pipedream":
        message = "replicas of stages need schedule pipedream"
    elif mesh.tensor * mesh.context * mesh.expert * (mesh.data or 1) > 1:
        message = "replicas of stages are the only other parallelism that pipedream has here"
    elif workload.data.kind != "ddp":
        message = "gradients of a stage's replicas are summed by ddp"
    elif pipeline.replicas is not None and sum(pipeline.replicas) != mesh.pipeline:
        message = f"{pipeline.replicas}: must add up to the {mesh.pipeline} GPUs of the pipeline"
    else:
        return
    raise complain(workload, place, message)


def check_turns(workload: Workload, crew: Crew, microbatches: int) -> None:
    """Raise an error for microbatches that the workers of a stage cannot share evenly."""
    for stage, workers in enumerate(crew.replicas):
        if microbatches % workers:
            message = (
                f"{microbatches} microbatches are not a multiple of the {workers} GPUs of stage {stage}, which"
                " alternate"
            )
            raise complain(workload, ("batch", "global"), message)


def check_interleaving(workload: Workload, microbatches: int) -> None:
    """Raise an error for chunks that stages could not pass on."""
    pipeline, stages = workload.pipeline, workload.parallel.pipeline
    if (
        pipeline.messages == "blocking"
        and layout_of(pipeline.schedule, stages).shape != "round"
    ):
        message = f"blocking: stages of {pipeline.schedule} would wait for each other; use overlapped"
        raise complain(workload, ("pipeline", "messages"), message)
    if pipeline.schedule.startswith("dualpipe") and stages > 1:
        try:
            order(pipeline.schedule, 0, stages, microbatches)
        except InputError as error:
            raise complain(workload, ("pipeline", "schedule"), str(error)) from None
    if pipeline.schedule != "interleaved" or pipeline.chunks == 1:
        return
    if pipeline.rule == "megatron" and microbatches % stages:
        message = f"megatron needs microbatches ({microbatches}) in multiples of the {stages} stages; leave it out"
        raise complain(workload, ("pipeline", "rule"), message)
    if pipeline.messages == "blocking" and microbatches > stages:
        message = "blocking: interleaved stages would wait for each other for ever; use overlapped"
        raise complain(workload, ("pipeline", "messages"), message)


def check_exchange(
    workload: Workload, mesh: Mesh, fabric: Fabric, model: Model
) -> int:
    """Return the number of nodes that exchange tokens; raise for exchanges not modelled."""
    experts = workload.experts
    if experts.exchange != "deepep":
        for key in ("sms", "dispatch", "machines", "low_latency"):
            if key in experts.model_fields_set:
                raise complain(workload, ("experts", key), "needs exchange deepep")
        return 1
    if experts.skew or experts.capacity:
        message = "deepep: with an even load and without a capacity only"
        raise complain(workload, ("experts", "exchange"), message)
    if not isinstance(model, Transformer) or not model.experts:
        message = f"deepep: {model.name} has no experts"
        raise complain(workload, ("experts", "exchange"), message)
    zone = zones_of(fabric)
    groups = [
        group
        for stage in range(mesh.pipeline)
        for group in mesh.groups("expert", stage)
    ]
    shapes = {tuple(len(ranks) for ranks in spread(group, zone)) for group in groups}
    if len(shapes) > 1 or any(len(set(shape)) > 1 for shape in shapes):
        message = "deepep: the ranks of a group must be as many on each of its nodes"
        raise complain(workload, ("experts", "exchange"), message)
    machines = len(next(iter(shapes)))
    pool = model.experts * min(experts.machines or machines, machines) // machines
    if pool < model.top_k:
        message = f"{experts.machines} nodes have {pool} experts; a token needs {model.top_k}"
        raise complain(workload, ("experts", "machines"), message)
    return machines
