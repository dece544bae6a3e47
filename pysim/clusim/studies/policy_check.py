"""Laws of a policy: an uncontended flow, two flows, an incast, and equal results of engines and threads.

**Hardware** Congestion control of NICs, which must share a link, fill it and starve no flow.
**Model** Packets of flows between NICs of different nodes. *Uncontended*: one flow has the time without rate control,
to the picosecond, or by its target if that is a part of the link. *Two flows*: the second starts `JOIN_PS` after the
first; the link moves both in `SHARED_PS`. Convergence is the time from its start after which Jain's index of the rates
stays above `FAIR`; index and link use are those of the second half. *Incast*: equal flows from different nodes to one
NIC at once; the policy must change it. *Engines*: random networks and flows (``policy_networks.yaml``) on the C engine
and the reference; these and equal threads are the laws of policies of switches.
**Not modelled** Many flows over long paths, unequal round trips.
**Parameters** The limits below are *assumed*; the tests of the shipped policies have the same for two flows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusim.analysis.flowrates import FlowRates, flow_rates, jain
from clusim.base.datafiles import read
from clusim.base.errors import InputError
from clusim.base.json_schema import JsonObject, Round6
from clusim.policies.choice import find_policy, option_of
from clusim.policies.kinds import RECEIVER, SENDER
from clusim.policies.sender import SenderFlow, policy
from clusim.results.result import Result
from clusim.simulation.flows import Flow
from clusim.simulation.traffic_api import traffic
from clusim.topology import Fabric, load
from clusim.topology.node import NicTraits, RateControl

FAIR = 0.95
"""Least index of two flows, and least share of the link that they use."""

JOIN_PS = 300_000_000
"""Start of the second of two flows [ps]."""

SHARED_PS = 20 * 10**9
"""Time in which the link moves both of two flows [ps]."""

FLOW_BYTES = 8 << 20
"""Uncontended flow, and a flow of the incast [bytes]."""

CONVERGED_PS = SHARED_PS // 8
"""Longest convergence [ps]."""

LEAST_SHARE = 0.1
"""Least rate of a flow of the incast while all deliver, as a share of the mean."""

LEAST_USE = 0.8
"""Least share of the link that the incast uses until its end."""


@policy
class LineRate(SenderFlow):
    """Flows that never react: the line rate, without a window."""

    def start(self, now_ps: int) -> None:
        """Keep the line rate."""
        self.rate = self.line_rate


@dataclass(frozen=True, slots=True)
class PolicyLaw(JsonObject):
    """A law and its result.

    Attributes
    ----------
    law : str
        Name of the law.
    value, limit : float
        Result and its limit.
    unit : str
        Unit of both: ps, or empty for ratios and counts.
    passed : bool
        True if the law holds.
    note : str
        First example of a failure, where there are several.
    """

    law: str
    value: Round6
    limit: Round6
    unit: str
    passed: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class PolicyCheck(JsonObject):
    """Laws of a policy.

    Attributes
    ----------
    policy, system : str
        Policy, and the system of all laws except the random networks.
    functions : list of str
        Functions of the policy.
    passed : bool
        True if all laws hold.
    laws : list of PolicyLaw
        Laws in the order of the checks.
    """

    KEYS = ("policy", "system", "functions", "passed", "laws")

    policy: str
    system: str
    functions: list[str]
    laws: list[PolicyLaw]

    @property
    def passed(self) -> bool:
        """True if all laws hold."""
        return all(law.passed for law in self.laws)


def check_policy(
    name: str,
    system: Fabric,
    senders: int = 8,
    networks: int = 200,
    progress: Callable[[str], None] = lambda _: None,
) -> PolicyCheck:
    """Run the laws of a policy.

    Parameters
    ----------
    name : str
        Shipped policy, or ``file.py:Class``.
    system : Fabric
        System with NICs; flows go from the first GPU of each node to that of the first node.
    senders : int
        Flows of the incast, from different nodes.
    networks : int
        Number of random networks on which both engines run.
    progress : callable
        Receives the name of each law before it runs.

    Raises
    ------
    InputError
        An unknown policy, an error of its functions, or too few nodes.
    """
    if name == "none":
        raise InputError(
            f"policy {name}: without functions; name a policy or file.py:Class"
        )
    checked = option_of(name)
    if system.num_zones <= senders:
        raise InputError(
            f"{system.name}: {system.num_zones} nodes; must be {senders + 1} or more"
        )
    step = system.num_ranks // system.num_zones

    def run(flows: list[Flow], policy: Any = checked, **options: Any) -> Result:
        return traffic(system, flows=flows, policy=policy, routing="ecmp", **options)

    incast = [Flow(zone * step, 0, FLOW_BYTES) for zone in range(1, senders + 1)]
    laws: list[PolicyLaw] = []
    if find_policy(name).kind in (SENDER, RECEIVER):
        laws = _laws_of_flows(name, incast, run, progress)
    progress(f"engines on {networks} networks")
    laws.append(_equal_engines(checked, networks))
    progress("threads")
    prints = {run(incast, threads=threads).fingerprint for threads in (1, 2, 4)}
    laws.append(
        PolicyLaw("threads 1, 2, 4, results", len(prints), 1, "", len(prints) == 1)
    )
    return PolicyCheck(name, system.name, [*find_policy(name).functions], laws)


def _equal_engines(checked: str, networks: int) -> PolicyLaw:
    """Return the law that both engines run a policy equally on random networks."""
    different = [
        seed for seed in range(networks) if not _equal(checked, random.Random(seed))
    ]
    equal = networks - len(different)
    note = f"network {different[0]}" if different else ""
    law = "engines, equal networks"
    return PolicyLaw(law, equal, networks, "", not different, note)


def _laws_of_flows(
    name: str,
    incast: list[Flow],
    run: Callable[..., Result],
    progress: Callable[[str], None],
) -> list[PolicyLaw]:
    """Return the laws of congestion control; policies of switches do not have these."""
    progress("uncontended flow")
    alone = incast[:1]
    free_ps = run(alone, "sender=none").time_ps
    target_ps = round(free_ps / find_policy(name).target_use)
    late_ps, most_ps = run(alone).time_ps - free_ps, target_ps - free_ps
    laws = [
        PolicyLaw(
            "uncontended flow, delay", late_ps, most_ps, "ps", late_ps <= most_ps
        )
    ]
    progress("two flows")
    laws += _sharing(
        flow_rates(run(_two_flows(incast, free_ps))), FLOW_BYTES * 1e3 / target_ps
    )
    progress(f"incast of {len(incast)}")
    result = run(incast)
    laws += _incast(result, target_ps)
    progress("reaction")
    reacts = result.fingerprint != run(incast, LineRate).fingerprint
    why = "" if reacts else "never reacted: equal to flows at the line rate"
    laws.append(
        PolicyLaw(
            f"incast of {len(incast)}, reaction", int(reacts), 1, "", reacts, why
        )
    )
    return laws


def _at_least(law: str, value: float, limit: float) -> PolicyLaw:
    return PolicyLaw(law, value, limit, "", value >= limit)


def _two_flows(incast: list[Flow], free_ps: int) -> list[Flow]:
    """Return two flows that share a link for `SHARED_PS`."""
    size_bytes = SHARED_PS * FLOW_BYTES // (2 * free_ps)
    joined = JOIN_PS * FLOW_BYTES // free_ps
    first, second = incast[:2]
    return [
        replace(first, size_bytes=size_bytes + joined),
        replace(second, size_bytes=size_bytes, start_ps=JOIN_PS),
    ]


def _sharing(rates: FlowRates, line_GBps: float) -> list[PolicyLaw]:
    """Return fairness, use of the link and convergence of two flows."""
    end_ps = min(row.end_ps or 0 for row in rates.flows)
    first, last = (int(time_ps / rates.bin_ps) for time_ps in (JOIN_PS, end_ps))
    pairs = [*zip(*(row.rates_GBps for row in rates.flows), strict=True)][first:last]
    unfair = [number for number, pair in enumerate(pairs, 1) if jain(pair) < FAIR]
    settled_ps = max(unfair, default=0) * rates.bin_ps
    converged = settled_ps <= CONVERGED_PS and len(pairs) not in unfair
    mean = [
        sum(column) / len(column)
        for column in zip(*pairs[len(pairs) // 2 :], strict=True)
    ]
    return [
        _at_least("two flows, Jain's index", jain(mean or [1, 0]), FAIR),
        _at_least("two flows, link use", sum(mean) / line_GBps, FAIR),
        PolicyLaw(
            "two flows, convergence", settled_ps, CONVERGED_PS, "ps", converged
        ),
    ]


def _incast(result: Result, free_ps: int) -> list[PolicyLaw]:
    """Return the rate of the slowest flow of an incast, and use of the link."""
    rates = [row.steady_GBps or 0 for row in flow_rates(result).flows]
    name, count = f"incast of {len(rates)}", len(rates)
    return [
        _at_least(
            f"{name}, slowest flow",
            min(rates) * count / (sum(rates) or 1),
            LEAST_SHARE,
        ),
        _at_least(f"{name}, link use", count * free_ps / result.time_ps, LEAST_USE),
    ]


def _equal(policy: str, rng: random.Random) -> bool:
    """True if both engines have equal results on a random network."""

    def draw(part: str) -> dict[str, Any]:
        return {key: rng.choice(values) for key, values in choices[part].items()}

    choices = read(Path(__file__).with_name("policy_networks.yaml"))
    fabric = _network(
        load(rng.choice(choices["system"])), draw("link"), draw("control")
    )
    rows = [draw("flow") for _ in range(rng.randint(1, 8))]
    flows = [
        Flow(
            (row["destination"] + rng.randrange(1, fabric.num_ranks))
            % fabric.num_ranks,
            **row,
        )
        for row in rows
    ]
    options = draw("run")
    results = [
        traffic(fabric, flows=flows, policy=policy, engine=engine, **options)
        for engine in ("c", "reference")
    ]
    return len({(one.time_ps, one.fingerprint) for one in results}) == 1


def _network(
    fabric: Fabric, link: dict[str, Any], control: dict[str, Any]
) -> Fabric:
    """Return a system with other links of its network and another rate control."""

    def nic(traits: NicTraits | None) -> NicTraits | None:
        return traits and replace(traits, rate_control=RateControl(**control))

    return replace(
        fabric,
        links=tuple(
            replace(one, **link) if one.xoff_bytes else one for one in fabric.links
        ),
        nodes=tuple(replace(node, nic=nic(node.nic)) for node in fabric.nodes),
    )
