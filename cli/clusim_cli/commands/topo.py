"""``clusim topo``: shipped topologies, files of other tools, pictures, checks, differences."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusim_cli import options
from clusim_cli.outputs import OUTPUT, PICTURE, GuardedGroup, echo_done
from clusim_cli.params import CHIP, RECORDED_FILE, TOPOLOGY, TOPOLOGY_KIND, one_of

if TYPE_CHECKING:
    from clusim.formats.topologies import Imported
    from clusim.topology import Fabric
    from clusim.topology.check_links import Finding
    from clusim_cli.forms import MachineJson

FILE = click.Path(path_type=Path)


@click.group(
    "topo",
    cls=GuardedGroup,
    short_help="List, show, check, compare and import topologies.",
)
def command() -> None:
    """List, show, check, compare and import topologies."""


@command.command("list")
@options.as_json("clusim_cli.forms:TopologiesJson")
def list_topologies(as_json: bool) -> None:
    """List the presets and the generators."""
    from clusim.base.tables import text_table
    from clusim.topology.loading import rows

    known = rows()
    if as_json:
        keys = "name", "ranks", "description"
        presets = [dict(zip(keys, row, strict=True)) for row in known["presets"]]
        _print_json({**known, "presets": presets})
        return
    for line in text_table("{:<22} {:>5} GPUs  {}", known["presets"]):
        click.echo(line)
    click.echo("")
    click.echo(
        f"generators: {', '.join(known['generators'])}; for example fat-tree:k=8"
    )
    click.echo("clusters: any preset with --nodes N, or PRESET:nodes=N")


@command.command("show")
@click.argument("topology", type=TOPOLOGY)
@options.nodes()
@click.option("--svg", type=OUTPUT, metavar="FILE", help="Also draw it as SVG.")
@click.option("--png", type=PICTURE, metavar="FILE", help="Also draw it as PNG.")
@click.option("--figures", is_flag=True, help="Print every figure with its source.")
@click.option("--no-sources", is_flag=True, help="With --figures: omit the sources.")
@options.as_json("clusim_cli.forms:MachineJson")
def show(
    topology: str,
    nodes: int | None,
    svg: Path | None,
    png: Path | None,
    figures: bool,
    no_sources: bool,
    as_json: bool,
) -> None:
    """Print TOPOLOGY as a tree: nodes, CPUs, PCIe switches, GPUs and NICs, GPU links, network."""
    from clusim.topology import describe, load
    from clusim.topology.tree import tree

    pictures = [
        (path, kind)
        for path, kind in ((svg, ".svg"), (png, ".png"))
        if path is not None
    ]
    for path, kind in pictures:
        _check_picture(path, kind)
    machine = load(topology, nodes=nodes)
    if as_json:
        _print_json(_machine(machine))
    elif figures:
        click.echo(describe(machine, sources=not no_sources))
    else:
        click.echo(tree(machine))
    for path, _ in pictures:
        _draw(machine, path)


def _machine(machine: Fabric) -> MachineJson:
    from clusim.topology.node import kind_of

    ranks = {name: rank for rank, name in enumerate(machine.ranks)}
    return {
        "name": machine.name,
        "description": machine.description,
        "ranks": machine.num_ranks,
        "nodes": [
            {
                "name": node.name,
                "kind": kind_of(node),
                "what": node.product,
                "rank": ranks.get(node.name),
            }
            for node in machine.nodes
        ],
        "links": [
            {
                "a": link.a,
                "b": link.b,
                "count": link.count,
                "type": link.label,
                "rate_GBps": link.rate.bytes_per_s / 1e9,
                "latency_ps": link.latency_ps,
            }
            for link in machine.links
        ],
        "sources": dict(machine.sources),
    }


def _check_picture(path: Path, suffix: str) -> None:
    """Raise before anything is written if the picture could not be."""
    from clusim.base.errors import InputError
    from clusim.base.files import check_place

    if path.suffix.lower() != suffix:
        raise InputError(f"{path}: must end in {suffix}")
    check_place(path)


def _draw(machine: Fabric, path: Path) -> None:
    from clusim.topology.picture import save_picture

    save_picture(machine, path)
    click.echo(f"wrote {path}", err=True)


@command.command("check")
@click.argument("topologies", nargs=-1, required=True, type=TOPOLOGY)
@options.nodes()
@click.option(
    "--measured",
    type=FILE,
    help="Output of nvbandwidth on that system, JSON (-j) or text, to compare with the wires.",
)
@options.as_json("clusim_cli.forms:CheckedListJson")
def check(
    topologies: tuple[str, ...],
    nodes: int | None,
    measured: Path | None,
    as_json: bool,
) -> None:
    """Check that TOPOLOGIES can be read, are connected, and can be simulated."""
    from clusim.base.extensions import find_extension
    from clusim.topology import check, load
    from clusim.topology.arrays import arrays_of

    compare: Callable[[Fabric], list[Finding]] | None = None
    if measured is not None:
        subject = f"{measured}: measurements of nvbandwidth"
        source = find_extension("clusim.measurements", "nvbandwidth", subject)
        tests = source.function("read_nvbandwidth")(measured)
        compare = partial(source.function("compare_tests"), tests=tests)
    result: list[dict[str, Any]] = []
    for name in topologies:
        machine = load(name, nodes=nodes)
        wires = len(arrays_of(machine).wires)
        findings = check(machine)
        if compare is not None:
            findings = [*findings, *compare(machine)]
        result.append(
            {
                "topology": name,
                "ranks": machine.num_ranks,
                "nodes": len(machine.nodes),
                "wires": wires,
                "findings": [finding.to_json() for finding in findings],
            }
        )
        if as_json:
            continue
        click.echo(
            f"{name}: ok, {machine.num_ranks} ranks, {len(machine.nodes)} nodes, {wires} wires"
        )
        for finding in findings:
            click.echo(f"  {finding.level}: {finding.what}")
    if as_json:
        _print_json(result)


@command.command("diff")
@click.argument("first", type=TOPOLOGY)
@click.argument("second", type=TOPOLOGY)
@options.as_json("clusim_cli.forms:DifferencesJson")
@click.pass_context
def diff(ctx: click.Context, first: str, second: str, as_json: bool) -> None:
    """Show the differences of the topologies FIRST and SECOND; the exit code is 1 if they differ, as of diff."""
    from clusim.topology import load
    from clusim.topology.diff import diff as differences

    result = differences(load(first), load(second))
    if as_json:
        rows = [item.to_json() for item in result]
        _print_json({"first": first, "second": second, "differences": rows})
    elif result:
        click.echo(f"first: {first}\nsecond: {second}")
        for item in result:
            click.echo(f"  {item}")
    else:
        click.echo(f"{first} and {second} do not differ")
    if result:
        ctx.exit(1)


@command.command("export", raw=True)
@click.argument("topology", type=TOPOLOGY)
@options.nodes()
@click.option(
    "--format", "form", type=one_of("nccl-xml", "nccl-graph", "infragraph"), default="nccl-xml",
    show_default=True,
    help="Format to write. nccl-xml is NCCL's topology XML, nccl-graph its graph XML, infragraph is YAML with the"
    " network.",
)  # fmt: skip
@options.output(
    more="NCCL's topology or graph XML, or InfraGraph YAML.", said="standard output"
)
def export(topology: str, nodes: int | None, form: str, output: Path | None) -> None:
    """Write one node of TOPOLOGY as NCCL does (NCCL_TOPO_DUMP_FILE), its graphs (NCCL_GRAPH_DUMP_FILE), or all of
    TOPOLOGY as InfraGraph."""
    from clusim.base.extensions import find_extension
    from clusim.base.files import write_text
    from clusim.formats.topologies.nccl_dump import dump_system
    from clusim.topology import load
    from clusim.topology.node import kind_of

    machine = load(topology, nodes=nodes)
    if form == "nccl-graph":
        from clusim.nccl.communicator import communicator
        from clusim.nccl.graphfile import write_graphs

        text = write_graphs(communicator(machine).node_graphs)
    elif form == "infragraph":
        text = find_extension(
            "clusim.topologies", "infragraph", "InfraGraph"
        ).function("dump")(machine)
    else:
        text = dump_system(machine)
    if output is None:
        click.echo(text, nl=False)
        return
    write_text(output, text)
    if form == "nccl-graph":
        echo_done(output, f"{text.count('<channel>')} channels")
        return
    if form == "nccl-xml":
        counts = text.count("<gpu "), text.count("<net ")
    else:
        kinds = [kind_of(node) for node in machine.nodes]
        counts = kinds.count("gpu"), kinds.count("nic")
    echo_done(output, f"{counts[0]} GPUs, {counts[1]} NICs")


@command.command("import")
@click.argument("file", type=RECORDED_FILE)
@options.output(more="A topology file; - is stdout.")
@options.kind(type=TOPOLOGY_KIND)
@click.option(
    "--chip",
    type=CHIP,
    metavar="NAME",
    help="Type of the GPUs, if FILE does not contain it.",
)
@click.option(
    "--cpu",
    metavar="NAME",
    help="Type of the processors, such as epyc-milan, if FILE does not contain it.",
)
@click.option(
    "--group",
    metavar="GROUP",
    help="Number or name of the system, if FILE has several.",
)
@click.option(
    "--onto", type=TOPOLOGY, metavar="TOPOLOGY",
    help="FILE is partial (NCCL_TOPO_FILE): the rest is as in this preset, topology file or XML.",
)  # fmt: skip
@options.as_json("clusim_cli.forms:ImportedJson")
def import_(file: Path, output: Path | None, as_json: bool, **given: Any) -> None:
    """Convert FILE of another tool to a topology file, and list the assumptions."""
    from clusim.base.files import is_stream, write_text
    from clusim.formats.topologies import import_file, import_onto
    from clusim.hardware import gpu

    kind, chip, cpu, group, onto = (
        given[name] or None for name in ("kind", "chip", "cpu", "group", "onto")
    )
    if chip is not None:
        gpu(chip)  # rejects an unknown chip, also if the file describes it better
    if onto is not None and (group or cpu or kind not in (None, "nccl-xml")):
        message = (
            "--onto is for NCCL's XML of one node; not with --cpu, --group, --kind"
        )
        raise click.UsageError(message)
    if onto is not None:
        result = import_onto(file, onto, chip=chip)
    else:
        result = import_file(file, kind=kind, chip=chip, cpu=cpu, group=group)
    text = result.to_yaml()
    findings = _findings(result)  # raises if the imported topology cannot be read
    to_stdout = output is not None and is_stream(output)
    if output is not None:
        write_text(output, text, [file])
    if as_json:
        summary = {
            **_summary(result, file, output),
            "findings": [f.to_json() for f in findings],
        }
        _print_json(summary, err=to_stdout)
        return
    for line in [*_words(result, file), *_found(findings)]:
        click.echo(line, err=to_stdout)
    if output is not None and not to_stdout:
        click.echo(f"wrote {output}", err=True)
    elif output is None:
        click.echo("no file written; -o FILE writes a topology file", err=True)


def _findings(imported: Imported) -> list[Finding]:
    """Return the findings of `topo check` in an imported topology, without mere values."""
    from clusim.topology import check

    return [
        finding for finding in check(imported.fabric()) if finding.level != "info"
    ]


def _found(findings: list[Finding]) -> list[str]:
    lines = (
        [f"  found by `clusim topo check` ({len(findings)}):"] if findings else []
    )
    return lines + [f"    {finding.level}: {finding.what}" for finding in findings]


def _words(imported: Imported, file: Path) -> list[str]:
    counts = [
        f"{value} {name.replace('_', ' ')}"
        for name, value in imported.counts.items()
        if value
    ]
    lines = [f"{file}: {imported.title}", f"  found: {', '.join(counts)}"]
    if imported.assumptions:
        lines.append(
            f"  assumed, as missing in the file ({len(imported.assumptions)}):"
        )
    return lines + [f"    {assumption}" for assumption in imported.assumptions]


def _summary(imported: Imported, file: Path, output: Path | None) -> dict[str, Any]:
    return {
        "file": str(file),
        "kind": imported.kind,
        "title": imported.title,
        "output": None if output is None else str(output),
        "counts": dict(imported.counts),
        "assumptions": [item.to_json() for item in imported.assumptions],
    }


def _print_json(data: Any, *, err: bool = False) -> None:
    import json

    click.echo(json.dumps(data, indent=2), file=sys.stderr if err else sys.stdout)
