"""Preparation of a job from its request: image, provenance, inputs of the diagnosis."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import DeadlockError, InputError
from clusim.base.version import version
from clusim.engine.abi import WIRE_COUNTERS, NodeKind
from clusim.engine.image import DTYPES, Image
from clusim.lowering import Grain, Lowered, arriving_ps
from clusim.lowering.controls import policy_notes
from clusim.lowering.faults import on_redirected
from clusim.results.provenance import Provenance
from clusim.results.result import Tasks, Wires
from clusim.results.resultjson import Call
from clusim.schedule import Schedule, to_arrays, to_text
from clusim.simulation.expected import expected_of
from clusim.simulation.intervals import Variants
from clusim.simulation.job import Job, RunOptions
from clusim.simulation.payload_check import (
    Waits,
    deadlock_error,
    require_room,
    undelivered_error,
)
from clusim.simulation.plan import Plan, lower_on, plan
from clusim.simulation.request import AnyRequest, ScheduleRequest, TrafficRequest
from clusim.simulation.session import Session
from clusim.topology import FabricArrays
from clusim.topology.arrays import arrays_of
from clusim.topology.pcie_paths import redirect_peers

if TYPE_CHECKING:
    from clusim.results.replicated import BlockRows

MOST_TEXT_TASKS = 1 << 15
"""A schedule of more tasks is stored in its trace as columns only, not as text."""


def job_of(request: AnyRequest | Plan, options: RunOptions = RunOptions()) -> Job:
    """Return the run of a request or plan, lowered at the requested granularity."""
    if isinstance(request, TrafficRequest):
        return _traffic_job(request, options)
    return _planned_job(
        request if isinstance(request, Plan) else plan(request), options
    )


def _planned_job(planned: Plan, options: RunOptions) -> Job:
    """Lower the schedule of a plan onto its topology."""
    asked = planned.options
    if not 0 <= asked.seed < 2**64:
        raise InputError(f"seed {asked.seed}: must be at least 0 and below 2^64")
    options.watch.begins("the fabric is built")
    broken, fabric = planned.setup.broken, planned.topology
    options.watch.begins("programs are written")
    schedule = planned.schedule
    if planned.verifies:
        require_room(schedule)
    options.watch.begins("programs are put on the fabric")
    lowered = lowered_run(planned)
    image = lowered.image
    traced = options.trace_out is not None
    names = [
        task.name or f"{task.kind} rank {task.rank} {task.stream}"
        for task in schedule.tasks
    ]
    nothing = np.full(len(names), -1, np.int64)
    blocks = messages = None
    if isinstance(asked, ScheduleRequest):
        blocks = asked.blocks
        messages = None if asked.messages is None else asked.messages.plan.messages

    def stuck(session: Session) -> DeadlockError:
        engine = session.engine
        faults = on_redirected(planned.setup.fabric, broken.faults)
        waits = Waits(schedule, lowered, engine.instance_states())
        return deadlock_error(waits, fabric, engine.wires(), faults, engine.now_ps)

    return Job(
        image,
        lowered.grain,
        provenance_of(
            asked,
            lowered.grain,
            options,
            seed=asked.seed,
            schedule_text=to_text(schedule)
            if traced and len(names) <= MOST_TEXT_TASKS
            else "",
            faults=broken.lines,
            notes=(
                *policy_notes(planned.setup.policy, image),
                *planned.program.notes,
            ),
            around=planned.program.around,
        ),
        _wires(arrays_of(fabric)),
        Tasks(names, nothing, nothing, blocks),
        stuck,
        call=_the_call(schedule),
        messages=messages,
        inputs=lambda: _inputs(arrays_of(fabric), image, schedule, blocks),
        instances=len(schedule.instances) if lowered.proxy_of else None,
        verified=schedule if planned.verifies else None,
        expected=partial(_expected_error, planned),
        least_ps=lowered.least_ps,
        variants=Variants(planned),
    )


def lowered_run(planned: Plan) -> Lowered:
    """Return the image of a plan, with its messages, and the bursts of the run it is a part of."""
    asked, fabric = planned.options, planned.topology
    if not isinstance(asked, ScheduleRequest) or not (asked.messages or asked.part):
        return lower_on(planned.setup, planned.schedule, asked)
    # Few runs have messages or are parts of others.
    from clusim.simulation.mixed_run import add_messages, as_part

    if asked.part is not None:
        asked = replace(asked, granularity="packet")
    lowered = lower_on(planned.setup, planned.schedule, asked)
    if asked.messages is not None:
        lowered = add_messages(fabric, lowered, asked.messages, asked.granularity)
    return lowered if asked.part is None else as_part(lowered, asked.part)


def _traffic_job(request: TrafficRequest, options: RunOptions) -> Job:
    """Draw the messages of synthetic traffic and lower them onto its fabric."""
    from clusim.simulation.traffic_image import grain_of, to_image

    options.watch.begins("the fabric is built")
    fabric, traffic = redirect_peers(request.setup.fabric), request.traffic
    options.watch.begins("messages are drawn")
    arrays = arrays_of(fabric)
    arrivals = traffic.plan(arrays)
    grain = grain_of(arrays, traffic, arrivals.messages, request.granularity)
    nothing = np.empty(0, np.int64)
    image = to_image(fabric, traffic, arrivals, grain.burst)
    return Job(
        image,
        grain,
        provenance_of(
            request,
            grain,
            options,
            seed=traffic.seed,
            schedule_text=traffic.describe(arrays),
            notes=policy_notes(request.setup.policy, image),
        ),
        _wires(arrays),
        Tasks([], nothing, nothing),
        lambda session: undelivered_error(fabric, session.engine),
        messages=arrivals.messages,
        inputs=lambda: _inputs(arrays, image),
        least_ps=_least_ps(image, arrays.wires),
    )


def _least_ps(image: Image, nominal: Array) -> int:
    """Return a lower bound of every run of messages [ps]."""
    rows = image.messages
    if not len(rows):
        return 0
    arriving = arriving_ps(image, nominal, rows["dst"], rows["bytes"])
    return max(arriving, int(rows["start_ps"].max()))


def provenance_of(
    request: AnyRequest, grain: Grain, options: RunOptions, **rest: Any
) -> Provenance:
    """Return the provenance of a run; `rest` are further fields."""
    fabric = request.setup.fabric
    return Provenance(
        fabric=fabric.name,
        fabric_text=fabric.source_text,
        read_files=fabric.source_files,
        engine=request.engine,
        granularity=grain.requested,
        granularity_note=grain.describe(),
        burst_packets=grain.burst,
        error_bound=grain.error_bound,
        version=version(),
        command=options.command,
        **rest,
    )


def _inputs(
    arrays: FabricArrays,
    image: Image,
    schedule: Schedule | None = None,
    blocks: BlockRows | None = None,
) -> dict[str, Array | list[str]]:
    """Return the inputs of a run for its trace, sufficient for analysis and re-simulation."""
    nodes = arrays.fabric.nodes
    result: dict[str, Array | list[str]] = {
        "/fabric/node": [node.name for node in nodes],
        "/fabric/node_kind": [node.kind for node in nodes],
        "/fabric/node_tier": [node.tier or node.kind for node in nodes],
        "/fabric/node_zone": np.array([node.zone for node in nodes], np.int64),
        "/fabric/rank_endpoint": np.asarray(arrays.rank_endpoint, np.int64),
        "/image/scalars": np.array([image.nvc, image.seed], np.uint64),
    }
    result |= {f"/image/{name}": getattr(image, name) for name in DTYPES}
    if blocks is not None:
        assert schedule is not None
        schedule = replace(schedule, calls=(*schedule.calls, *blocks.calls))
        result |= {
            f"/blocks/{name}": column for name, column in blocks.columns().items()
        }
    columns = to_arrays(schedule) if schedule is not None else {}
    return result | {f"/schedule/{name}": values for name, values in columns.items()}


def _expected_error(planned: Plan) -> str:
    """Return the expected error of the time of a planned run; empty for a given schedule."""
    if isinstance(planned.options, ScheduleRequest):
        return ""
    call = _the_call(planned.schedule)
    return expected_of(planned, call.algorithm if call is not None else "").text()


def _the_call(schedule: Schedule) -> Call | None:
    """Return the collective call if the schedule has exactly one, for its bandwidth."""
    if len(schedule.calls) != 1 or any(
        task.kind == "kernel" for task in schedule.tasks
    ):
        return None
    call = schedule.calls[0]
    return Call(
        operation=call.operation,
        algorithm=call.algorithm,
        protocol=call.protocol,
        dtype=call.dtype,
        size_bytes=call.bytes,
        ranks=len(call.ranks),
        channels=call.channels,
        root=max(0, call.root),
    )


def _wire_texts(arrays: FabricArrays) -> tuple[list[str], list[str]]:
    """Return names and classes of all wires, which the runs of one fabric share."""
    fabric_cache = arrays.fabric.cache
    if "wire texts" not in fabric_cache:
        tiers = [node.tier or node.kind for node in arrays.fabric.nodes]
        columns = arrays.wires["src"].tolist(), arrays.wires["dst"].tolist()
        ends = zip(arrays.wire_class, *columns, strict=True)
        classes = [f"{name} {tiers[src]}->{tiers[dst]}" for name, src, dst in ends]
        fabric_cache["wire texts"] = list(arrays.wire_names), classes
    result: tuple[list[str], list[str]] = fabric_cache["wire texts"]
    return result


def _wires(arrays: FabricArrays) -> Wires:
    names, classes = _wire_texts(arrays)
    return Wires(
        names=names,
        classes=classes,
        rate_Bps=arrays.wires["rate_num"] / arrays.wires["rate_den"] * 1e12,
        from_endpoint=arrays.nodes["kind"][arrays.wires["src"]] == NodeKind.ENDPOINT,
        counters=np.zeros(len(arrays.wires), WIRE_COUNTERS),
    )
