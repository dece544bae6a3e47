"""The schema of ``network:`` and ``cluster:`` sections: machines, and the network that joins them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from clusim.topology.quantities import Count, Length, Spec, one_or_more

NetworkKind = Literal["single", "rail", "fat-tree", "superpod", "dragonfly", "torus"]

NETWORK_KINDS: tuple[str, ...] = get_args(NetworkKind)

Radix = Annotated[int, Field(ge=2, le=65_536)]
Ratio = Annotated[float, Field(ge=0.01, le=1024)]


class LengthsSpec(Spec):
    """Lengths of the cables of each tier; what is not given has the latency of its link type alone.

    ``nic`` is NIC to first switch; ``spine`` leaf to spine, ``core`` spine to core; ``local`` and ``global`` are the
    links in and between the groups of a dragonfly; ``torus`` those between neighbours.
    """

    nic: Length | None = None
    spine: Length | None = None
    core: Length | None = None
    local: Length | None = None
    global_: Annotated[Length | None, Field(alias="global")] = None
    torus: Length | None = None


class NetworkSpec(Spec):
    """Network between nodes; all keys but the kind have a default that fits the nodes.

    A file of one machine says with it what such machines are usually joined by.
    """

    kind: NetworkKind = "rail"
    link: str | None = None
    trunk: str | None = None
    switch: str | None = None
    spine_switch: str | None = None
    core_switch: str | None = None
    radix: Radix | None = None
    nics: Count | None = None
    rails: Count | None = None
    unit: Count | None = None
    levels: Annotated[int, Field(ge=1, le=3)] | None = None
    oversubscription: Ratio | None = None
    core_oversubscription: Ratio | None = None
    uplinks: Count | None = None
    spines: Annotated[int, Field(ge=0, le=65_536)] | None = None
    cores: Count | None = None
    groups: Count | None = None
    group_switches: Count | None = None
    switch_nics: Count | None = None
    global_links: Count | None = None
    local_links: Count | None = None
    shape: Annotated[list[Count], one_or_more, Field(min_length=1, max_length=6)] | None = None
    torus_links: Count | None = None
    lengths: LengthsSpec | None = None

    def plain(self) -> dict[str, Any]:
        """Return the given keys as plain data, as in a file."""
        return self.model_dump(exclude_none=True, by_alias=True)


class ClusterSpec(Spec):
    """`nodes` machines of one kind: `node` is a preset, or a file relative to the one that says so."""

    node: Annotated[str, Field(min_length=1, max_length=1000)]
    nodes: Annotated[int, Field(ge=1, le=65_536)]
    network: NetworkSpec | None = None
