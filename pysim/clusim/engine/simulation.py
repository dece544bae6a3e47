"""The only module that touches C: `Simulation` runs an `Image` on the compiled engine.

The GIL is released while the engine runs. `Simulation` is not safe for use by two threads at once; two
simulations in two threads are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from clusim._engine import ffi, lib
from clusim.base.arrays import Array
from clusim.base.errors import InternalError, ScheduleError
from clusim.engine.abi import (
    FLOW_SAMPLE,
    INSTANCE_STATE,
    NEVER,
    ORDER_COUNTERS,
    RECORD,
    WIRE_COUNTERS,
    WIRE_SAMPLE,
    Beyond,
    SenderCall,
    Stop,
    policy_failed,
    range_exceeded,
)
from clusim.engine.image import DTYPES, Image
from clusim.policies.kinds import WORDS

WINDOWED = ("nothing", "switches", "endpoints", "pairs")

__version__: str = ffi.string(lib.clusim_version()).decode()


def _c_image(image: Image, keep: list[Any]) -> Any:
    """Return a ``clusim_image *`` that borrows the arrays of `image`, kept alive by `keep`."""
    out = ffi.new("clusim_image *")
    members = dict(ffi.typeof("clusim_image").fields)
    out.seed = image.seed
    out.nvc = image.nvc
    keep.append(out)
    for name, array in image.tables().items():
        view = array.reshape(-1).view(np.uint8)
        borrowed = (
            ffi.cast(members[name].type, ffi.from_buffer(view))
            if len(array)
            else ffi.NULL
        )
        setattr(out, name, borrowed)
        setattr(out, f"num_{name}", len(array))
        keep.append(view)
    return out


def _destroyer(model: Any) -> Callable[[Any], None]:
    """Return a function that destroys a sim, then the model that the sim reads."""

    def destroy(sim: Any) -> None:
        lib.clusim_sim_destroy(sim)
        lib.clusim_model_destroy(model)

    return destroy


def _model(image: Image) -> Any:
    """Return the engine's model of an image, a copy; raises like `Simulation`."""
    keep: list[Any] = []
    error, model = ffi.new("clusim_error *"), ffi.new("clusim_model **")
    status = lib.clusim_model_create(_c_image(image, keep), model, error)
    if status == lib.CLUSIM_ERR_NO_MEMORY:
        raise MemoryError("not enough memory for the engine's model")
    if status < 0:
        raise ScheduleError(f"image: {ffi.string(error.message).decode()}")
    return model[0]


def _checked_model(image: Image) -> Any:
    """Return the model of an image after a check of its sender policies."""
    model = _model(image)
    try:
        image.check_senders()
    except ScheduleError:
        lib.clusim_model_destroy(model)
        raise
    return model


def check_image(image: Image) -> None:
    """Raise the errors of `Simulation` for an image that it would refuse."""
    lib.clusim_model_destroy(_model(image))


