"""Proxies: what the host does for connections between machines, slice by slice.

**Hardware** A proxy thread polls the flags of GPUs, posts sends, watches completions and hands slots on (NCCL,
``src/proxy.cc``, ``src/transport/net.cc``). **Model** One instance per connection, at the endpoint that holds the
data: for each slice the sender posts, it waits for its flag, pays the time to post, and sends it over the NIC. It
repeats the sender's primitives on that connection, so both cut the same slices. It holds no SM; one CTA slot. If
there are more than `MAX_SLOTS` at an endpoint, the connections of one sending program share a proxy, which then
serves them in the sender's order. **Not modelled** The thread's own load: proxies run side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusim.errors import ScheduleError
from clusim.schedule.ir import ABSENT, Prim, Schedule, Template

__all__ = ["MAX_SLOTS", "ProxiedConnection", "Proxy", "plan_proxies", "proxy_connections"]

MAX_SLOTS = 256
"""Most flows that an endpoint of an image can have at once."""


@dataclass(frozen=True, slots=True)
class ProxiedConnection:
    """A connection between machines: connection of the schedule, the image's two, and where its proxy runs."""

    connection: int
    first: int
    second: int
    endpoint: int
    post_ps: int


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy instance: it forwards what `instance` sends on `links`."""

    instance: int
    links: tuple[ProxiedConnection, ...]
    template: Template


def plan_proxies(
    schedule: Schedule, links: dict[int, ProxiedConnection], room: Sequence[int]
) -> list[Proxy]:
    """Return the proxies of all connections between machines, in order of the sending instances.

    `room` is how many flows each endpoint has left beside the schedule's own programs.
    """
    if not links:
        return []
    sending = [_sends(template) for template in schedule.templates]
    by_instance: list[tuple[int, list[tuple[int, ProxiedConnection]]]] = []
    for index, instance in enumerate(schedule.instances):
        own = [
            (slot, links[instance.connections[slot]])
            for slot in sending[instance.template]
            if instance.connections[slot] in links
        ]
        if own:
            by_instance.append((index, own))
    single = [(index, [item]) for index, own in by_instance for item in own]
    if not _fits(schedule, single, room):
        single = [pair for index, own in by_instance for pair in _by_endpoint(index, own)]
        if not _fits(schedule, single, room):
            raise ScheduleError(
                f"{schedule.name}: needs more than {MAX_SLOTS} programs and proxies on one endpoint; use fewer channels"
            )
    templates: dict[tuple[int, tuple[int, ...]], Template] = {}
    proxies = []
    for index, own in single:
        slots = tuple(slot for slot, _ in own)
        key = (schedule.instances[index].template, slots)
        if key not in templates:
            templates[key] = _forwarding(schedule.templates[key[0]], slots)
        proxies.append(Proxy(index, tuple(link for _, link in own), templates[key]))
    return proxies


def _sends(template: Template) -> list[int]:
    return sorted({prim.send for prim in template.prims if prim.send != ABSENT})


def _by_endpoint(
    index: int, own: Sequence[tuple[int, ProxiedConnection]]
) -> list[tuple[int, list[tuple[int, ProxiedConnection]]]]:
    found: dict[int, list[tuple[int, ProxiedConnection]]] = {}
    for item in own:
        found.setdefault(item[1].endpoint, []).append(item)
    return [(index, items) for items in found.values()]


def _fits(
    schedule: Schedule,
    proxies: Sequence[tuple[int, list[tuple[int, ProxiedConnection]]]],
    room: Sequence[int],
) -> bool:
    """Return whether the proxies of each call fit beside the programs."""
    count: dict[tuple[int, int], int] = {}
    for index, own in proxies:
        key = schedule.tasks[schedule.instances[index].task].call, own[0][1].endpoint
        count[key] = count.get(key, 0) + 1
    return all(number <= room[endpoint] for (_, endpoint), number in count.items())


def _forwarding(template: Template, slots: tuple[int, ...]) -> Template:
    """Return the program of a proxy: what `template` sends on `slots`, received on 2i and sent on 2i + 1."""
    place = {slot: number for number, slot in enumerate(slots)}
    prims = [
        Prim(
            "recvCopySend",
            recv=2 * place[prim.send],
            send=2 * place[prim.send] + 1,
            base=prim.base,
            coef=prim.coef,
            step=prim.step,
            repeat=prim.repeat,
            sync=prim.sync,
        )
        for prim in template.prims
        if prim.send in place
    ]
    return replace(template, name=f"proxy of {template.name}", prims=tuple(prims))


def proxy_connections(proxy: Proxy) -> list[int]:
    """Return the connections of a proxy's instance."""
    return [number for link in proxy.links for number in (link.first, link.second)]
