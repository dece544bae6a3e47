"""Proxies: the host's work for connections between nodes, slice by slice.

**Hardware** A proxy thread polls the flags of GPUs, posts sends, polls completions and passes FIFO slots on
(NCCL, ``src/proxy.cc``, ``src/transport/net.cc``). **Model** One instance per connection, at the endpoint
that holds the data: for each message it waits for its flag, and sends it over the NIC. A message is a slice
of Simple, a step of LL and LL128. It repeats the sender's primitives on that connection. The host thread of
its rank does its work, one message after the other: posting, later work per message, and with LL the check
of every line. Empty slices of a chunk are messages of 0 bytes: the thread's work after the last full slice.
It holds no SM; one CTA slot. If there are more than `MOST_PROGRAMS` at an endpoint, the connections of one
sending program share a proxy, which serves them in the sender's order.
**Not modelled**
The cost of polling connections without work; the receiver's messages in their order of arrival: their time
is that of the thread's sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusim.base.errors import ScheduleError
from clusim.base.records import dataclass
from clusim.lowering.hops import Proxied
from clusim.schedule.ir import (
    ABSENT,
    MOST_PROGRAMS,
    Instance,
    Prim,
    Schedule,
    Template,
)


@dataclass(frozen=True, slots=True)
class ProxiedConnection:
    """A connection between nodes: the schedule's, the image's two, and its path."""

    connection: int
    first: int
    second: int
    proxy: Proxied


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy instance, which forwards the data that `instance` sends on `links`."""

    instance: int
    links: tuple[ProxiedConnection, ...]
    template: Template


def plan_proxies(
    schedule: Schedule, links: dict[int, ProxiedConnection], room: Sequence[int]
) -> list[Proxy]:
    """Return the proxies of all connections between nodes, in order of the sending instances.

    `room` is the number of flows that each endpoint has left in addition to the schedule's programs.
    """
    if not links:
        return []
    sending = [_sends(template) for template in schedule.templates]
    by_instance: list[tuple[int, list[tuple[int, ProxiedConnection]]]] = []
    for index, instance in enumerate(schedule.instances):
        proxied = [
            (slot, links[instance.connections[slot]])
            for slot in sending[instance.template]
            if instance.connections[slot] in links
        ]
        if proxied:
            by_instance.append((index, proxied))
    single = [(index, [item]) for index, proxied in by_instance for item in proxied]
    if not _fits(schedule, single, room):
        single = [
            pair
            for index, proxied in by_instance
            for pair in _by_endpoint(index, proxied)
        ]
        if not _fits(schedule, single, room):
            raise ScheduleError(
                f"{schedule.name}: needs more than {MOST_PROGRAMS} programs and proxies on one endpoint;"
                " use fewer channels"
            )
    templates: dict[tuple[int, tuple[int, ...]], Template] = {}
    proxies = []
    for index, proxied in single:
        slots = tuple(slot for slot, _ in proxied)
        key = (schedule.instances[index].template, slots)
        if key not in templates:
            templates[key] = _forwarding(schedule.templates[key[0]], slots)
        proxies.append(
            Proxy(index, tuple(link for _, link in proxied), templates[key])
        )
    return proxies


def _sends(template: Template) -> list[int]:
    return sorted({prim.send for prim in template.prims if prim.send != ABSENT})


def _by_endpoint(
    index: int, proxied: Sequence[tuple[int, ProxiedConnection]]
) -> list[tuple[int, list[tuple[int, ProxiedConnection]]]]:
    result: dict[int, list[tuple[int, ProxiedConnection]]] = {}
    for item in proxied:
        result.setdefault(item[1].proxy.endpoint, []).append(item)
    return [(index, items) for items in result.values()]


def _fits(
    schedule: Schedule,
    proxies: Sequence[tuple[int, list[tuple[int, ProxiedConnection]]]],
    room: Sequence[int],
) -> bool:
    """Return True if the proxies of each call fit in addition to the programs."""
    count = Counter(
        (
            schedule.tasks[schedule.instances[index].task].call,
            proxied[0][1].proxy.endpoint,
        )
        for index, proxied in proxies
    )
    return all(number <= room[endpoint] for (_, endpoint), number in count.items())


def _forwarding(template: Template, slots: tuple[int, ...]) -> Template:
    """Return a proxy's program: sends of `template` on `slots`, as recv 2i and send 2i + 1."""
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


def whole_messages(item: Instance) -> Instance:
    """Return a sending program cut to messages: a slice of Simple, or a step of LL, LL128."""
    if item.protocol == "simple":
        return item
    return replace(
        item, slices=1, slots_per_slice=item.slices * item.slots_per_slice
    )


def largest_messages(
    schedule: Schedule,
    links: Mapping[int, ProxiedConnection],
    expand_120: Mapping[str, int],
) -> dict[int, int]:
    """Return the largest message [bytes on the wire] of every connection between nodes.

    `expand_120` is the size of 120 bytes of each protocol on the wire.
    """
    result: dict[int, int] = {}
    if not links:
        return result
    sending = [_sends(template) for template in schedule.templates]
    for item in schedule.instances:
        networked = [
            slot
            for slot in sending[item.template]
            if item.connections[slot] in links
        ]
        if not networked:
            continue
        _, size = slices_of(whole_messages(item), schedule.templates[item.template])
        size = size * expand_120[item.protocol] // 120
        for slot in networked:
            number = item.connections[slot]
            result[number] = max(result.get(number, 0), size)
    return result


def slices_of(item: Instance, template: Template) -> tuple[int, int]:
    """Return the largest chunk of a program, and its largest slice [bytes]."""
    parts = template.nchunks if template.mode == "interleaved" else 1
    chunk = min(item.chunk_bytes, -(-item.length // parts))
    size = min(chunk, max(-(-chunk // item.slices), item.slice_min))
    return chunk, size
