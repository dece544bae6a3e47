"""Parallelism layout of a workload: its mesh on the ranks of a topology, and its servers."""

from __future__ import annotations

from clusim.base.errors import ClusimError
from clusim.topology.model import Fabric
from clusim.workload.memory import ZERO
from clusim.workload.mesh import DIMS, Mesh
from clusim.workload.parallel.checks import check_chunks, check_servers
from clusim.workload.spec import Workload
from clusim.workload.workload_file import complain


def mesh_of(workload: Workload, fabric: Fabric) -> tuple[Mesh, tuple[int, ...]]:
    """Return the mesh of a workload, and the ranks of its parameter servers."""
    parallel, data = workload.parallel, workload.data
    server_kind = data.kind == "parameter-server"
    if server_kind and parallel.tensor * parallel.context * parallel.pipeline > 1:
        message = "parameter servers support data parallelism only"
        raise complain(workload, ("data", "kind"), message)
    check_servers(workload, fabric)
    extra = data.servers if server_kind and not data.colocated else 0
    replicas = _count_replicas(workload, fabric, extra)
    check_chunks(workload)
    if data.shard is not None and data.kind not in ZERO:
        message = f"{data.kind} cuts no states; use one of {', '.join(ZERO)}"
        raise complain(workload, ("data", "shard"), message)
    if parallel.ranks and max(parallel.ranks) >= fabric.num_ranks:
        message = f"rank {max(parallel.ranks)}: {fabric.name} has 0..{fabric.num_ranks - 1}"
        raise complain(workload, ("parallel", "ranks"), message)
    mesh = _make_mesh(workload, replicas)
    if not server_kind:
        return mesh, ()
    if data.colocated:
        return mesh, mesh.ranks[: data.servers]
    remaining = (rank for rank in range(fabric.num_ranks) if rank not in mesh.ranks)
    return mesh, tuple(remaining)[: data.servers]


def _count_replicas(workload: Workload, fabric: Fabric, extra: int) -> int:
    """Return the degree of data parallelism on the GPUs besides `extra` servers."""
    parallel = workload.parallel
    model_size = parallel.tensor * parallel.context * parallel.pipeline
    have = (
        len(parallel.ranks)
        if parallel.ranks is not None
        else fabric.num_ranks - extra
    )
    replicas = parallel.data if parallel.data is not None else have // model_size
    num_ranks = model_size * replicas
    sizes = f"tensor {parallel.tensor} x context {parallel.context} x pipeline {parallel.pipeline}"
    if parallel.data is None and (replicas < 1 or num_ranks != have):
        message = f"{sizes} = {model_size} does not divide the {have} GPUs that are left for it"
        raise complain(workload, ("parallel",), message)
    more = f" and {extra} servers" if extra else ""
    used = f"{sizes} x data {replicas} = {num_ranks} GPUs{more}"
    if num_ranks + extra > fabric.num_ranks:
        message = f"{used}; {fabric.name} has {fabric.num_ranks}"
        raise complain(workload, ("parallel",), message)
    if parallel.ranks is None and num_ranks + extra < fabric.num_ranks:
        message = (
            f"{used}, but {fabric.name} has {fabric.num_ranks}; omit"
            " 'data' to use all GPUs, or list the GPUs in parallel.ranks"
        )
        raise complain(workload, ("parallel",), message)
    return replicas


def _make_mesh(workload: Workload, replicas: int) -> Mesh:
    """Return the mesh; raise an error with its place in the file if the degrees contradict each other."""
    parallel, data = workload.parallel, workload.data
    try:
        return Mesh(
            parallel.tensor,
            parallel.context,
            replicas,
            parallel.pipeline,
            parallel.expert,
            tuple(parallel.order) if parallel.order else DIMS,
            tuple(parallel.ranks or ()),
            shard=data.shard or 0,
            norm=data.batchnorm,
        )
    except ClusimError as error:
        word = str(error).partition(" ")[0]
        place = ("data", word) if word in ("shard", "batchnorm") else ("parallel",)
        raise complain(workload, place, str(error)) from None
