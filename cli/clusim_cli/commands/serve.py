"""``clusim serve``: requests to a language model on a system."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts
from clusim_cli.params import RANKS, SERVING, TOPOLOGY
from clusim_cli.progress import counted_progress

if TYPE_CHECKING:
    from pathlib import Path

    from clusim.serving.api import ServedModel, ServeRequest
    from clusim.serving.report import ServedLoad


@click.command(
    "serve", cls=GuardedCommand, short_help="Serve requests with a language model."
)
@click.argument("serving", type=SERVING)
@click.argument("topology", type=TOPOLOGY, required=False)
@options.nodes()
@click.option("--concurrency", type=RANKS, default=None, metavar="LIST",
              help="Requests that are always in the server; several, e.g. 1,4,16, print a table.")  # fmt: skip
@click.option("--requests", type=click.Path(exists=True, dir_okay=False), default=None, metavar="FILE",
              help="CSV file of requests: arrival [s], input and output [tokens].")  # fmt: skip
@click.option("--step-parts", "step_parts", is_flag=True,
              help="Only show the kernels and collectives of a prefill and a decode step.")  # fmt: skip
@options.html(
    more="It has the verdict, latencies, steps, requests and cache over time."
)
@options.plot(
    more="It has the throughput of each load over the throughput of a user."
)
@options.strict()
@options.as_json("clusim_cli.forms:ServeJson")
@options.no_progress()
def command(
    serving: str,
    topology: str | None,
    nodes: int | None,
    as_json: bool,
    no_progress: bool,
    **picked: Any,
) -> None:
    """Simulate requests to the language model of SERVING, a YAML file or a shipped one, on TOPOLOGY or the file's
    system: an engine's scheduler with continuous batching, its cache of keys and values, and its steps.

    Prints time to first token (TTFT), time per output token (TPOT), throughput, use of the cache, and the parts of
    steps.
    """
    from clusim.serving.api import load_model
    from clusim.serving.report import (
        ServedLoad,
        layer_lines,
        layer_rows,
        load_lines,
        serving_report,
    )

    loads = picked["concurrency"] or ()
    if picked["requests"] and loads:
        raise click.UsageError("--requests: not with --concurrency")
    if picked["step_parts"] and (picked["requests"] or len(loads) > 1):
        raise click.UsageError("--step-parts: not with --requests or several loads")
    if picked["plot"] and len(loads) < 2:
        raise click.UsageError(
            "--plot needs several loads, such as --concurrency 1,4"
        )
    if picked["html"] and (picked["step_parts"] or len(loads) > 1):
        raise click.UsageError("--html: not with --step-parts or several loads")
    model = load_model(serving, topology, nodes, _load_changes(picked))
    doubts(model.setup, picked["strict"], quiet=as_json)
    if picked["step_parts"]:
        rows = layer_rows(*_typical(model))
        text = [row.to_json() for row in rows]
        click.echo(json.dumps(text) if as_json else "\n".join(layer_lines(rows)))
        return
    if len(loads) > 1:
        served = []
        for load in loads:
            model.spec.requests.concurrency = load
            with counted_progress(
                not no_progress, f"requests of {load} at a time"
            ) as tell:
                served.append(ServedLoad.of(load, model.run(tell)))
        if picked["plot"] is not None:
            _draw(served, picked["plot"])
        out = [row.to_json() for row in served]
        click.echo(json.dumps(out) if as_json else "\n".join(load_lines(served)))
        return
    with counted_progress(not no_progress, "requests") as tell:
        result = model.run(tell)
    if picked["html"] is not None:
        from clusim.base.files import write_bytes
        from clusim.serving.page import serving_page

        write_bytes(picked["html"], serving_page(result).encode())
    click.echo(json.dumps(result.to_json()) if as_json else serving_report(result))


def _draw(served: list[ServedLoad], path: Path) -> None:
    from clusim.base.display import Plot
    from clusim.serving.report import plot_loads

    Plot(plot_loads({"": served})).save(path)


def asked(
    serving: str,
    topology: str | None,
    nodes: int | None,
    changes: dict[str, Any] | None = None,
    **picked: Any,
) -> ServeRequest:
    """Return the request of the options; `changes` are keys of the file by their path."""
    from clusim.serving.api import serve_request

    return serve_request(
        serving, topology, nodes, {**_load_changes(picked), **(changes or {})}
    )


def _load_changes(picked: dict[str, Any]) -> dict[str, Any]:
    """Return the changes of the options on requests."""
    if picked["requests"]:
        return _only("file", picked["requests"])
    loads = picked["concurrency"]
    return _only("concurrency", loads[0]) if loads else {}


def _only(name: str, value: Any) -> dict[str, Any]:
    """Return the changes after which a load is the only one of the file."""
    modes = dict.fromkeys(("concurrency", "rate", "file"), None)
    return {f"requests.{key}": item for key, item in {**modes, name: value}.items()}


def _typical(model: ServedModel) -> tuple[Any, int, int, int]:
    """Return step times, and a typical prompt, batch and context of the file's requests."""
    from clusim.serving.requests import draw_requests

    spec = model.spec
    asked = draw_requests(spec.requests)
    prompt = round(sum(item.prompt for item in asked) / len(asked))
    output = round(sum(item.output for item in asked) / len(asked))
    sequences = spec.requests.concurrency or 1
    pools = spec.pools
    both = (
        (pools.prefill.parallel, pools.decode.parallel)
        if pools
        else (spec.parallel, spec.parallel)
    )
    prefill, decode = (model.step_times(model.layout(one)) for one in both)
    return (prefill, decode), prompt, sequences, prompt + output // 2
