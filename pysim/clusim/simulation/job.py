"""Execution of one prepared run, as composed by `clusim.simulate`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clusim.base.errors import (
    DeadlockError,
    InputError,
    PolicyFault,
    RangeExceeded,
    ScheduleError,
)
from clusim.base.records import dataclass
from clusim.engine.abi import Engine, Stop
from clusim.engine.image import Image
from clusim.lowering import Grain
from clusim.results.bins import MAX_BINS, BinRecorder
from clusim.results.diagnosis import Verdict
from clusim.results.flows import Flows, flows_of
from clusim.results.provenance import Provenance
from clusim.results.result import Messages, Result, Tasks, Wires
from clusim.results.resultjson import Call, InOrderNic, Unfinished
from clusim.results.trace.held import HeldRecords
from clusim.schedule import Schedule
from clusim.simulation.diagnose import Columns, Evidence, inputs_of, run_wires
from clusim.simulation.payload_check import (
    Checker,
)
from clusim.simulation.reruns import Budget, Repeats
from clusim.simulation.session import (
    Progress,
    Session,
    Sink,
    Watch,
    loop_counts,
    start_engine,
)

if TYPE_CHECKING:
    from clusim.results.trace.writer import TraceWriter
    from clusim.simulation.intervals import Variants


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
            job.provenance,
            job.wires,
            job.tasks,
            len(job.image.endpoints),
            call=job.call,
            flows=flows,
            inputs=job.inputs() if job.inputs is not None else {},
        ),
        max_records=max_records,
    )


def run_job(job: Job, options: RunOptions) -> Result:
    """Run to the end; after any error the trace is closed with its data so far."""
    checker = None if job.verified is None else Checker(job.verified)
    _check_options(options)
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
        if isinstance(error, RangeExceeded | PolicyFault):
            raise error.with_name(
                _owner_name(job, error.what, error.index)
            ) from None
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


def _owner_name(job: Job, what: str, index: int) -> str:
    """Return the name of a wire or switch of an error; empty for other objects."""
    if what == "wire":
        return job.wires.names[index]
    return _node_name(job, index) if what == "switch" else ""


def _node_name(job: Job, node: int) -> str:
    """Return the name of a node, by its first wire."""
    wire = int((job.image.wires["src"] == node).argmax())
    return job.wires.names[wire].partition("->")[0]


def _check_options(options: RunOptions) -> None:
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
    result = []
    for target, row in zip(job.image.targets, engine.orders(), strict=True):
        if row["packets"] or row["repeats"]:
            name = _node_name(job, int(target["node"]))
            result.append(InOrderNic(name, *(int(value) for value in row.tolist())))
    return tuple(result)
