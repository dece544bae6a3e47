"""Least remedy: the smallest set of changes, one or two, with which a collective is shorter by a given part.

Settings of NCCL precede hardware. Each change is simulated, with NCCL's plan for the changed system, and the
chosen changes again at an eighth and at eight times the size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from clusim.analysis.whatif import THINGS
from clusim.base.errors import ClusimError, InputError, TimeLimitReached
from clusim.base.json_schema import JsonObject
from clusim.base.units import format_size, format_time
from clusim.results.result import Result
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.plan import plan
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request
from clusim.simulation.speed import Speed, speed_of

ALGORITHMS = ("Ring", "Tree", "NVLS", "NVLSTree")
PROTOCOLS = ("Simple", "LL", "LL128")
SETTINGS_OF_NCCL = "nccl"

PAIRED = 5
"""Changes with the largest savings that are combined in pairs."""

AROUND = (8, 1 / 8)
"""Factors of the size at which the chosen changes are simulated as well."""

MOST_GRANTS = 400_000_000
"""Packets and bursts of all runs, above which no further change is simulated."""

SHOWN = 6
"""Changes that are not enough and are named."""


@dataclass(frozen=True)
class _Option:
    """Change of a request, and faster hardware that no plan depends on."""

    words: str
    apply: Callable[[Request], Request]
    speed: Speed | None = None
    free: bool = False


@dataclass(frozen=True)
class SimulatedChanges(JsonObject):
    """Changes together, in the words of ``clusim what-if``, and the time with them [ps]."""

    changes: tuple[str, ...]
    time_ps: int


@dataclass(frozen=True)
class TimeElsewhere(JsonObject):
    """Times at another size, without and with the changes [ps]."""

    size_bytes: int
    before_ps: int
    after_ps: int


@dataclass(frozen=True)
class Improvement(JsonObject):
    """Smallest set of changes that shorten a run by a part of its time.

    Attributes
    ----------
    target : float
        The part, 0 to 1.
    time_ps : int
        Time of the run [ps].
    chosen : object or None
        The changes; None if no one or two reach the target.
    elsewhere : list
        Times with them at other sizes.
    tried : list
        All simulated changes, the shortest time first.
    unfinished : str
        Why not all were simulated; may be empty.
    """

    target: float
    time_ps: int
    chosen: SimulatedChanges | None
    elsewhere: tuple[TimeElsewhere, ...]
    tried: tuple[SimulatedChanges, ...]
    unfinished: str = ""

    def lines(self) -> list[str]:
        """Return the answer as text."""
        head = f"improve by {self.target:.0%}"
        if self.chosen is None:
            lines = [
                f"{head}: no one or two of {len(self.tried)} simulated changes reach it"
            ]
        else:
            lines = [f"{head}: {self._words(self.chosen)}"]
            rows = (
                f"{format_size(row.size_bytes)} {_change(row.after_ps, row.before_ps)}"
                for row in self.elsewhere
            )
            lines += [f"elsewhere: {', '.join(rows)}"]
        rejected = [row for row in self.tried if row != self.chosen]
        label = "best" if self.chosen is None else "others"
        lines += [f"{label}: {self._words(row)}" for row in rejected[:SHOWN]]
        return lines + (
            [f"not simulated: {self.unfinished}"] if self.unfinished else []
        )

    def _words(self, row: SimulatedChanges) -> str:
        words = " and ".join(row.changes)
        return f"{words}: {format_time(row.time_ps)} ({_change(row.time_ps, self.time_ps)})"


def _change(after_ps: int, before_ps: int) -> str:
    return f"{(after_ps - before_ps) / max(1, before_ps):+.1%}"


def improve(
    base: Request, result: Result, target: float, options: RunOptions | None = None
) -> Improvement:
    """Find the smallest set of changes with which a run of `base` with `result` is shorter by the part `target`.

    Raises
    ------
    InputError
        The target is not between 0 and 1, or the run is incomplete.
    """
    if not 0 < target < 1:
        raise InputError(f"improve {target:.0%}: must be above 0% and below 100%")
    if not result.complete:
        raise InputError("improve: the run did not finish")
    search = _Search(base, result, options or RunOptions())
    goal_ps = result.time_ps * (1 - target)
    unfinished = ""
    chosen: _Choice | None = None
    try:
        for sets in (search.singles, search.pairs):
            for several in sets() if chosen is None else ():
                if search.tried[-1].time_ps <= goal_ps:
                    chosen = _better(chosen, (several, search.tried[-1]))
    except TimeLimitReached as error:
        unfinished = str(error)
    tried = tuple(sorted(search.tried, key=lambda row: row.time_ps))
    elsewhere: tuple[TimeElsewhere, ...] = ()
    if chosen is not None and not unfinished:
        elsewhere = tuple(search.elsewhere(chosen[0]))
    best = None if chosen is None else chosen[1]
    omitted = unfinished or search.left
    return Improvement(target, result.time_ps, best, elsewhere, tried, omitted)


_Set = tuple[_Option, ...]
_Choice = tuple[_Set, SimulatedChanges]


def _better(one: _Choice | None, two: _Choice) -> _Choice:
    """Return the set of fewer changes, then of fewer changes of hardware, then the faster one."""

    def order(choice: _Choice) -> tuple[int, int, int]:
        several, row = choice
        return len(several), sum(not option.free for option in several), row.time_ps

    return two if one is None else min(one, two, key=order)


class _Search:
    def __init__(self, base: Request, result: Result, options: RunOptions) -> None:
        self.base, self.result = base, result
        self.options = RunOptions(
            bins=2, histories=False, threads=options.threads, watch=options.watch
        )
        self.tried: list[SimulatedChanges] = []
        self.left = ""
        self._good: list[tuple[int, _Option]] = []
        self._grants = 0

    def singles(self) -> Iterator[_Set]:
        """Yield single changes after they are simulated."""
        for option in _options(self.base, self.result):
            time_ps = self._simulate_changes((option,))
            if time_ps is not None:
                if time_ps < self.result.time_ps:
                    self._good.append((time_ps, option))
                yield (option,)

    def pairs(self) -> Iterator[_Set]:
        """Yield pairs of the best single changes after they are simulated."""
        good = sorted(self._good, key=lambda item: item[0])[:PAIRED]
        for pair in combinations([option for _, option in good], 2):
            names = [
                option.words.partition("=")[0].rsplit(" ", 1)[0] for option in pair
            ]
            if names[0] != names[1] and self._simulate_changes(pair) is not None:
                yield pair

    def elsewhere(self, several: _Set) -> Iterator[TimeElsewhere]:
        """Yield the times of changes at other sizes."""
        for factor in AROUND:
            size = max(1, int(self.base.size_bytes * factor)) // 4 * 4 or 4
            base = replace(self.base, size_bytes=size)
            try:
                before, after = self._run(base, ()), self._run(base, several)
            except TimeLimitReached:
                raise
            except ClusimError:
                continue
            yield TimeElsewhere(size, before.time_ps, after.time_ps)

    def _simulate_changes(self, several: _Set) -> int | None:
        """Return the time with changes; None if they fail, do not change it, or too much was simulated."""
        if self._grants > MOST_GRANTS:
            self.left = f"further changes; more than {MOST_GRANTS:,} packet-hops"
            return None
        try:
            result = self._run(self.base, several)
        except TimeLimitReached:
            raise
        except ClusimError:
            return None
        self._grants += result.grants
        if result.time_ps == self.result.time_ps:
            return None
        words = tuple(option.words for option in several)
        self.tried.append(SimulatedChanges(words, result.time_ps))
        return result.time_ps

    def _run(self, base: Request, several: Sequence[_Option]) -> Result:
        for option in several:
            base = option.apply(base)
        job = job_of(plan(base), self.options)
        for option in several:
            if option.speed is not None:
                job = option.speed.job(job)
        result = run_job(job, self.options)
        if result.unfinished is not None:
            raise result.unfinished.limit_error("the run with changes")
        return result


def _options(base: Request, result: Result) -> Iterator[_Option]:
    """Yield single changes: settings, then hardware that the verdict names, or that carries traffic."""
    yield from _settings(base, result)
    remedies = [
        cause.remedy
        for cause in result.verdict.causes
        if cause.remedy.endswith(" x2")
    ]
    links = (
        f"{name.partition(' ')[0]} x2"
        for name, row in zip(
            result.wires.classes, result.wires.counters, strict=True
        )
        if row["packets"]
    )
    for words in dict.fromkeys((*remedies, *links)):
        speed = speed_of(words)
        assert speed is not None
        if speed.what in THINGS:
            yield _Option(words, lambda request: request, speed)
        else:
            yield _Option(words, _on_links(speed))


def _on_links(speed: Speed) -> Callable[[Request], Request]:
    def apply(request: Request) -> Request:
        setup = request.setup
        return replace(
            request,
            setup=replace(setup, topology=speed.machine(setup.fabric), nodes=None),
        )

    return apply


def _settings(base: Request, result: Result) -> Iterator[_Option]:
    call, environment = result.call, dict(base.setup.env)
    if call is None:
        return
    channels = (2 * call.channels, max(1, call.channels // 2))
    for number in channels:
        if number != call.channels:
            yield _Option(f"--channels {number}", _with(channels=number), free=True)
    if base.algorithm not in ("", SETTINGS_OF_NCCL):
        for name in PROTOCOLS:
            if name.lower() != call.protocol.lower():
                yield _Option(
                    f"--protocol {name.lower()}",
                    _with(protocol=name.lower()),
                    free=True,
                )
        return
    texts = [*_choices("NCCL_ALGO", ALGORITHMS, call.algorithm)]
    texts += _choices("NCCL_PROTO", PROTOCOLS, call.protocol)
    protocol = base.setup.fabric.protocols.get(call.protocol.lower())
    if protocol is not None:
        sizes = (4 * protocol.buffer_bytes, protocol.buffer_bytes // 4)
        texts += [("NCCL_BUFFSIZE", str(size)) for size in sizes]
    for name, value in texts:
        if name not in environment:
            yield _Option(f"--env {name}={value}", _in_env(name, value), free=True)


def _choices(
    name: str, values: Iterable[str], present: str
) -> Iterator[tuple[str, str]]:
    return ((name, value) for value in values if value.lower() != present.lower())


def _with(**fields: object) -> Callable[[Request], Request]:
    return lambda request: replace(request, **fields)  # type: ignore[arg-type]


def _in_env(name: str, value: str) -> Callable[[Request], Request]:
    def apply(request: Request) -> Request:
        setup = request.setup
        return replace(
            request, setup=replace(setup, env=(*setup.env, (name, value)))
        )

    return apply
