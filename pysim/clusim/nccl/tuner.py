"""NCCL's choice of algorithm, protocol, channels and threads for a collective of some size.

Of all entries of the cost table the one with the lowest predicted time is taken; then channels, and after them
threads, are given up while each thread would have fewer bytes than its threshold.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import field, replace

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.operations import (
    ALGORITHMS,
    PROTOCOLS,
    Algorithm,
    Collective,
    Protocol,
)
from clusim.nccl.constants import since
from clusim.nccl.cost_table import CostTable
from clusim.nccl.env import Settings, allows
from clusim.nccl.rccl import THREADS

WARP = 32
_MAX_THREADS = 640
_IN_SWITCH = (Algorithm.NVLS, Algorithm.NVLS_TREE)


@dataclass(frozen=True, slots=True)
class Threads:
    """Channels of a collective and threads of a CTA.

    Attributes
    ----------
    why : str
        The rule that decided.
    """

    num_channels: int
    num_threads: int
    why: str


@dataclass(frozen=True, slots=True)
class Selection:
    """NCCL's selection of algorithm and protocol.

    Attributes
    ----------
    num_bytes : int
        The larger of a rank's sent and received sizes [bytes].
    time_us : float
        Time predicted by the cost model [us].
    times_us : dict
        Prediction for each candidate [us].
    why : str
        The deciding rule.
    """

    collective: Collective
    num_bytes: int
    algorithm: Algorithm
    protocol: Protocol
    threads: Threads
    time_us: float
    times_us: dict[tuple[Algorithm, Protocol], float]
    why: str


def max_threads(
    algorithm: Algorithm, protocol: Protocol, ring_GBps: float, settings: Settings
) -> int:
    """Return the most threads of a CTA; `ring_GBps` is the bandwidth of all rings together."""
    if settings.library is not None:
        threads = (
            settings.ll128_nthreads
            if protocol is Protocol.LL128
            else settings.nthreads
        )
        return min(threads or THREADS, THREADS)
    if protocol is Protocol.LL128:
        return settings.ll128_nthreads or _MAX_THREADS
    default = 512
    if protocol is Protocol.SIMPLE:
        if algorithm is Algorithm.RING:
            # On a single x16 of Gen3 more threads only wait.
            default = 256 if ring_GBps <= 12.0 else 512
        elif algorithm is not Algorithm.TREE:
            return _MAX_THREADS
    return settings.nthreads or default


def thread_thresholds(
    num_ranks: int, settings: Settings
) -> dict[tuple[Algorithm, Protocol], int]:
    """Return the bytes a thread must have before another channel is used."""
    limits = {
        (algorithm, protocol): 64 if protocol is Protocol.SIMPLE else 8
        for algorithm in ALGORITHMS
        for protocol in PROTOCOLS
    }
    for algorithm in (Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN):
        limits[algorithm, Protocol.SIMPLE] = 512
    limits[Algorithm.RING, Protocol.LL] *= num_ranks
    thresholds = settings.thread_thresholds or ()
    keys = [(a, p) for a in (Algorithm.TREE, Algorithm.RING) for p in PROTOCOLS]
    limits.update(
        {
            key: value
            for key, value in zip(keys, thresholds, strict=False)
            if value >= 0
        }
    )
    return limits


@dataclass(frozen=True, slots=True)
class ChannelSupply:
    """Channels that a communicator has for a collective.

    Attributes
    ----------
    num_channels, nvls_channels : int
        Channels of the communicator and of its NVLS algorithms.
    num_heads : int
        GPUs of a node that use the network (CollNetDirect).
    """

    num_channels: int
    nvls_channels: int
    num_heads: int = 1
    settings: Settings = field(default_factory=Settings)


def channels_and_threads(
    table: CostTable,
    key: tuple[Collective, Algorithm, Protocol],
    num_bytes: int,
    lanes: ChannelSupply,
) -> Threads:
    """Return the numbers of channels and threads of a collective of `num_bytes`, and the reason."""
    collective, algorithm, protocol = key
    ring, settings, num_channels = (
        table.graphs[Algorithm.RING],
        lanes.settings,
        lanes.num_channels,
    )
    threads = max_threads(
        algorithm, protocol, ring.num_channels * ring.intra_GBps, settings
    )
    limit = thread_thresholds(table.group.num_ranks, settings)[algorithm, protocol]
    limit = table.thread_bytes(collective, protocol, limit)
    same = settings.library is not None
    channels, thread_limit, why = num_channels, threads, "all channels"
    if algorithm in _IN_SWITCH:
        channels, why = lanes.nvls_channels, "separate NVLS channels"
    elif algorithm is Algorithm.COLLNET_DIRECT:
        channels = _direct_channels(
            num_bytes, channels, threads, lanes.num_heads, limit
        )
        why = f"fewer than {limit} B per thread and head"
    else:
        # A threshold of 0 B, possible with NCCL_THREAD_THRESHOLDS, does not limit channels.
        channels = (
            min(channels, max(1, num_bytes // (threads * limit)))
            if limit
            else channels
        )
        if channels < num_channels:
            why = f"fewer channels for {limit} B per thread"
        while (
            not same
            and num_bytes < channels * threads * limit
            and threads % 128 == 0
        ):
            threads //= 2
    if threads < thread_limit:
        why = f"one channel; fewer threads for {limit} B each"
    if same:
        return Threads(channels, threads, why)
    if since(table.version, "configured calls"):
        supply = lanes.nvls_channels if algorithm in _IN_SWITCH else num_channels
        low, top = settings.min_ctas or 1, settings.max_ctas or supply
        bounded = min(max(channels, low), top, supply)
        channels, why = bounded, (why if bounded == channels else "limits on CTAs")
    if protocol is Protocol.SIMPLE and algorithm is Algorithm.RING:
        threads += WARP
    threads = max(threads, 3 * WARP)
    if algorithm in (Algorithm.TREE, Algorithm.PAT):
        threads = _MAX_THREADS
    return Threads(channels, threads, why)


def _direct_channels(
    num_bytes: int, channels: int, threads: int, heads: int, limit: int
) -> int:
    """Return the channels of CollNetDirect: fewer in stages of 16, 8, ..., each halving a thread's minimum."""
    stage, short = 16, True
    while stage >= 1 and short:
        while True:
            short = num_bytes < channels * threads * heads * limit
            if not short or channels <= stage:
                break
            if channels == stage + stage // 2:
                limit //= 2
            channels -= 1
        stage //= 2
    return channels


