"""Partition of layers by a workload, and its traffic, by framework."""

from __future__ import annotations

from collections.abc import Callable

from clusim.topology.model import Fabric
from clusim.workload.deepep import DeepEp
from clusim.workload.host import kernels_by
from clusim.workload.kernels import Precision
from clusim.workload.layers import Layer, Shard, accumulating, gathering
from clusim.workload.mesh import Mesh
from clusim.workload.optimizers import Optimizer
from clusim.workload.peers import peer_rates
from clusim.workload.spec import Workload, complain


def shard_of(workload: Workload, mesh: Mesh, precision: Precision, deepep: DeepEp | None) -> Shard:
    """Return how layers are cut, and what the framework makes of them."""
    style, along = workload.tensor.style, workload.tensor.sequence_parallel
    if workload.tensor.overlap and not along:
        message = "what is overlapped is cut along the sequence; needs sequence_parallel"
        raise complain(workload, ("tensor", "overlap"), message)
    if along and style != "paired":
        raise complain(
            *(workload, ("tensor", "style")),
            f"{style} with sequence_parallel: what is cut along the sequence fits matrices in pairs only; use paired",
        )
    sums, eager = kernels_by(workload.host)
    return Shard(
        batch=workload.batch.micro,
        sequence=workload.sequence // workload.pipeline.pieces,
        precision=precision,
        tensor=mesh.tensor,
        context=mesh.context,
        expert=mesh.expert,
        sequence_parallel=workload.tensor.sequence_parallel and mesh.tensor > 1,
        style=workload.tensor.style,
        flash=workload.attention == "flash",
        capacity=workload.experts.capacity,
        around=workload.context.style,
        overlap=workload.tensor.overlap and mesh.tensor > 1,
        norm=mesh.norm,
        deepep=deepep,
        fused_loss=workload.loss == "fused",
        sums=sums,
        eager=eager,
    )


def deepep_of(workload: Workload, fabric: Fabric, machines: int) -> DeepEp | None:
    """Return the exchange of experts' tokens between so many machines, if it is DeepEP's."""
    own = workload.experts
    if own.exchange != "deepep":
        return None
    limit = 0 if own.machines is None or own.machines >= machines else own.machines
    inside_Bps, _ = peer_rates(fabric)
    return DeepEp(own.sms, own.dispatch == "fp8", machines, limit, own.low_latency, inside_Bps)


def moving(
    layers: list[Layer],
    workload: Workload,
    shard: Shard,
    optimizer: Optimizer,
    microbatches: int,
) -> list[Layer]:
    """Return layers with the kernels that add gradients of microbatches, and that pack what is gathered and reduced."""
    element_bytes = shard.precision.bytes
    if workload.accumulation != "fused" and microbatches > 1:
        layers = _alike(layers, lambda layer: accumulating(layer, element_bytes))
    if workload.data.kind == "fsdp" and shard.eager:
        layers = _alike(layers, lambda layer: gathering(layer, element_bytes, optimizer.reduced))
    return layers


def adds_up(workload: Workload, optimizer: Optimizer) -> bool:
    """Return True if products add weight gradients to 32-bit sums; sharded weights have none of their own."""
    whole = workload.data.kind not in ("fsdp", "zero3")
    return whole and workload.accumulation == "fused" and optimizer.main_gradient > 0


def _alike(layers: list[Layer], change: Callable[[Layer], Layer]) -> list[Layer]:
    """Return changed layers; like layers stay one object."""
    made = {id(layer): change(layer) for layer in layers}
    return [made[id(layer)] for layer in layers]
