"""Preparation and execution of one run, as composed by `clusim.simulate`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import (
    DeadlockError,
    InputError,
    RangeExceeded,
    ScheduleError,
)
from clusim.base.records import dataclass
from clusim.base.version import version
from clusim.engine.abi import WIRE_COUNTERS, Engine, NodeKind, Stop
from clusim.engine.image import DTYPES, Image
from clusim.lowering import Grain, arriving_ps
from clusim.lowering.controls import policy_notes
from clusim.lowering.faults import on_redirected
from clusim.results.bins import MAX_BINS, BinRecorder
from clusim.results.diagnosis import Verdict
from clusim.results.flows import Flows, flows_of
from clusim.results.replicated import BlockRows
from clusim.results.result import Messages, Provenance, Result, Tasks, Wires
from clusim.results.resultjson import Call, InOrderNic, Unfinished
from clusim.results.trace.held import HeldRecords
from clusim.schedule import Schedule, to_arrays, to_text
from clusim.simulation.diagnose import (
    Budget,
    Columns,
    Evidence,
    Repeats,
    inputs_of,
    run_wires,
)
from clusim.simulation.expected import expected_of
from clusim.simulation.intervals import Variants
from clusim.simulation.payload_check import (
    Checker,
    Waits,
    deadlock_error,
    require_room,
    undelivered_error,
)
from clusim.simulation.plan import Plan, lower_on, plan
from clusim.simulation.request import AnyRequest, ScheduleRequest, TrafficRequest
from clusim.simulation.session import (
    Progress,
    Session,
    Sink,
    Watch,
    loop_counts,
    start_engine,
)
from clusim.simulation.traffic import grain_of, to_image
from clusim.topology import FabricArrays
from clusim.topology.arrays import arrays_of
from clusim.topology.pcie_paths import redirect_peers

if TYPE_CHECKING:
    from clusim.results.trace.writer import TraceWriter


_PARTS = ("the engine looks at its input", "policies are compiled")
"""Last parts of the preparation, without and with policies."""

TRACE_LIMIT_BYTES = 1 << 30
"""Default size limit of a trace [bytes]."""

LEAST_TRACE_BYTES = 64 << 10
"""Lowest size limit of a trace [bytes]."""

AUTO_RECORDS = 1 << 20
"""Up to this number of slices, a trace contains them by default."""

VERDICT_RECORDS = 1 << 22
"""Up to this number of slices, a run keeps them for its verdict: 240 MB."""

MOST_TEXT_TASKS = 1 << 15
"""A schedule of more tasks is stored in its trace as columns only, not as text."""

RECORD_BYTES = 29
"""Size of one completion record in a trace, before compression [bytes]."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Observers and trace of a run, which change no result; see `simulate`.

    Without `histories` there is one bin, for the complete run, at which the engine need not stop. `threads` is the
    engine's number of threads; None: one per idle core, at most 4. `confirm`: whether a verdict re-simulates the run
    without its bottleneck; None: if that is cheap. `judge` replaces the critical path's verdict. `keep` decides after a
    completed run whether its trace is kept; None: it is. `watch` is the wall-clock limit, `budget` the limit of
    re-simulations, which several runs may share; None: one for this run.
    """

    bins: int = MAX_BINS
    trace_out: str | Path | None = None
    trace_primitives: bool | None = None
    progress: Progress | None = None
    command: str = ""
    trace_limit_bytes: int = TRACE_LIMIT_BYTES
    histories: bool = True
    threads: int | None = 1
    confirm: bool | None = None
    judge: Callable[[Result], Verdict] | None = None
    keep: Callable[[Result], bool] | None = None
    watch: Watch = field(default_factory=Watch)
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A run except for the engine, with all inputs that the result and the trace repeat.

    `stuck` creates the error for a deadlocked session, `inputs` returns the trace columns of the inputs, `expected` the
    expected error. Of the image's instances and tasks only
    the schedule's are reported; the rest are proxies. `verified` is the schedule with checked data. `least_ps` is a
    lower bound on the time of the run. `variants` is the run with other figures.
    """

    image: Image
    grain: Grain
    provenance: Provenance
    wires: Wires
    tasks: Tasks
    stuck: Callable[[Session], DeadlockError]
    call: Call | None = None
    inputs: Columns | None = None
    messages: Messages | None = None
    instances: int | None = None
    verified: Schedule | None = None
    expected: Callable[[], str] = str
    least_ps: int = 0
    variants: Variants | None = None


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
    lowered = lower_on(planned.setup, schedule, asked)
    image = lowered.image
    traced = options.trace_out is not None
    names = [
        task.name or f"{task.kind} rank {task.rank} {task.stream}"
        for task in schedule.tasks
    ]
    nothing = np.full(len(names), -1, np.int64)
    blocks = asked.blocks if isinstance(asked, ScheduleRequest) else None

    def stuck(session: Session) -> DeadlockError:
        engine = session.engine
        faults = on_redirected(planned.setup.fabric, broken.faults)
        waits = Waits(schedule, lowered, engine.instance_states())
        return deadlock_error(waits, fabric, engine.wires(), faults, engine.now_ps)

    return Job(
        image,
        lowered.grain,
        provenance_of(
            *(asked, lowered.grain, options),
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
        inputs=lambda: _inputs(arrays_of(fabric), image, schedule, blocks),
        instances=len(schedule.instances) if lowered.proxy_of else None,
        verified=schedule if planned.verifies else None,
        expected=partial(_expected_error, planned),
        least_ps=lowered.least_ps,
        variants=Variants(planned),
    )


def _traffic_job(request: TrafficRequest, options: RunOptions) -> Job:
    """Draw the messages of synthetic traffic and lower them onto its fabric."""
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
            *(request, grain, options),
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


def slice_count(image: Image) -> int:
    """Return an upper bound on the slices of an image's programs."""
    rows = image.instances
    if not len(rows):
        return 0
    sums = np.append(0, np.cumsum(image.prims["repeat"].astype(np.int64)))
    templates = image.templates[rows["template"]]
    prims = sums[templates["prim_hi"]] - sums[templates["prim_lo"]]
    return int((loop_counts(image) * prims * rows["slices"]).sum())


def _most_records(job: Job, options: RunOptions) -> int:
    """Return the limit of completion records in the trace."""
    if options.trace_out is None or options.trace_primitives is False:
        return 0
    room = options.trace_limit_bytes // 2 // RECORD_BYTES
    if options.trace_primitives:
        return room
    return room if slice_count(job.image) <= min(room, AUTO_RECORDS) else 0


def _open_trace(
    job: Job, options: RunOptions, max_records: int, flows: Flows
) -> TraceWriter | None:
    if options.trace_out is None:
        return None
    from clusim.results.trace.writer import Begun, TraceWriter

    return TraceWriter(
        Path(options.trace_out),
        Begun(
            *(job.provenance, job.wires, job.tasks, len(job.image.endpoints)),
            call=job.call,
            flows=flows,
            inputs=job.inputs() if job.inputs is not None else {},
        ),
        max_records=max_records,
    )


def run_job(job: Job, options: RunOptions) -> Result:
    """Run to the end; after any error the trace is closed with its data so far."""
    checker = None if job.verified is None else Checker(job.verified)
    if options.bins < 2:
        raise InputError(f"bins {options.bins}: must be at least 2")
    if options.threads is not None and options.threads < 1:
        raise InputError(f"threads {options.threads}: must be at least 1")
    if options.trace_primitives and options.trace_out is None:
        raise InputError("trace primitives: need a trace; add --trace-out FILE")
    if options.trace_limit_bytes < LEAST_TRACE_BYTES:
        raise InputError(
            f"trace limit {options.trace_limit_bytes} B: must be at least {LEAST_TRACE_BYTES >> 10} KiB"
        )
    max_records = _most_records(job, options)
    store = _slice_store(job, options)
    keep = checker is not None or max_records > 0 or store is not None
    recorder = _recorder(job, options)
    trace = _open_trace(job, options, max_records, recorder.flows)
    sinks: list[Sink] = [
        sink for sink in (checker, trace, store) if sink is not None
    ]
    session: Session | None = None
    try:
        options.watch.begins(_PARTS[bool(job.image.senders)])
        engine = start_engine(
            job.image, job.provenance.engine, keep, options.threads
        )
        session = Session(
            job.image, engine, recorder, job.instances, job.grain.packet_hops
        )
        stop = session.run(sinks, options.progress, options.watch)
        if stop is Stop.DEADLOCK:
            raise job.stuck(session)
        evidence = _evidence(job, options, store)
        derive = evidence.sensitivity if options.judge is None else None
        judge = options.judge or evidence
        prove = evidence.prove if options.judge is None else None
        result = replace(
            _result(session, job), judge=judge, prove=prove, derive=derive
        )
        if stop is not Stop.DONE:
            result = _partial_result(session, job, result, options.watch.words)
        elif checker is not None:
            verified, note = checker.outcome()
            result = replace(result, verified=verified, verify_note=note)
        is_kept = options.keep is None or not result.complete or options.keep(result)
    except BaseException as error:
        if trace is not None and session is None:
            trace.discard()
        elif trace is not None and session is not None:
            trace.abandon(session.engine.now_ps, session.engine, recorder)
        if isinstance(error, ScheduleError) and session is None:
            raise ScheduleError(_with_names(str(error), job)) from None
        if isinstance(error, RangeExceeded) and error.what == "wire":
            raise error.with_name(job.wires.names[error.index]) from None
        raise
    if trace is None:
        return result
    if not is_kept:
        trace.discard()
    elif result.complete:
        trace.finish(result)
    else:
        trace.abandon(session.engine.now_ps, session.engine, recorder)
    return result


def _recorder(job: Job, options: RunOptions) -> BinRecorder:
    """Return the recorder of a run's histories."""
    recorder = BinRecorder(
        len(job.image.wires),
        len(job.image.endpoints),
        options.bins if options.histories else 1,
        limit_bytes=options.trace_limit_bytes // 2,
        # A run with a time limit keeps narrow bins of its first part.
        least_ps=job.least_ps if options.watch.limit_ps is None else 0,
    )
    if options.histories:
        recorder.follow(
            flows_of(job.image.tables(), job.image.senders, job.wires.names)
        )
    return recorder


def _slice_store(job: Job, options: RunOptions) -> HeldRecords | None:
    """Return the store of completed slices for a verdict; None if not needed or too large."""
    is_small = slice_count(job.image) <= VERDICT_RECORDS
    is_required = options.histories and options.judge is None
    return (
        HeldRecords() if is_required and is_small and job.messages is None else None
    )


def _evidence(job: Job, options: RunOptions, held: HeldRecords | None) -> Evidence:
    """Return the evidence for the verdict on a run."""
    why: HeldRecords | str = (
        held or f"more than {VERDICT_RECORDS:,} completed slices"
    )
    if held is None and job.messages is not None:
        why = "no critical path for synthetic traffic"
    elif held is None and not options.histories:
        why = "no histories were kept"
    make_inputs = partial(inputs_of, job.image, job.inputs)
    how = Repeats(
        options.confirm, options.progress, options.watch, options.budget or Budget()
    )
    evidence = Evidence(make_inputs, why, job.expected, how)
    evidence.variants = job.variants
    return evidence


def _partial_result(session: Session, job: Job, result: Result, why: str) -> Result:
    """Return the partial result of a run."""
    least_ps = max(job.least_ps, result.time_ps)
    unfinished = Unfinished(why, session.part_done(), least_ps)
    origin = replace(result.provenance, error_bound=None)
    return replace(result, complete=False, unfinished=unfinished, provenance=origin)


def _with_names(refusal: str, job: Job) -> str:
    """Return the reason for an image's rejection, with the wire's name for its row or its fault's row."""

    def name(row: re.Match[str]) -> str:
        table, index = row[1], int(row[2])
        if table == "faults":
            return f"fault of wire {job.wires.names[int(job.image.faults['index'][index])]}"
        return (
            f"wire {job.wires.names[index]}"
            if index < len(job.wires.names)
            else row[0]
        )

    return re.sub(r"image: (wires|faults)\[(\d+)\]", name, refusal)


def _result(session: Session, job: Job) -> Result:
    engine = session.engine
    start_ps, end_ps = (
        times[: len(job.tasks.names)] for times in engine.task_times()
    )
    tasks = replace(job.tasks, start_ps=start_ps, end_ps=end_ps)
    messages = job.messages
    if messages is not None:
        messages = replace(messages, end_ps=engine.message_times())
    return Result(
        time_ps=engine.now_ps,
        wall_s=session.wall_s,
        fingerprint=engine.fingerprint(),
        provenance=job.provenance,
        wires=run_wires(job.wires, job.image.faults, engine),
        tasks=tasks,
        bins=session.recorder.bins(),
        call=job.call,
        messages=messages,
        in_order=_in_order(job, engine),
    )


def _in_order(job: Job, engine: Engine) -> tuple[InOrderNic, ...]:
    """Return the price of order at each NIC that had traffic; nothing without receivers in order."""
    if not job.image.spreads["ordered"].any():
        return ()
    result, src = [], job.image.wires["src"]
    for target, row in zip(job.image.targets, engine.orders(), strict=True):
        if row["packets"] or row["repeats"]:
            name = job.wires.names[int((src == target["node"]).argmax())].partition(
                "->"
            )[0]
            result.append(InOrderNic(name, *(int(value) for value in row.tolist())))
    return tuple(result)