def select(
    table: CostTable,
    collective: Collective,
    num_bytes: int,
    lanes: ChannelSupply,
    allowed: Container[tuple[Algorithm, Protocol]] | None = None,
) -> Selection:
    """Return NCCL's selection for `num_bytes` (the larger of the bytes that a rank sends and receives).

    `allowed` are the candidates; None are those of the settings.
    """
    settings = lanes.settings
    times: dict[tuple[Algorithm, Protocol], float] = {}
    for algorithm in ALGORITHMS:
        for protocol in PROTOCOLS:
            time = table.time_us(
                collective, algorithm, protocol, num_bytes, lanes.num_channels
            )
            if time is not None and (
                allowed is None or (algorithm, protocol) in allowed
            ):
                times[algorithm, protocol] = time
    if not times:
        requested = [
            c.text for c in (settings.algo, settings.proto) if c is not None
        ]
        named = [a for a in ALGORITHMS if allows(settings, collective, a)]
        reasons = [
            (a, table.cost(collective, a, Protocol.SIMPLE).why_not) for a in named
        ]
        why = "; ".join(f"{a.value}: {reason}" for a, reason in reasons if reason)
        raise InputError(
            f"NCCL {table.version}: no algorithm is left for {collective.value}"
            + (f" with {', '.join(requested)}" if requested else "")
            + (f" ({why})" if why else "")
            + ("; allow Ring or Simple" if requested else "")
        )
    ruled = _select_by_rule(table, (collective, num_bytes), lanes, times)
    if ruled is not None:
        return ruled
    fastest = min(times, key=lambda pair: times[pair])
    best = table.settle_choice(collective, num_bytes, fastest)
    planned = table.plan_channels(best[0], collective, num_bytes)
    if planned:
        threads = Threads(planned, THREADS, "channels of the plan")
        return Selection(
            collective,
            num_bytes,
            *best,
            threads,
            0.0,
            times,
            "MSCCL's plan of this size",
        )
    threads = channels_and_threads(table, (collective, *best), num_bytes, lanes)
    why = (
        _reason(times, best)
        if best == fastest
        else f"protocol of this size, not {fastest[1].value}"
    )
    return Selection(
        collective, num_bytes, *best, threads, times.get(best, 0.0), times, why
    )


def _select_by_rule(
    table: CostTable,
    call: tuple[Collective, int],
    lanes: ChannelSupply,
    times: dict[tuple[Algorithm, Protocol], float],
) -> Selection | None:
    """Return the selection by a rule of ``NCCL_TUNER_CONFIG_FILE``; None without one for this call."""
    rules, group = lanes.settings.tuner_config_file, table.group
    if rules is None:
        return None
    question = (*call, (group.num_nodes, group.num_ranks))
    rule = rules.find(question, times, rccl=lanes.settings.library is not None)
    if rule is None:
        return None
    best, why = (rule.algorithm, rule.protocol), f"line {rule.line} of {rules.name}"
    threads = channels_and_threads(table, (call[0], *best), call[1], lanes)
    if rule.channels > 0:
        supply = (
            lanes.nvls_channels
            if rule.algorithm in _IN_SWITCH
            else lanes.num_channels
        )
        aside = (
            f", which has {rule.channels}; all channels"
            if rule.channels > supply
            else ""
        )
        threads = replace(
            threads, num_channels=min(rule.channels, supply), why=why + aside
        )
    return Selection(*call, *best, threads, times[best], times, why)


def _reason(
    times: dict[tuple[Algorithm, Protocol], float], best: tuple[Algorithm, Protocol]
) -> str:
    alternatives = [pair for pair in times if pair != best]
    if not alternatives:
        return "the only one left"
    second = min(alternatives, key=lambda pair: times[pair])
    return f"next: {second[0].value} {second[1].value} x{times[second] / times[best]:.2f}"
