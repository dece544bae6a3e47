"""Server of the programs on a simulated system: requests of `csrc/nccl_shim`, one line each.

A request begins with its name. Times are the requesting thread's. A reply has a result code, the thread's new
time [ps] (0: unchanged), and further words; codes are CUDA's, for requests of NCCL's functions NCCL's.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from clusim.base.errors import ClusimError
from clusim.shim.calls import MESSAGES, NcclCall, copy_ps
from clusim.shim.communicators import CommMember, ProgramComm
from clusim.shim.queues import CudaStream, Operations, Queues, is_past
from clusim.shim.verifiable import known_kernel, prepare
from clusim.shim.world import Joining, ProgramProcess, World

INVALID_VALUE, INVALID_FUNCTION, NOT_READY, NOT_SUPPORTED = 1, 98, 600, 801
INVALID_USAGE = 5
_NCCL = ("join", "group", "quit", "window")
POLL_S, MOST_TICKS = 0.001, 10
"""Interval in which the server looks for requests while a thread runs [s], and the most processor time of the threads
without one [ticks of 10 ms]: on a loaded machine a thread may wait long for a processor."""

_CALL_WORDS = 12
"""Words of a call in ``group``: operation, communicator, rank, device, stream, two buffers, count, type, reduction,
root, factor."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A reply that is sent when it is `ready`: when operations have ended, or ranks have joined."""

    ready: Callable[[], bool]
    reply: Callable[[], str]
    operations: Operations = frozenset()


@dataclass(eq=False)
class ProgramThread:
    """Connection of a thread."""

    socket: socket.socket
    process: int = 0
    unread: bytes = b""
    waiting: Waiting | None = None


