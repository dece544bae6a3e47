"""Simulation of synthetic traffic and of given flows: functions for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from clusim.base.errors import InputError
from clusim.base.files import guard_inputs
from clusim.lowering.spreads import Routing
from clusim.results.bins import MAX_BINS
from clusim.results.result import Result
from clusim.simulation.api import (
    EngineOptions,
    Machine,
    as_bytes,
    as_policy,
    as_ps,
    path_options,
    result_of,
)
from clusim.simulation.flows import Flow, read_flows
from clusim.simulation.job import TRACE_LIMIT_BYTES, RunOptions
from clusim.simulation.request import TrafficRequest
from clusim.simulation.session import EngineName, Progress, Watch, shown_in_notebook
from clusim.simulation.setup import Setup
from clusim.simulation.traffic import TIMED_PATTERNS, Pattern, Traffic
from clusim.topology import Fabric


class TrafficOptions(EngineOptions, total=False):
    """Further options of `traffic`.

    Attributes
    ----------
    packet : int or str
        Largest payload of a packet [bytes]; 4 KiB by default.
    load : float
        Timed patterns: offered load as a fraction of the fabric's capacity; 0.6 by default.
    duration : int or str
        Timed patterns: period in which messages arrive [ps]; 1 ms by default.
    routing : str
        ``ecmp``, ``spray``, ``adaptive``, ``credit``, ``flowlet``, ``ugal`` or ``auto``.
    gap : int or str
        ``flowlet``: shortest pause of a flow before a new path [ps].
    reorder : int or str
        Receivers accept packets in order, and keep early packets up to this size [bytes]; ``any`` accepts any order. By
        default as the NICs do.
    policy : str or type
        Sender policy of all NICs: ``sender=NAME``, ``sender=file.py:Class``, ``sender=none`` (no rate control), or a
        class defined with `clusim.policy`; the topology's by default.
    span : int
        ``stride``: distance to the receiver; ``group-alltoall``: endpoints of a group.
    flows : sequence of Flow, or str or Path
        Flows in place of a pattern, or their CSV table (`clusim.simulation.flows.read_flows`).
    nodes, granularity, seed, engine, threads, trace_out, trace_limit_bytes, bins, progress, command, watch
        As for `collective`; every packet is simulated by default.
    """

    packet: int | str
    load: float | None
    duration: int | str
    routing: Routing
    gap: int | str | None
    reorder: int | str | None
    policy: str | type[Any]
    span: int | None
    flows: Sequence[Flow] | str | Path | None


def simulate_traffic(
    fabric: Fabric,
    traffic: Traffic,
    *,
    granularity: str | int = "packet",
    engine: EngineName = "c",
    threads: int | None = 1,
    trace_out: str | Path | None = None,
    trace_limit_bytes: int = TRACE_LIMIT_BYTES,
    bins: int = MAX_BINS,
    progress: Progress | None = None,
    command: str = "",
    confirm: bool | None = None,
    watch: Watch | None = None,
) -> Result:
    """Run synthetic traffic on `fabric`; `Result.messages` contains all arrival times.

    Parameters are as for `simulate`; at the wall-clock limit of `watch` the result is partial.
    """
    request = TrafficRequest(Setup(fabric), traffic, granularity, engine)
    with shown_in_notebook(progress) as shown_progress:
        how = (bins, trace_out, False, shown_progress, command, trace_limit_bytes)
        return result_of(
            request,
            RunOptions(
                *how, threads=threads, confirm=confirm, watch=watch or Watch()
            ),
        )


def traffic(
    fabric: Machine,
    pattern: Pattern = "permutation",
    message: int | str | None = None,
    **options: Unpack[TrafficOptions],
) -> Result:
    """Run synthetic traffic, as ``clusim traffic`` does.

    `Result.messages` contains all arrival times.

    Parameters
    ----------
    fabric : Fabric or str or Path
        As for `collective`.
    pattern : str
        ``uniform`` and ``hotspot`` are timed patterns; all others start at once.
    message : int or str or None
        Size of a message [bytes]; None is 16 MiB, or a packet for timed patterns.
    **options
        See `TrafficOptions`.

    Raises
    ------
    InputError
        An invalid name, size or option.
    DeadlockError
        Messages cannot be delivered.
    """
    values: dict[str, Any] = dict(options)
    nodes, packet = values.pop("nodes", None), as_bytes(values.pop("packet", 4096))
    spread = _spread_options(values)
    setup = Setup(fabric, nodes, policy=as_policy(values.pop("policy", "")))
    timed = pattern.strip().lower() in TIMED_PATTERNS
    load, flows = values.pop("load", None), values.pop("flows", None)
    if flows is not None:
        pattern_options = {
            "pattern": pattern != "permutation",
            "message": message,
            "load": load,
        }
        pattern_options |= {
            name: values.pop(name, None) for name in ("span", "duration")
        }
        wrong = [name for name, value in pattern_options.items() if value]
        if wrong:
            raise InputError(f"flows: replace {wrong[0]}; omit one of both")
        return _flow_traffic(setup.fabric, flows, (packet, spread), values)
    result = Traffic(
        pattern=pattern,
        message_bytes=(packet if timed else 16 << 20)
        if message is None
        else as_bytes(message),
        packet_bytes=packet,
        load=0.6 if load is None and timed else load,
        duration_ps=as_ps(values.pop("duration", 10**9)),
        span=values.pop("span", None),
        **spread,
    )
    with guard_inputs():
        return simulate_traffic(setup.fabric, result, **values)


def _spread_options(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the seed and the options on paths and order; return them as attributes of `Traffic`."""
    return {"seed": given.pop("seed", 0), **path_options(given)}


def _flow_traffic(
    fabric: Fabric,
    flows: Sequence[Flow] | str | Path,
    packets: tuple[int, dict[str, Any]],
    given: dict[str, Any],
) -> Result:
    """Run given flows, or a table of them, in packets of a size with a spread."""
    if isinstance(flows, (str, Path)):
        flows = read_flows(flows, fabric)
    result = Traffic.of_flows(flows, packets[0], **packets[1])
    with guard_inputs():
        return simulate_traffic(fabric, result, **given)
