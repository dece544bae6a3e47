"""Job of a log on a system: communicators, valid plans of the log, times of its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusim.base.errors import InputError
from clusim.formats.logs import Log
from clusim.formats.logs.calls import CallTable, LoggedCall
from clusim.formats.logs.jobranks import JobRanks
from clusim.jobs.live import SeparateCalls
from clusim.nccl.choice import Members
from clusim.nccl.constants import LATEST, Version, parse_version
from clusim.nccl.env import parse_env
from clusim.replays.channels import with_logged
from clusim.replays.logplay import play_log
from clusim.replays.placing import Placed, ReplayRequest
from clusim.replays.timing import Timed, Timer, harness_of

if TYPE_CHECKING:
    from clusim.replays.callproof import JobRemedy

_KEEP_RINGS = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NTHREADS",
    "NCCL_LL128_NTHREADS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE", "NCCL_P2P_NVL_CHUNKSIZE",
)  # fmt: skip
"""Variables that affect NCCL's choices or buffers, but not its search for rings and trees."""


@dataclass(frozen=True, slots=True)
class KeptPlans:
    """Parts of the log's plans that are used: rings and trees, algorithm and protocol."""

    rings: bool
    choices: bool
    note: str = ""


REPLANNED = KeptPlans(rings=False, choices=False)


class LoggedJob:
    """Communicators of a log on one system, built on first use."""

    def __init__(
        self,
        log: Log,
        ranks: JobRanks,
        placed: Placed,
        request: ReplayRequest,
        kept: KeptPlans,
    ) -> None:
        self.log, self.ranks, self.placed, self.kept = log, ranks, placed, kept
        self.request, self.setup = request, placed.setup
        self.nccl = self.setup.communicators()
        self.timer = Timer(
            self.setup, self.nccl, request.granularity, request.faster
        )
        self._built: dict[int, Members] = {}

    def own(self, number: int) -> tuple[int, ...]:
        """Return the system's ranks of a communicator, in the order of the log."""
        return self.placed.system_ranks(self.ranks.of[number])

    def built(self, number: int) -> Members:
        """Return a communicator; two with the same ranks may have different rings."""
        if number not in self._built:
            result = self.nccl.of(self.own(number))
            if self.kept.rings:
                result = with_logged(
                    result, self.log, self.log.communicators[number]
                )
            self._built[number] = result
        return self._built[number]

    def known(self) -> list[Members]:
        """Return the communicators built so far."""
        return list(self._built.values())

    def time(
        self, table: CallTable, number: int, timer: Timer | None = None
    ) -> Timed:
        """Return the time of a distinct call."""
        call = self.planned(table.distinct[number])
        harness = harness_of(self.log, call.comm)
        return (timer or self.timer).time(self.built(call.comm), call, harness)

    def again(
        self, table: CallTable, remedy: JobRemedy, histories: bool
    ) -> tuple[list[Timed], Callable[[], int]]:
        """Return the times of all distinct calls with a change, and of the job; see `JobCalls`."""
        timer = self.timer.with_change(
            remedy.words, remedy.change, histories=histories
        )
        times = [
            self.time(table, number, timer) for number in range(len(table.distinct))
        ]
        return times, lambda: self.play(table, times, timer)[0]

    def play(
        self,
        table: CallTable,
        times: Sequence[Timed],
        timer: Timer,
        *,
        is_separate: bool = False,
    ) -> tuple[int, Counter[str]]:
        """Play the job by its first distinct calls, separately or with mutual slow-downs; see `play_log`."""
        calls = zip(map(self.planned, table.distinct), times, strict=False)
        bundles = [
            timer.bundle(self.built(c.comm), c, one.time_ps) for c, one in calls
        ]
        return play_log(
            table,
            self.request.gap,
            bundles,
            SeparateCalls({}) if is_separate else timer.joint,
        )

    def planned(self, call: LoggedCall) -> LoggedCall:
        """Return a call without the log's algorithm and protocol if these do not apply."""
        if self.kept.choices:
            return call
        return replace(call, algorithm="", protocol="", channels=0, model_us=-1.0)


def requested_version(log: Log, request: ReplayRequest) -> Version:
    """Return the requested NCCL version, otherwise the log's; `LATEST` without a valid one."""
    if request.version:
        return parse_version(request.version)
    for text, _ in log.facts.versions.most_common():
        try:
            return parse_version(text.split("+")[0])
        except InputError:
            continue
    return LATEST


def valid_plans(log: Log, request: ReplayRequest) -> KeptPlans:
    """Return the log's plans that hold in the requested environment and NCCL version."""
    if request.replan:
        return REPLANNED
    releases = {text.split("+")[0] for text in log.facts.versions}
    if (
        request.version
        and releases
        and not any(_same(request.version, text) for text in releases)
    ):
        note = f"--nccl-version {request.version}: rings, trees and algorithms are re-planned for that version"
        return KeptPlans(rings=False, choices=False, note=note)
    changed = [
        name
        for name, value in request.env
        if log.facts.environment.get(name, {}).keys() != {value}
    ]
    if not changed:
        return KeptPlans(rings=True, choices=True)
    rings = all(name in _KEEP_RINGS for name in changed)
    plans = "algorithms" if rings else "rings, trees and algorithms"
    note = f"--env {' '.join(changed)}: {plans} are re-planned, as the log has another environment"
    return KeptPlans(rings=rings, choices=False, note=note)


def _same(one: str, other: str) -> bool:
    try:
        return parse_version(one) == parse_version(other)
    except InputError:
        return False


def environment_of(
    log: Log, request: ReplayRequest
) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Return the job's environment updated with the request's, and names of unused variables."""
    variables: dict[str, str] = {}
    dropped = []
    for name, values in sorted(log.facts.environment.items()):
        if not name.startswith("NCCL_"):
            continue
        value = sorted(values)[0]
        if (name, value) == (
            "NCCL_TREE_THRESHOLD",
            "0",
        ):  # NCCL 2.4: 0 disables trees
            variables.setdefault("NCCL_ALGO", "Ring")
            continue
        try:
            parse_env({**variables, name: value})
        except InputError:
            dropped.append(name)
            continue
        variables[name] = value
    return tuple((variables | dict(request.env)).items()), dropped