@dataclass
class Server:
    """Server of one system; `ticks` is the processor time of the program at its last request, None after one."""

    world: World
    links: list[ProgramThread] = field(default_factory=list)
    failure: str = ""
    ticks: int | None = None

    @property
    def queues(self) -> Queues:
        """Return the streams of the system."""
        return self.world.queues

    # ---- requests of streams and memory
    def _stream(self, link: ProgramThread, words: Sequence[str]) -> CudaStream:
        device, number = map(int, words)
        return self.queues.stream(link.process, device, number)

    def _idle(self, streams: Sequence[CudaStream], now_ps: int) -> Waiting:
        """Wait for the present work of streams."""
        return self._end_of(
            Operations().union(*(stream.ends for stream in streams)), now_ps
        )

    def _end_of(self, operations: Operations, now_ps: int) -> Waiting:
        """Wait for the end of operations, which the host notices."""

        def reply() -> str:
            end_ps = max((operation.end_ps for operation in operations), default=0)
            return f"0 {max(now_ps, self.world.noticed_ps(end_ps)) if end_ps else now_ps}"

        return Waiting(
            lambda: is_past(operations),
            reply,
            operations,
        )

    def _query(self, waiting: Waiting) -> str | Waiting:
        """Wait for operations that end without further calls."""
        if self.queues.can_end([waiting.operations]):
            return waiting
        return f"{NOT_READY} 0 device not ready"

    def _push(
        self,
        stream: CudaStream,
        now_ps: int,
        duration_ps: int,
        action: Callable[[], object],
    ) -> None:
        def make(stream: CudaStream, issued_ps: int, graph: bool) -> None:
            del graph
            work = self.queues.create(
                issued_ps + self.world.first_start_ps, duration_ps
            )
            work.action = action
            self.queues.add(work, stream.ends)
            stream.advance(work, work)

        self.queues.push(stream, now_ps, make)

    def do_arena(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Memory of a device: address, size, file descriptor, device."""
        base, size, descriptor, device = map(int, words)
        self.world.memory.add(link.process, (base, size), descriptor, device)
        return "0 0"

    def do_dead(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Freed memory: address, size."""
        self.world.memory.forget(
            self.world.memory.span(link.process, *map(int, words))
        )
        return "0 0"

    def do_copy(self, link: ProgramThread, words: Sequence[str]) -> str | Waiting:
        """Copy: time, stream, target, source, size, and whether to wait."""
        now_ps, stream = int(words[0]), self._stream(link, words[1:3])
        to, source, size, wait = map(int, words[3:])
        memory = self.world.memory
        pair = (
            memory.span(link.process, source, size),
            memory.span(link.process, to, size),
        )
        duration_ps = copy_ps(self.world.chip, 2 * size)
        self._push(stream, now_ps, duration_ps, partial(memory.copy, [pair]))
        return self._idle([stream], now_ps) if wait else "0 0"

    def do_set(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Fill memory: time, stream, target, byte, size."""
        now_ps, stream = int(words[0]), self._stream(link, words[1:3])
        to, value, size = map(int, words[3:])
        memory = self.world.memory
        span = memory.span(link.process, to, size)

        def run() -> None:
            memory.view(span)[:] = value

        duration_ps = copy_ps(self.world.chip, size)
        self._push(
            stream, now_ps, duration_ps, partial(memory.defer, (), (span,), run)
        )
        return "0 0"

    def do_kernel(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Kernel of nccl-tests: time, stream, mangled name, arguments."""
        now_ps, stream = int(words[0]), self._stream(link, words[1:3])
        name, values = words[3], [int(word) for word in words[4:]]
        known_kernel(name)
        action = partial(prepare, self.world.memory, link.process, name, values)
        self._push(stream, now_ps, 0, action)
        return "0 0"

    def do_stream(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Create a stream: device, flags (1: does not wait for the default stream)."""
        device, flags = map(int, words)
        return f"0 0 {self.queues.new_stream(link.process, device, waits=not flags & 1)}"

    def do_sdestroy(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Destroy a stream; its work is completed."""
        return "0 0"

    def do_ssync(self, link: ProgramThread, words: Sequence[str]) -> Waiting:
        """Wait for a stream: time, stream."""
        return self._idle([self._stream(link, words[1:])], int(words[0]))

    def do_squery(self, link: ProgramThread, words: Sequence[str]) -> str | Waiting:
        """Wait for a stream if its work can be completed without further calls: time, stream."""
        return self._query(
            self._idle([self._stream(link, words[1:])], int(words[0]))
        )

    def do_dsync(self, link: ProgramThread, words: Sequence[str]) -> Waiting:
        """Wait for a device: time, device."""
        streams = self.queues.of_device(link.process, int(words[1]))
        return self._idle(streams, int(words[0]))

    def do_swait(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Let a stream wait for an event: stream, event."""
        self.queues.wait(self._stream(link, words[:2]), int(words[2]))
        return "0 0"

    # ---- events
    def do_event(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Create an event."""
        return f"0 0 {self.queues.new_event()}"

    def do_edestroy(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Destroy an event."""
        self.queues.events.pop(int(words[0]), None)
        return "0 0"

    def do_record(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Record an event: time, stream, event."""
        self.queues.record(
            self._stream(link, words[1:3]), int(words[3]), int(words[0])
        )
        return "0 0"

    def do_esync(self, link: ProgramThread, words: Sequence[str]) -> Waiting:
        """Wait for an event: time, event."""
        return self._end_of(self.queues.event(int(words[1])), int(words[0]))

    def do_equery(self, link: ProgramThread, words: Sequence[str]) -> str | Waiting:
        """Wait for an event if its work can be completed without further calls: time, event."""
        return self._query(self.do_esync(link, words))

    def do_elapsed(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Time between two events [ps]."""
        events = [self.queues.event(int(word)) for word in words]
        if not all(events):
            return (
                f"{INVALID_VALUE} 0 cudaEventElapsedTime: an event was not recorded"
            )
        (start,), (end,) = events
        if not is_past((start, end)):
            return f"{NOT_READY} 0 device not ready"
        return f"0 0 {end.end_ps - start.end_ps}"

    # ---- graphs
    def do_begin(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Start a capture on a stream."""
        self.queues.begin(self._stream(link, words))
        return "0 0"

    def do_end(self, link: ProgramThread, words: Sequence[str]) -> str:
        """End a capture."""
        return f"0 0 {self.queues.end(self._stream(link, words))}"

    def do_capturing(self, link: ProgramThread, words: Sequence[str]) -> str:
        """State of a capture: 1 if active."""
        return f"0 0 {int(self._stream(link, words).captured is not None)}"

    def do_instantiate(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Create an executable graph."""
        return f"0 0 {self.queues.copy_of(int(words[0]))}"

    def do_gdestroy(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Destroy a graph."""
        self.queues.drop_graph(int(words[0]))
        return "0 0"

    def do_glaunch(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Launch a graph: time, stream, graph."""
        now_ps = int(words[0]) + self.world.graph_ps()
        start_ps = now_ps + self.world.first_start_ps
        self.queues.launch_graph(
            self._stream(link, words[1:3]), int(words[3]), start_ps
        )
        return f"0 {now_ps}"

    # ---- NCCL
    def do_id(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Create an identifier of a communicator."""
        return f"0 0 {self.world.number()}"

    def do_join(self, link: ProgramThread, words: Sequence[str]) -> Waiting:
        """Create communicators: time, then ``init`` id ranks rank device, or ``split`` communicator colour key rank."""
        requests = [
            self._joins(link, words[at], list(map(int, words[at + 1 : at + 5])))
            for at in range(1, len(words), 5)
        ]
        return Waiting(
            lambda: all(joining.made is not None for joining, _ in requests),
            lambda: (
                "0 0 "
                + " ".join(_handle(joining, rank) for joining, rank in requests)
            ),
        )

    def _joins(
        self, link: ProgramThread, kind: str, numbers: Sequence[int]
    ) -> tuple[Joining, int]:
        if kind == "init":
            number, size, rank, device = numbers
            member = CommMember(link.process, self.world.gpu(link.process, device))
            return self.world.join(
                ("init", number), size, rank, (member, 0, rank)
            ), rank
        number, colour, key, rank = numbers
        comm = self._comm(number)
        round_key = "split", number, comm.next_split(rank)
        request = comm.members[rank], colour, key
        return self.world.join(round_key, len(comm.members), rank, request), rank

    def do_quit(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Leave a communicator: time, communicator, rank."""
        self.world.quit(int(words[1]))
        return "0 0"

    def do_window(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Register a symmetric window, or remove it: communicator, address, size, 1 or 0."""
        number, address, size, offset = map(int, words)
        windows = self._comm(number).windows
        if offset:
            windows[link.process, address] = size
        else:
            windows.pop((link.process, address), None)
        return "0 0"

    def _comm(self, number: int) -> ProgramComm:
        comm = self.world.comms.get(number)
        if comm is None:
            raise ClusimError(f"communicator {number}: does not exist")
        return comm

    def do_group(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Issue the calls of a group: time, then the words of each."""
        now_ps = int(words[0])
        groups: dict[tuple[ProgramComm, int, CudaStream, bool], list[NcclCall]] = {}
        for at in range(1, len(words), _CALL_WORDS):
            operation, *arguments = words[at : at + _CALL_WORDS]
            number, rank, device, handle, *numbers = map(int, arguments)
            stream = self.queues.stream(link.process, device, handle)
            key = self._comm(number), rank, stream, operation in MESSAGES
            groups.setdefault(key, []).append(NcclCall(operation, *numbers))
        gpus = len({(comm, rank) for comm, rank, *_ in groups})
        issue_ps = max(
            comm.times.issue_ps(calls, gpus, comm.channels(rank, calls))
            for (comm, rank, *_), calls in groups.items()
        )
        if any(stream.captured is not None for _, _, stream, _ in groups):
            issue_ps = 0
        start_ps = now_ps + issue_ps + self.world.first_start_ps
        for (comm, rank, stream, _), calls in groups.items():
            self.queues.push(stream, start_ps, partial(comm.launch, rank, calls))
        return f"0 {now_ps + issue_ps}"

    # ---- processes
    def do_env(self, link: ProgramThread, words: Sequence[str]) -> str:
        """NCCL variable of a process."""
        name, _, value = " ".join(words[1:]).partition("=")
        self.world.processes.setdefault(int(words[0]), ProgramProcess()).env.append(
            (name, value)
        )
        return "0 0"

    def do_hello(self, link: ProgramThread, words: Sequence[str]) -> str:
        """First thread of a process: its number, and its rank and their number in MPI."""
        link.process, rank, size = map(int, words)
        numbers, names = self.world.describe(link.process, rank, size)
        return f"0 0 {' '.join(map(str, numbers))} |{'|'.join(names)}|"

    def do_thread(self, link: ProgramThread, words: Sequence[str]) -> str:
        """Further thread of a process."""
        link.process = int(words[0])
        return "0 0"

    # ---- lines
    def answer(self, link: ProgramThread, line: str) -> str | Waiting:
        """Return the reply to a request, or the condition for it."""
        name, *words = line.split(" ")
        if self.failure:
            return f"{_code(name)} 0 {self.failure}"
        try:
            return getattr(self, f"do_{name}")(link, words)  # type: ignore[no-any-return]
        except ClusimError as error:
            return f"{_code(name)} 0 {error}"

    def serve(self, listener: socket.socket, running: Callable[[], bool]) -> None:
        """Answer requests until the program has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while running():
                keys = selector.select(POLL_S if self._holds() else 0.05)
                if keys:
                    self.ticks = None
                for key, _ in keys:
                    if key.fileobj is listener:
                        link = ProgramThread(listener.accept()[0])
                        self.links.append(link)
                        selector.register(link.socket, selectors.EVENT_READ, link)
                    elif not self._read(key.data):
                        selector.unregister(key.fileobj)
                        self.links.remove(key.data)
                        key.data.socket.close()
                self._continue(lambda: bool(selector.select(0)))

    def _read(self, link: ProgramThread) -> bool:
        """Answer the requests of a thread; return False if it has ended."""
        try:
            got = link.socket.recv(1 << 20)
        except ConnectionError:
            got = b""
        if not got:
            return False
        link.unread += got
        while b"\n" in link.unread:
            line, _, link.unread = link.unread.partition(b"\n")
            answered = self.answer(link, line.decode())
            if isinstance(answered, Waiting):
                link.waiting = answered
            else:
                _send(link, answered)
        return True

    def _holds(self) -> bool:
        """Return True if a thread waits for the clock while another one runs and may issue calls that overlap."""
        active = [link.process for link in self.links if link.waiting is None]
        groups = sum(not comm.alone for comm in self.world.comms.values())
        if groups <= 1 or len(active) == len(self.links):
            return False
        runs, ticks = threads_of(set(active))
        if self.ticks is None:
            self.ticks = ticks
        return runs and ticks - self.ticks < MOST_TICKS

    def _continue(self, pending: Callable[[], bool]) -> None:
        """Send the replies that are ready, and let the clock continue for threads whose operations can end.

        A thread that has just sent a request waits for its reply, and does not run: its request is `pending`.
        """
        self._wake()
        while not self._holds() and not pending() and self._play():
            self._wake()
            self.ticks = None

    def _play(self) -> bool:
        """Play until a thread need not wait; return False if all threads wait for further calls.

        After an error all further requests fail.
        """
        waits = [
            link.waiting.operations
            for link in self.links
            if link.waiting is not None
        ]
        ending = self.queues.can_end(filter(None, waits))
        try:
            if ending:
                self.queues.play(ending)
        except ClusimError as error:
            self.failure = str(error)
        return bool(ending)

    def _wake(self) -> None:
        """Send the replies that are ready."""
        for link in self.links:
            if link.waiting is None:
                continue
            if self.failure:
                _send(link, f"{NOT_SUPPORTED} 0 {self.failure}")
            elif link.waiting.ready():
                _send(link, link.waiting.reply())


def threads_of(processes: Iterable[int]) -> tuple[bool, int]:
    """Return whether a thread of processes runs or can run, and the processor time of all their threads [ticks]."""
    runs, ticks = False, 0
    for process in processes:
        for path in Path(f"/proc/{process}/task").glob("*/stat"):
            try:
                fields = path.read_text().rpartition(") ")[2].split()
            except OSError:  # the thread has ended
                runs = True
                continue
            runs = runs or fields[0] in "RD"
            ticks += int(fields[11]) + int(fields[12])
    return runs, ticks


def _send(link: ProgramThread, text: str) -> None:
    link.waiting = None
    try:
        link.socket.sendall((text.replace("\n", " ") + "\n").encode())
    except ConnectionError:
        return


def _code(name: str) -> int:
    return (
        INVALID_USAGE
        if name in _NCCL
        else INVALID_FUNCTION
        if name == "kernel"
        else INVALID_VALUE
    )


def _handle(joining: Joining, rank: int) -> str:
    """Return the number of the new communicator of a rank, its rank there, and its size."""
    if joining.made is None or rank not in joining.made:
        return "-1 0 0"
    comm, position = joining.made[rank]
    return f"{comm.number} {position} {len(comm.members)}"
