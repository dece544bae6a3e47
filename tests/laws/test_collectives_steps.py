"""How many messages follow each other: what a collective costs when only latency counts.

Derivations, for n ranks; `up(log2 n)` is the least k with 2**k >= n. A message follows another one if its sender had to
receive that one first. What a switch does (reduce, multicast, aggregate) counts as a message, what a rank tells itself
as none.

- ring: a chunk passes n - 1 hops until it holds the sum of all, and n - 1 more until all have it; a reduce-scatter or
  all-gather is one of these halves. A chain (broadcast, reduce) passes the n - 1 hops from one end to the other.
- tree: binary, so its depth is up(log2 n); all-reduce goes up and down again.
- butterfly: the core of 2**floor(log2 n) ranks halves log2 times and doubles as often; ranks beyond the core hand their
  data in first and get the result last, two more.
- direct exchange: nobody waits for what it sends, so one message, however many peers. Two-shot: every rank must have
  its part of all others before it can send the sum, so two. One-shot sends everything at once, so one.
- driver: one message in, one out. naive: a rank does one thing at a time, a round after the other: n - 1.
- hierarchical: one into the part's owner, a ring over the m machines (2(m - 1)), one out of it.
- sharp: one to the head, one by the network's switches, one back; by the switches of the machines both ends are two:
  flags, and the sum or the multicast.
- nvls: flags, one operation of the switch, flags; gathers have no flags before, and reduce-scatters none after it.
- multimem: barrier, one operation of the switch, barrier.
- loads: barrier, request, data, barrier; the pulled two-shot does the first three twice and has no barrier
  at the end; stores of ld-st fly beside the last barrier, and so do those of an all-gather, which asks for nothing.
- dissemination barrier: after k rounds a rank has heard of 2**k ranks, so up(log2 n).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import clusim
from clusim.collectives import build
from clusim.collectives.api import REGISTRY
from support.collective_laws import fitting, machine, run, sequential_steps

RANKS = (2, 3, 4, 5, 6, 7, 8, 9, 16, 32)


def up(n: int) -> int:
    """Return the least k with 2**k >= n."""
    return (n - 1).bit_length()


def hierarchical(n: int) -> int:
    """Return the steps on two machines for even n; without a fabric an odd number is n machines of one rank."""
    machines, inside = (2, n // 2) if n % 2 == 0 else (n, 1)
    return 2 * (machines - 1) + (2 if inside > 1 else 0)


LAWS: dict[tuple[str, str], Callable[[int], int]] = {
    ("allreduce", "ring"): lambda n: 2 * (n - 1),
    ("allreduce", "tree"): lambda n: 2 * up(n),
    ("allreduce", "oneshot"): lambda n: 1,
    ("allreduce", "twoshot"): lambda n: 2,
    ("allreduce", "oneshot-ll"): lambda n: 1,
    ("allreduce", "twoshot-ll"): lambda n: 2,
    ("allreduce", "oneshot-lamport"): lambda n: 1,
    ("allreduce", "oneshot-pull"): lambda n: 4,
    ("allreduce", "twoshot-pull"): lambda n: 6,
    ("allreduce", "ld-st"): lambda n: 4,
    ("allreduce", "multimem"): lambda n: 3,
    ("allreduce", "butterfly"): lambda n: 2 * up(n),
    ("allreduce", "nvls"): lambda n: 3,
    ("allreduce", "hierarchical"): hierarchical,
    ("allreduce", "sharp"): lambda n: 3 if n % 2 == 0 and n > 2 else 1,
    ("allreduce", "naive"): lambda n: n - 1,
    ("allreduce", "driver"): lambda n: 2,
    ("reduce_scatter", "ring"): lambda n: n - 1,
    ("reduce_scatter", "nvls"): lambda n: 2,
    ("reduce_scatter", "direct"): lambda n: 1,
    ("reduce_scatter", "ll"): lambda n: 1,
    ("reduce_scatter", "multimem"): lambda n: 3,
    ("reduce_scatter", "ld"): lambda n: 4,
    ("all_gather", "ring"): lambda n: n - 1,
    ("all_gather", "nvls"): lambda n: 2,
    ("all_gather", "direct"): lambda n: 1,
    ("all_gather", "ll"): lambda n: 1,
    ("all_gather", "multimem"): lambda n: 3,
    ("all_gather", "st"): lambda n: 2,
    ("all_gather", "copy-engines"): lambda n: 2,
    ("broadcast", "ring"): lambda n: n - 1,
    ("broadcast", "tree"): up,
    ("reduce", "ring"): lambda n: n - 1,
    ("reduce", "tree"): up,
    ("gather", "direct"): lambda n: 1,
    ("scatter", "direct"): lambda n: 1,
    ("alltoall", "direct"): lambda n: 1,
    ("alltoall", "copy-engines"): lambda n: 2,
    ("sendrecv", "direct"): lambda n: 1,
    ("sendrecv", "copy-engines"): lambda n: 1,
    ("send", "direct"): lambda n: 1,
    ("send", "put"): lambda n: 1,
    ("barrier", "dissemination"): up,
}
"""Messages in sequence. 2 log2 of the core, and 2 for ranks beyond it, is 2 up(log2 n) for every n."""

IN_SWITCH = ("nvls", "multimem", "sharp")

ONE_FLIGHT = ("oneshot-ll", "twoshot-ll", "ll", "oneshot-lamport", "oneshot-pull")
ONE_FLIGHT += ("twoshot-pull", "ld-st", "ld", "st", "copy-engines")
"""Their flags are in the data, or have none behind them."""


def smallest(pair: tuple[str, str], n: int) -> int:
    """Return a size with data in every part of it, one piece each [bytes]."""
    return 0 if pair[0] == "barrier" else 64 * n


def test_every_algorithm_has_a_law_of_its_steps() -> None:
    assert set(LAWS) == set(REGISTRY)


@pytest.mark.parametrize("pair", list(REGISTRY), ids="/".join)
def test_messages_in_sequence_grow_with_the_ranks_as_derived(pair: tuple[str, str]) -> None:
    for n in fitting(pair, *RANKS):
        schedule = build(n, *pair, smallest(pair, n), channels=1)
        assert sequential_steps(schedule) == LAWS[pair](n), n


@pytest.mark.parametrize("pair", list(REGISTRY), ids="/".join)
def test_channels_and_protocols_add_no_step(pair: tuple[str, str]) -> None:
    """Channels work side by side, and LL and LL128 have the same messages; 16 bytes a part and channel."""
    for n in fitting(pair, 2, 5, 8):
        for protocol in REGISTRY[pair].protocols or ("simple", "ll", "ll128"):
            size = 5 * smallest(pair, n)
            schedule = build(n, *pair, size, channels=5, protocol=protocol)
            assert sequential_steps(schedule) == LAWS[pair](n), (n, protocol)


@pytest.mark.parametrize("machines", [2, 3, 4])
def test_rings_of_the_hierarchy_grow_with_the_machines_only(machines: int) -> None:
    """A direct exchange on either side of a ring of m machines: 1 + 2(m - 1) + 1."""
    schedule = build(machine("dgx-a100", machines), "allreduce", "hierarchical", 1024, channels=1)
    assert sequential_steps(schedule) == 2 * machines


@pytest.mark.parametrize("machines", [2, 4])
def test_switches_need_the_same_steps_for_any_number_of_machines(machines: int) -> None:
    """Flags, sum by the machine's switches, aggregation by the network's, multicast, flags: 5."""
    schedule = build(machine("dgx-h100", machines), "allreduce", "sharp", 4096, channels=1)
    assert sequential_steps(schedule) == 5


TIMED = [pair for pair in REGISTRY if pair[1] not in IN_SWITCH and pair[0] != "barrier"]


@pytest.mark.parametrize("n", [2, 8, 16])
def test_with_nothing_but_latency_time_counts_the_steps(n: int) -> None:
    """Links of 100 us make a small message's bytes free, so a collective lasts its steps times one message's time."""
    star = (f"star:{n},latency=100us", 1)
    one_ps = {}
    for protocol in ("simple", "ll"):
        # With Simple a flag follows the data, so a message is two flights; with LL it is one.
        message = build(machine(*star), "send", "direct", 64, ranks=(0, 1), protocol=protocol)
        one_ps[protocol] = clusim.simulate(machine(*star), message).time_ps
    assert one_ps["simple"] == pytest.approx(2 * one_ps["ll"], rel=0.01)
    for operation, algorithm in TIMED:
        if operation == "send" and n > 2:
            continue
        found_ps = run(star, operation, algorithm, 64 * n, channels=1).time_ps
        # A message around the ring is a put, whose arrival follows its data.
        is_single = algorithm in ONE_FLIGHT and operation != "sendrecv"
        unit_ps = one_ps["ll" if is_single else "simple"]
        # On a fabric of one machine the hierarchy has no ring between its two exchanges.
        wanted = 2 if algorithm == "hierarchical" else LAWS[operation, algorithm](n)
        assert found_ps / unit_ps == pytest.approx(wanted, rel=0.01), (operation, algorithm)
