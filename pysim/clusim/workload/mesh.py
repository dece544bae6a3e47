"""Device mesh: groups of ranks in every dimension of parallelism, and their placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from clusim.base.errors import InputError
from clusim.base.json_schema import JsonObject
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric

DIMS = ("tensor", "context", "data", "pipeline")
"""Dimensions, the fastest first, as in Megatron-LM. Experts are spread over neighbours in context and data."""


def _split_in_order(
    groups: Iterable[tuple[int, ...]], size: int
) -> list[tuple[int, ...]]:
    """Split groups into parts of `size` consecutive ranks."""
    return [
        group[low : low + size]
        for group in groups
        for low in range(0, len(group), size)
    ]


def _split_by_stride(
    groups: Iterable[tuple[int, ...]], stride: int
) -> list[tuple[int, ...]]:
    """Split groups into `stride` parts, each of every `stride`-th rank."""
    return [group[low::stride] for group in groups for low in range(stride)]


@dataclass(frozen=True)
class Mesh(JsonObject):
    """Number of GPUs of every dimension of parallelism.

    Attributes
    ----------
    order : tuple of str
        Dimensions, the fastest first.
    ranks : tuple of int
        Topology rank at each place of the mesh.
    shard : int
        Neighbouring ranks of context x data that shard states; the others have copies. 0 is all.
    norm : int
        Neighbouring ranks of context x data that normalise batches together.
    """

    KEYS = ("tensor", "context", "expert", "data", "pipeline")

    tensor: int = 1
    context: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1
    order: tuple[str, ...] = DIMS
    ranks: tuple[int, ...] = ()
    shard: int = 0
    norm: int = 1

    def __post_init__(self) -> None:
        """Check that dimensions and ranks agree."""
        if sorted(self.order) != sorted(DIMS):
            raise InputError(
                f"order {list(self.order)}: must name each of {', '.join(DIMS)} once"
            )
        for name in (*DIMS, "expert"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: must be at least 1")
        if (self.context * self.data) % self.expert:
            raise InputError(
                f"expert {self.expert}: must divide context x data = {self.context * self.data}; experts are"
                " distributed over these dimensions"
            )
        self._check_shard()
        if (self.context * self.data) % self.norm:
            raise InputError(
                f"batchnorm {self.norm}: must divide context x data = {self.context * self.data}"
            )
        if not self.ranks:
            object.__setattr__(self, "ranks", tuple(range(self.size)))
        if len(self.ranks) != self.size or len(set(self.ranks)) != self.size:
            sizes = " x ".join(f"{name} {getattr(self, name)}" for name in DIMS)
            raise InputError(
                f"mesh {sizes} = {self.size} ranks; {len(set(self.ranks))} ranks are given"
            )

    def _check_shard(self) -> None:
        shard, all_of = self.shard, self.context * self.data
        if not shard:
            return
        if shard < 0 or all_of % shard:
            raise InputError(f"shard {shard}: must divide context x data = {all_of}")
        if shard % self.expert and self.expert % shard:
            raise InputError(
                f"shard {shard}: must be a multiple or a divisor of expert {self.expert}"
            )

    @property
    def shards(self) -> int:
        """Ranks that share the states of a replica of the weights."""
        return self.shard or self.context * self.data

    @property
    def expert_shards(self) -> int:
        """Ranks that share the states of an expert."""
        return max(1, self.shards // self.expert)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(getattr(self, name) for name in DIMS)

    def at(self, **place: int) -> int:
        """Return the rank at a place of the mesh."""
        index, step = 0, 1
        for name in self.order:
            index += place.get(name, 0) * step
            step *= getattr(self, name)
        return self.ranks[index]

    def stage(self, pipeline: int) -> list[int]:
        """Return the ranks of a pipeline stage."""
        return list(self._stages[pipeline])

    @cached_property
    def _stages(self) -> list[tuple[int, ...]]:
        inside = list(
            product(range(self.data), range(self.context), range(self.tensor))
        )
        return [
            tuple(
                self.at(tensor=t, context=c, data=d, pipeline=stage)
                for d, c, t in inside
            )
            for stage in range(self.pipeline)
        ]

    def groups(self, dim: str, pipeline: int) -> list[tuple[int, ...]]:
        """Return the groups of a dimension in a stage.

        ``replica``: ranks with the same weights (data x context); ``expert_replica``: with the same experts.
        ``shard`` and ``expert_shard`` are the parts of these that divide states, ``copy`` and ``expert_copy``
        the ranks that hold the same part.
        """
        t, c, d, e = (
            range(self.tensor),
            range(self.context),
            range(self.data),
            self.expert,
        )
        at = self.at
        if dim == "tensor":
            return [
                tuple(at(tensor=i, context=j, data=k, pipeline=pipeline) for i in t)
                for k in d
                for j in c
            ]
        if dim == "context":
            return [
                tuple(at(tensor=i, context=j, data=k, pipeline=pipeline) for j in c)
                for k in d
                for i in t
            ]
        replicas = [
            tuple(
                at(tensor=i, context=j, data=k, pipeline=pipeline)
                for k in d
                for j in c
            )
            for i in t
        ]
        if dim == "replica":
            return replicas
        if dim == "norm":
            return _split_in_order(replicas, self.norm)
        if dim == "expert":
            return _split_in_order(replicas, e)
        if dim == "expert_replica":
            return _split_by_stride(replicas, e)
        if dim in ("shard", "expert_shard", "copy", "expert_copy"):
            expert = dim.startswith("expert")
            size = self.expert_shards if expert else self.shards
            kind = "expert_replica" if expert else "replica"
            split = _split_in_order if dim.endswith("shard") else _split_by_stride
            return split(self.groups(kind, pipeline), size)
        raise InputError(f"dimension {dim!r}: unknown")

    def coupled_ranks(self, pipeline: int) -> list[tuple[int, ...]]:
        """Return the sets of ranks of a stage that communicate within a microbatch, in order."""
        return list(self._coupled_ranks[pipeline])

    @cached_property
    def _coupled_ranks(self) -> list[list[tuple[int, ...]]]:
        return [self._unite(stage) for stage in range(self.pipeline)]

    def _unite(self, pipeline: int) -> list[tuple[int, ...]]:
        parent = {rank: rank for rank in self.stage(pipeline)}

        def root(rank: int) -> int:
            while parent[rank] != rank:
                rank = parent[rank]
            return rank

        for dim in ("tensor", "context", "expert", "norm"):
            for group in self.groups(dim, pipeline):
                for rank in group[1:]:
                    parent[root(rank)] = root(group[0])
        result: dict[int, list[int]] = {}
        for rank in self.stage(pipeline):
            result.setdefault(root(rank), []).append(rank)
        return [tuple(united) for united in result.values()]


def zones_of(fabric: Fabric) -> list[int]:
    """Return the node of every rank."""
    if fabric.num_zones < 2:
        return [0] * fabric.num_ranks
    cache: dict[str, list[int]] = fabric.cache
    if "zones" not in cache:
        arrays = arrays_of(fabric)
        cache["zones"] = [arrays.zone_of(rank) for rank in range(fabric.num_ranks)]
    return cache["zones"]


def placement(mesh: Mesh, fabric: Fabric) -> dict[str, str]:
    """Return the placement of each dimension in nodes: ``inside``, ``across`` or ``mixed``."""
    zone = zones_of(fabric)
    result = {}
    for dim in ("tensor", "context", "expert", "replica"):
        groups = [
            group
            for stage in range(mesh.pipeline)
            for group in mesh.groups(dim, stage)
        ]
        result["data" if dim == "replica" else dim] = _where(groups, zone)
    if mesh.shard:
        groups = [
            group
            for stage in range(mesh.pipeline)
            for group in mesh.groups("shard", stage)
        ]
        result["shard"] = _where(groups, zone)
    columns = [mesh.stage(stage) for stage in range(mesh.pipeline)]
    result["pipeline"] = _where([*zip(*columns, strict=True)], zone)
    return result


def _where(groups: Sequence[Sequence[int]], zone: Sequence[int]) -> str:
    real = [group for group in groups if len(group) > 1]
    if not real:
        return "none"
    inside = [len({zone[rank] for rank in group}) == 1 for group in real]
    return "inside" if all(inside) else "mixed" if any(inside) else "across"
