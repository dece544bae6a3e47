"""Importer of htsim topology files (``.topo``): fat trees of two or three tiers.

A file contains radixes, rates and latencies: first ``Nodes``, ``Tiers`` and ``Podsize``, then one section
per tier. Tier 0 has the switches to which hosts are connected. The links of a section are the downlinks
of its switches; ``Bundle`` is the number of parallel links. As in htsim, the number of switches follows
from the port counts, which must be consistent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from clusim.base.limits import fail, printable
from clusim.formats.topologies.common import MAX_LINKS, MAX_NODES, Draft

_KEYS: Final = (
    "downlink_speed_gbps", "radix_up", "radix_down", "queue_up", "queue_down", "oversubscribed", "bundle",
    "switch_latency_ns", "downlink_latency_ns",
)  # fmt: skip
_NAMES: Final = {2: ("leaf", "spine"), 3: ("leaf", "spine", "core")}
_MOST: Final = 10**9


@dataclass(slots=True)
class _Tier:
    line: int
    values: dict[str, int] = field(default_factory=dict)

    def get(self, key: str, default: int = 0) -> int:
        return self.values.get(key, default)


class _Tree:
    """The numbers in a file, and the derived counts."""

    def __init__(self, text: str, draft: Draft) -> None:
        self.draft = draft
        self.head: dict[str, int] = {}
        self.tiers: dict[int, _Tier] = {}
        self._parse(text)
        self.nodes, self.num_tiers = (
            self._of_head("nodes", MAX_NODES),
            self._of_head("tiers", 3),
        )
        if self.num_tiers < 2:
            raise draft.fail(f"Tiers {self.num_tiers}; must be 2 or 3")
        self.pod = self._of_head("podsize", MAX_NODES)
        for number in range(self.num_tiers):
            self._complete(number)
        self._count()

    def _of_head(self, key: str, limit: int) -> int:
        value = self.head.get(key, 0)
        if not 1 <= value <= limit:
            found_text = (
                f"{key.capitalize()} {value}" if value else f"no {key.capitalize()}"
            )
            raise self.draft.fail(f"{found_text}; must be 1 to {limit}")
        return value

    def _parse(self, text: str) -> None:
        where, tier = self.draft.where, None
        for number, raw in enumerate(text.splitlines(), 1):
            words = raw.split()
            if not words or words[0].startswith("#"):
                continue
            key = words[0].lower()
            value = (
                int(words[1])
                if len(words) > 1 and re.fullmatch("[0-9]{1,9}", words[1])
                else -1
            )
            if not 0 <= value <= _MOST:
                raise fail(
                    where,
                    number,
                    f"{printable(raw)!r}: must be a word and an integer",
                )
            if key == "tier":
                if value > 2 or value in self.tiers:
                    raise fail(
                        where, number, f"Tier {value}: must be 0, 1 or 2, each once"
                    )
                tier = self.tiers[value] = _Tier(number)
            elif tier is None and key in ("nodes", "tiers", "podsize"):
                self.head[key] = value
            elif tier is not None and key in _KEYS:
                tier.values[key] = value
            else:
                raise fail(
                    where, number, f"{printable(words[0])!r} is not known here"
                )

    def _complete(self, number: int) -> None:
        """Refuse a tier with missing keys."""
        tier = self.tiers.get(number)
        if tier is None:
            raise self.draft.fail(f"no Tier {number}; there are {self.num_tiers}")
        needed = ["downlink_speed_gbps", "radix_down", "downlink_latency_ns"]
        needed += ["radix_up"] if number < self.num_tiers - 1 else []
        for key in needed:
            if not tier.get(key):
                raise self.draft.fail(
                    f"{key.capitalize()} of Tier {number} is missing", tier.line
                )
        if not tier.get("bundle", 1) or not tier.get("oversubscribed", 1):
            raise self.draft.fail(
                f"Tier {number}: Bundle and Oversubscribed begin at 1", tier.line
            )

    def _check_ports(self, tier: _Tier, ports: int, below: str) -> None:
        if (radix := tier.get("radix_down")) != ports:
            raise self.draft.fail(
                f"Radix_Down {radix}: {below} need {ports} ports", tier.line
            )

    def _divide_evenly(self, a: int, b: int, subject: str, line: int) -> int:
        if not b or a % b:
            raise self.draft.fail(f"{subject}: {b} do not divide {a}", line)
        return a // b

    def _count(self) -> None:
        """Count switches as htsim does, and refuse inconsistent port counts."""
        leaf, spine = self.tiers[0], self.tiers[1]
        down, up = leaf.get("radix_down"), leaf.get("radix_up")
        bundle = spine.get("bundle", 1)
        if self.num_tiers == 2 and self.pod != self.nodes:
            raise self.draft.fail(
                f"Podsize {self.pod}: with 2 tiers it is Nodes, {self.nodes}"
            )
        self.pods = self._divide_evenly(self.nodes, self.pod, "hosts of a pod", 0)
        self.leaves = self._divide_evenly(
            self.pod, down, "hosts of a switch of tier 0", leaf.line
        )
        self.spines = self._divide_evenly(
            up, bundle, "the Bundle of tier 1", leaf.line
        )
        self._check_ports(
            spine, self.leaves * bundle, f"{self.leaves} switches of tier 0 in a pod"
        )
        self.cores = self.groups = 0
        if self.num_tiers == 3:
            core = self.tiers[2]
            wide = core.get("bundle", 1)
            self.groups = self._divide_evenly(
                spine.get("radix_up"), wide, "the Bundle of tier 2", spine.line
            )
            self.cores = self.spines * self.groups
            self._check_ports(core, self.pods * wide, f"{self.pods} pods")
        switches = self.pods * (self.leaves + self.spines) + self.cores
        links = self.nodes + self.pods * self.spines * (self.leaves + self.groups)
        if self.nodes + switches > MAX_NODES or links > MAX_LINKS:
            raise self.draft.fail(
                f"{self.nodes + switches} nodes and {links} links; at most {MAX_NODES} and {MAX_LINKS}"
            )


def read_htsim(text: str, draft: Draft) -> None:
    """Fill `draft` from the text."""
    if draft.chip:
        raise draft.fail("has hosts and no GPUs; leave out the chip")
    tree = _Tree(text, draft)
    draft.settings["description"] = (
        f"imported from an htsim topology file: a fat tree of {tree.num_tiers} tiers"
    )
    for host in range(tree.nodes):
        draft.node(f"host{host}", "host")
    counts = (tree.pods * tree.leaves, tree.pods * tree.spines, tree.cores)
    for number, word in enumerate(_NAMES[tree.num_tiers]):
        latency = tree.tiers[number].get("switch_latency_ns")
        latency_text = f"{latency}ns" if latency else "1ps"
        keys: dict[str, Any] = {
            "switch": "ethernet",
            "tier": word,
            "latency": latency_text,
        }
        for at in range(counts[number]):
            draft.node(f"{word}{at}", "switch", **keys)
    _join(tree, draft)
    draft.assume("packets", "as on Ethernet: 64 B around 4096 B", "not in the file")
    if any(
        tier.get(key)
        for tier in tree.tiers.values()
        for key in ("queue_up", "queue_down")
    ):
        draft.assume(
            "switches",
            "buffers as of Ethernet links",
            "Queue_Up and Queue_Down are of htsim's queues",
        )


def _join(tree: _Tree, draft: Draft) -> None:
    """Add the links: host to leaf, leaf to spine in a pod, spine to the cores of its position."""
    down = tree.tiers[0].get("radix_down")
    keys = [_keys(tree.tiers[number]) for number in range(tree.num_tiers)]
    for host in range(tree.nodes):
        draft.link(f"host{host}", f"leaf{host // down}", **keys[0])
    for leaf in range(tree.pods * tree.leaves):
        for at in range(tree.spines):
            spine = leaf // tree.leaves * tree.spines + at
            count = tree.tiers[1].get("bundle", 1)
            draft.link(f"leaf{leaf}", f"spine{spine}", count=count, **keys[1])
    for spine in range(tree.pods * tree.spines if tree.cores else 0):
        for group in range(tree.groups):
            core = spine % tree.spines + tree.spines * group
            count = tree.tiers[2].get("bundle", 1)
            draft.link(f"spine{spine}", f"core{core}", count=count, **keys[2])


def _keys(tier: _Tier) -> dict[str, Any]:
    """Return the keys of a tier's downlinks."""
    return {
        "type": "ethernet400",
        "rate": f"{tier.get('downlink_speed_gbps')} Gb/s",
        "latency": f"{tier.get('downlink_latency_ns')}ns",
    }
