"""Topology by name, file or generator specification -> `Fabric`; one node or a cluster of several."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusim.base import importer_hook, resources
from clusim.base.errors import TopologyError, suggest
from clusim.base.files import noting
from clusim.base.limits import printable

if TYPE_CHECKING:
    from clusim.topology.model import Fabric
    from clusim.topology.schema import PolicySpec, Topology
    from clusim.topology.validate import Problems

OF_CHIP = {
    **{
        "p100": "dgx-1p",
        "v100": "dgx-1v",
        "a100": "dgx-a100",
        "h100": "dgx-h100",
        "h200": "dgx-h200",
    },
    **{
        "b200": "hgx-b200",
        "b300": "hgx-b300",
        "gh200": "alps-gh200",
        "h800": "hgx-h800",
    },
    **{
        "dgx-1": "dgx-1v",
        "dgx-b200": "hgx-b200",
        "dgx": "dgx-h100",
        "nvl72": "gb200-nvl72",
    },
    **dict.fromkeys(
        ("rubin", "vr200", "nvl144", "vera-rubin-nvl144"), "vera-rubin-nvl72"
    ),
}
"""Chips and other common names of a node, with the preset that each denotes."""


def load(
    name_or_path: str | os.PathLike[str], *, nodes: int | None = None
) -> Fabric:
    """Return the topology named or described by `name_or_path`.

    A shipped preset (``dgx-a100``), a YAML file (anything with a directory or a suffix, or an existing
    file), a generator specification (``fat-tree:k=8``), or a cluster of them (``aws-p5:nodes=4``,
    ``superpod-h100:nodes=32``).

    Parameters
    ----------
    nodes : int or None
        Number of nodes to join by their usual network; 1 is the node only.
    """
    name = os.fspath(name_or_path)
    if not resources.cached or not isinstance(name, str):
        return _note_files(name, nodes)
    from clusim.topology import shelf

    return shelf.fabric(name, nodes, partial(_note_files, name, nodes))


def rows() -> dict[str, Any]:
    """Return the rows of ``clusim topo list``."""

    def read() -> dict[str, Any]:
        from clusim.topology.generators import GENERATORS

        presets = {name: load(name) for name in resources.shipped_topologies()}
        described = [
            [name, one.num_ranks, one.description] for name, one in presets.items()
        ]
        return {"presets": described, "generators": list(GENERATORS)}

    if not resources.cached:
        return read()
    from clusim.topology import shelf

    return shelf.rows(read)


def _note_files(name: str, nodes: int | None) -> Fabric:
    """Return a topology with the names of the files that it was read from."""
    with noting() as read:
        fabric = _load(name, nodes)
    # In place: `replace` would discard the cached properties of the topology.
    object.__setattr__(fabric, "source_files", tuple(read))
    return fabric


def names_machine(word: str) -> bool:
    """True if a word names a topology, among words that may be files of jobs.

    Topologies are presets, generators, and files in YAML or NCCL's XML. A word without a suffix or directory
    that is not a file also counts, as a misspelt name.
    """
    from clusim.topology.cluster_names import is_cluster_name
    from clusim.topology.generators import is_generator

    if (
        resources.find_topology(word) is not None
        or is_generator(word)
        or is_cluster_name(word)
    ):
        return True
    suffix = Path(word).suffix
    if os.path.exists(word) or suffix or os.sep in word:
        return suffix.lower() in (".yaml", ".yml", ".xml")
    return word != "-" and word not in resources.shipped_recordings()


def _load(name: str, nodes: int | None) -> Fabric:
    excerpt = printable(name, 200)
    if not name or "\0" in name:
        raise TopologyError(
            f"topology {excerpt!r}: not a name; choose a preset or a file"
        )
    if nodes is not None and (isinstance(nodes, bool) or nodes < 1):
        raise TopologyError(f"nodes={nodes}: must be at least 1")
    from clusim.topology.cluster_names import is_cluster_name
    from clusim.topology.generators import GENERATORS, generate, is_generator

    preset = resources.find_topology(name)
    path = Path(name)
    if preset is None and not os.path.exists(name) and is_cluster_name(name):
        return _named_cluster(name, excerpt, nodes)
    if is_generator(name):
        if nodes not in (None, 1):
            raise TopologyError(f"{excerpt}: nodes need a preset or file with NICs")
        return generate(name)
    if preset is not None:
        return _load_file(preset, preset.name, name, nodes)
    if os.sep in name or path.suffix in (".yaml", ".yml") or os.path.exists(name):
        return _load_file(path, excerpt, name, nodes)
    from clusim.topology.cluster_names import superpods

    names = [*resources.shipped_topologies(), *GENERATORS, *superpods()]
    hint = suggest(name.partition(":")[0], names, OF_CHIP)
    raise TopologyError(f"topology {excerpt!r}: no such preset or file{hint}")


def loads(
    text: str,
    where: str = "<text>",
    *,
    default_name: str = "custom",
    base: Path | None = None,
) -> Fabric:
    """Return the topology described by a YAML text; `where` is its name in errors.

    Parameters
    ----------
    base : Path or None
        Directory that the file names in the text start from.
    """
    from clusim.topology.validate import describe

    topology, problems = describe(text, where, default_name)
    return build_topology(topology, problems, text, base)


def build(described: importer_hook.Described) -> Fabric:
    """Return the topology in a file of another tool."""
    return loads(described.to_yaml(), described.name, default_name=described.name)


def build_topology(
    topology: Topology, problems: Problems, text: str, base: Path | None = None
) -> Fabric:
    """Return the topology of a valid description; `text` and `base` are as in `loads`."""
    from clusim.topology.assemble import assemble
    from clusim.topology.checks import raise_on_errors

    for chip in topology.chips.values():
        if (
            base is not None
            and chip.kernels is not None
            and (base / chip.kernels).is_file()
        ):
            chip.kernels = os.fspath(base / chip.kernels)
    for control in (
        nic.rate_control for nic in topology.nics.values() if base is not None
    ):
        for key in ("base", "policy"):
            if ":" in (getattr(control, key, None) or ""):
                setattr(control, key, os.fspath(base / getattr(control, key)))
    for policy in _policies_of(topology):
        if base is not None and ":" in policy.policy:
            policy.policy = os.fspath(base / policy.policy)
    if topology.base is not None:
        from clusim.topology.overlays import overlay

        return overlay(topology, problems, partial(_machine, base), text)
    if topology.cluster is not None:
        from clusim.topology.cluster import build_cluster

        fabric = build_cluster(
            topology, problems, partial(_machine, base), source_text=text
        )
    else:
        fabric = assemble(topology, problems, source_text=text)
    raise_on_errors(fabric, problems.where)
    return fabric


def _policies_of(topology: Topology) -> Iterator[PolicySpec]:
    """Yield the policies of links and switches, and those of receivers beside senders."""
    for link in topology.link_types.values():
        yield from filter(None, (link.queue_policy, link.schedule_policy))
    for switch in topology.switches.values():
        yield from filter(None, (switch.path_policy,))
    for nic in topology.nics.values():
        yield from filter(None, (getattr(nic.rate_control, "receiver", None),))


def from_data(data: dict[str, Any], machine: Fabric | None = None) -> Fabric:
    """Return the topology of plain data in the form of a topology file.

    Parameters
    ----------
    machine : Fabric or None
        Node of a cluster; None is that named in `data`.
    """
    import yaml

    from clusim.topology.cluster import build_cluster
    from clusim.topology.validate import Problems, validate

    problems = Problems(printable(data.get("name") or "custom", 200))
    topology = validate(data, problems)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    if machine is None:
        return build_topology(topology, problems, text)
    return build_cluster(topology, problems, lambda _: machine, source_text=text)


def join_nodes(machine: Fabric, nodes: int) -> Fabric:
    """Return a number of copies of a node, joined by its usual network."""
    if nodes < 2:
        return machine
    cluster = {"node": machine.name, "nodes": nodes}
    return from_data(
        {"name": f"{machine.name}:nodes={nodes}", "cluster": cluster}, machine
    )


def _machine(base: Path | None, name: str, nodes: int | None = None) -> Fabric:
    """Return the topology that a description names; relative files are read from `base` first."""
    if (
        base is not None
        and resources.find_topology(name) is None
        and (base / name).exists()
    ):
        return load(base / name, nodes=nodes)
    return load(name, nodes=nodes)


def _load_file(path: Path, where: str, name: str, nodes: int | None) -> Fabric:
    from clusim.topology.validate import describe, read_text

    text = read_text(path, where)
    reader = importer_hook.reader()
    kind = reader.detect(text)
    if kind is None:
        try:
            topology, problems = describe(text, where, printable(path.stem, 200))
        except TopologyError:
            kind = reader.detect_extension(text)
            if kind is None:
                raise
    if kind is not None:
        if nodes not in (None, 1):
            return _named_cluster(name, where, nodes)
        return build(reader.import_text(text, where))
    if topology.base is not None:
        from clusim.topology.overlays import overlay

        machine = partial(_machine, path.parent, nodes=nodes)
        return overlay(topology, problems, machine, text)
    if nodes is not None and topology.cluster is not None:
        cluster = topology.cluster.model_copy(update={"nodes": nodes})
        topology = topology.model_copy(update={"cluster": cluster})
    elif nodes not in (None, 1):
        return _named_cluster(name, where, nodes)
    return build_topology(topology, problems, text, path.parent)


def _named_cluster(name: str, excerpt: str, nodes: int | None) -> Fabric:
    """Return the cluster of a name such as ``aws-p5:nodes=4``."""
    from clusim.topology.cluster_names import cluster_data

    try:
        data = cluster_data(name, nodes)
    except TopologyError as error:
        raise TopologyError(f"{excerpt}: {error}") from None
    if data["cluster"]["nodes"] == 1 and "network" not in data["cluster"]:
        return load(data["cluster"]["node"])
    return from_data(data)