class Simulation:
    """A simulation on the C engine; see `clusim.engine.abi.Engine`.

    Parameters
    ----------
    image : Image
        Input, which is copied.
    records : bool
        Keep completion records for `records()`. The fingerprint does not depend on it.
    windows : bool or None
        Let switches, NICs and endpoints work in windows of time where the image allows it, or never; None:
        the faster of both. Results are the same.
    threads : int
        Most threads that process windows; they sleep while there is little work. Results are the same.
    least_shared : int or None
        Minimum events of a window for threads to share it; None: the engine's default.

    Raises
    ------
    ScheduleError
        The image contradicts itself; the message names array and row.
    MemoryError
        The image is too big for the memory of this computer.
    """

    def __init__(
        self,
        image: Image,
        records: bool = True,
        windows: bool | None = None,
        threads: int = 1,
        least_shared: int | None = None,
    ) -> None:
        self._sizes = {name: len(getattr(image, name)) for name in DTYPES}
        self._seed = int(image.seed)
        self._controls = image.conns["control"], image.sources["control"]
        self._receivers = image.controls["receiver"]
        self._schedules = np.append(0, image.schedules["policy"])
        self._rows = {
            SenderCall.ENQUEUE: image.wires["policy"],
            SenderCall.NEXT: image.wires["schedule"],
            SenderCall.CHOOSE: image.nodes["policy"],
        }
        self._times = self._flows = 0
        model, sim = _checked_model(image), ffi.new("clusim_sim **")
        if lib.clusim_sim_create(model, int(records), sim) < 0:
            lib.clusim_model_destroy(model)
            raise MemoryError("not enough memory for the engine's state")
        # One owner of both: of two, the collector of cycles may end the model first, which the sim still reads.
        self._sim = ffi.gc(sim[0], _destroyer(model))
        self.windows = WINDOWED[
            lib.clusim_sim_use_windows(
                self._sim, -1 if windows is None else int(windows)
            )
        ]
        """Nodes that work in windows."""
        least = lib.CLUSIM_NONE if least_shared is None else least_shared
        self._senders = image.senders
        self._use_senders()
        self.threads = lib.clusim_sim_use_threads(self._sim, max(1, threads), least)
        """Number of threads: fewer than requested without work to share."""
        self._raise_failure(self.threads)

    def run(self, until_ps: int = NEVER, max_events: int = NEVER) -> Stop:
        """Advance the simulation and return the reason of its stop."""
        status = lib.clusim_sim_run(self._sim, until_ps, max_events)
        self._raise_failure(status)
        return Stop(status)

    def _use_senders(self) -> None:
        """Pass the machine code of the image's sender policies to the engine."""
        if self._senders:
            from clusim.policies.compiled import addresses
        for row, bound in enumerate(self._senders):
            if bound is None:
                continue
            words = ffi.new("int64_t[]", bound.words)
            sender = ffi.new("clusim_sender *")
            sender.functions = addresses(bound.sender.name)
            sender.words, sender.num_words = words, len(words)
            of_flow = ffi.new("int64_t[]", bound.flow_words or [0])
            sender.flow_words, sender.num_flow_words = of_flow, len(of_flow)
            status = lib.clusim_sim_use_sender(self._sim, row, sender)
            self._raise_failure(status)
            if status < 0:
                raise InternalError(
                    f"controls[{row}]: the engine refuses its sender policy"
                )

    def _raise_policy(self, who: tuple[Beyond, int]) -> None:
        """Raise the error of a policy's illegal answer, if that is why the run was refused."""
        fault = ffi.new("clusim_sender_fault *")
        if not lib.clusim_sim_sender_fault(self._sim, fault):
            return
        call, word = SenderCall(fault.call), int(fault.word)
        value, time_ps = int(fault.value), int(fault.time_ps)
        if call in self._rows:
            owner = Beyond.SWITCH if call == SenderCall.CHOOSE else Beyond.WIRE
            row = self._rows[call][fault.flow]
            if call == SenderCall.NEXT:
                row = self._schedules[row]
            bound = self._senders[row - 1]
            if who == (owner, fault.flow) and bound is not None:
                answer = WORDS[word], value
                raise policy_failed(bound.policy, call, answer, who, time_ps)
            return
        conns = self._sizes["conns"]
        source = fault.flow >= conns
        kind = Beyond.SOURCE if source else Beyond.CONNECTION
        if who != (kind, fault.flow - conns * source):
            return
        row = self._controls[source][who[1]]
        if fault.receiver and self._receivers[row]:
            row = self._receivers[row] - 1
        bound = self._senders[row]
        assert bound is not None
        answer = bound.policy.kind.words[word], value
        raise policy_failed(bound.policy, call, answer, who, time_ps)

    def _raise_failure(self, status: int) -> None:
        """Raise the error of a negative status of an advancing engine."""
        if status == lib.CLUSIM_ERR_RANGE:
            limit, index = ffi.new("uint32_t *"), ffi.new("uint32_t *")
            lib.clusim_sim_beyond(self._sim, limit, index)
            self._raise_policy((Beyond(limit[0]), int(index[0])))
            raise range_exceeded(Beyond(limit[0]), int(index[0]))
        if status == lib.CLUSIM_ERR_NO_MEMORY:
            raise MemoryError("the engine ran out of memory")

    @property
    def now_ps(self) -> int:
        """Present simulated time [ps]."""
        return int(lib.clusim_sim_now_ps(self._sim))

    def wires(self) -> Array:
        """Counters of every wire at `now_ps` (`WIRE_COUNTERS`)."""
        out = np.zeros(self._sizes["wires"], WIRE_COUNTERS)
        lib.clusim_sim_read_wires(
            self._sim, ffi.cast("clusim_wire_counters *", ffi.from_buffer(out))
        )
        return out

    def orders(self) -> Array:
        """Counters of receivers in order of every target at `now_ps` (`ORDER_COUNTERS`)."""
        out = np.zeros(self._sizes["targets"], ORDER_COUNTERS)
        lib.clusim_sim_read_orders(
            self._sim, ffi.cast("clusim_order_counters *", ffi.from_buffer(out))
        )
        return out

    def sample(self, first_ps: int, width_ps: int, count: int, flows: Array) -> None:
        """Schedule samples at `count` times [ps] during the next runs; discards earlier samples."""
        rows = np.ascontiguousarray(flows, np.uint32)
        times = ffi.new("clusim_sample_times *")
        times.first_ps = first_ps
        times.width_ps = width_ps
        times.count = count
        times.num_flows = len(rows)
        borrowed = (
            ffi.cast("uint32_t *", ffi.from_buffer(rows)) if len(rows) else ffi.NULL
        )
        status = lib.clusim_sim_sample(self._sim, times, borrowed)
        self._raise_failure(status)
        if status < 0:
            raise InternalError(
                "samples: the engine refuses a flow without rate control"
            )
        self._times = count
        self._flows = len(rows)

    def samples(self) -> tuple[Array, Array, Array]:
        """Return the samples of times passed, one row per time; see `clusim.engine.abi.Engine.samples`."""
        wires = np.empty((self._times, self._sizes["wires"]), WIRE_SAMPLE)
        memory = np.empty((self._times, self._sizes["endpoints"]), np.uint64)
        flows = np.empty((self._times, self._flows), FLOW_SAMPLE)
        passed = lib.clusim_sim_read_samples(
            self._sim,
            ffi.cast("clusim_wire_sample *", ffi.from_buffer(wires)),
            ffi.cast("uint64_t *", ffi.from_buffer(memory)),
            ffi.cast("clusim_flow_sample *", ffi.from_buffer(flows)),
        )
        return wires[:passed], memory[:passed], flows[:passed]

    def flows(self) -> Array:
        """Present state of the flows of the last `sample` (`FLOW_SAMPLE`)."""
        out = np.zeros(self._flows, FLOW_SAMPLE)
        lib.clusim_sim_read_flows(
            self._sim, ffi.cast("clusim_flow_sample *", ffi.from_buffer(out))
        )
        return out

    def task_times(self) -> tuple[Array, Array]:
        """Start and end of every task [ps]; -1 where not yet."""
        start = np.zeros(self._sizes["tasks"], np.int64)
        end = np.zeros_like(start)
        lib.clusim_sim_read_tasks(
            self._sim,
            ffi.cast("int64_t *", ffi.from_buffer(start)),
            ffi.cast("int64_t *", ffi.from_buffer(end)),
        )
        return start, end

    def message_times(self) -> Array:
        """Completion of every message [ps]; -1 where not yet."""
        out = np.zeros(self._sizes["messages"], np.int64)
        lib.clusim_sim_read_messages(
            self._sim, ffi.cast("int64_t *", ffi.from_buffer(out))
        )
        return out

    def records(self) -> Array:
        """Return and forget the completion records since the last call (`RECORD`)."""
        out = np.zeros(lib.clusim_sim_num_records(self._sim), RECORD)
        pointer = ffi.cast("clusim_record *", ffi.from_buffer(out))
        taken = lib.clusim_sim_take_records(self._sim, pointer, len(out))
        return out[:taken]

    def instance_states(self) -> Array:
        """Positions of all instances (`INSTANCE_STATE`)."""
        out = np.zeros(self._sizes["instances"], INSTANCE_STATE)
        lib.clusim_sim_read_instances(
            self._sim, ffi.cast("clusim_instance_state *", ffi.from_buffer(out))
        )
        return out

    def mem_bytes_256(self) -> Array:
        """Memory traffic of communication per endpoint, in 1/256 byte."""
        out = np.zeros(self._sizes["endpoints"], np.uint64)
        lib.clusim_sim_read_mem_bytes_256(
            self._sim, ffi.cast("uint64_t *", ffi.from_buffer(out))
        )
        return out

    def fingerprint(self) -> int:
        """Return the run's fingerprint; meaningful once `run` returned DONE."""
        return int(lib.clusim_sim_fingerprint(self._sim))

    def check_conservation(self) -> None:
        """Drain traffic in flight after DONE; raise `InternalError` unless all balances."""
        error = ffi.new("clusim_error *")
        status = lib.clusim_sim_check(self._sim, error)
        self._raise_failure(status)
        if status < 0:
            raise InternalError(
                f"conservation: {ffi.string(error.message).decode()}; seed {self._seed},"
                f" fingerprint {self.fingerprint():016x}; please report"
            )
