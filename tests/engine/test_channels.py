"""The search for channels in a node, on small nodes whose result is known."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from clusim.engine.channels import NETS, Channels, attempt, ffi
from clusim.nccl.constants import Pattern

RING, NVL, PIX = 4, 1, 4
NOTHING = {"intra": 0.0, "inter": 0.0, "cross": 0, "pattern": RING, "num_channels": 0, "hops": 0}


def mesh(count: int, rate: float) -> dict[str, Any]:
    """Return GPUs of which each pair has a link in both directions [GB/s]; others are tried in ascending order."""
    pairs = list(permutations(range(count), 2))
    paths = np.full((count, count, 4), -1, np.int32)
    for number, (a, b) in enumerate(pairs):
        paths[a, b] = number, 1, NVL, 0
    return {
        **{"num_gpus": count, "num_nets": 0, "num_links": len(pairs), "has_switch": 0},
        **{"link_rates": np.full(len(pairs), rate), "paths": paths},
        "links": [(number, -1, 0) for number in range(len(pairs))],
        **{"nets": np.zeros(1, NETS), "starts": np.zeros((1, count))},
        **{"nets_first": np.zeros(count + 2), "nets_to_try": [0]},
        "choices_first": [gpu * (count - 1) for gpu in range(count + 1)],
        "choices": [(b, 0) for _, b in pairs],
    }


def rings(
    node: dict[str, Any], rate: float, most: int = 32, steps: int = 1 << 14, **conditions: Any
) -> tuple[Channels | None, int]:
    """Return rings of a rate, in any order for each."""
    wanted = {
        **{"intra": rate, "inter": rate, "peer_times": 6, "peer_over": 5, "pattern": RING},
        **{"type_intra": NVL, "type_inter": PIX, "same": 0, "cross": 0, "least": 1, "most": most},
        **{"collective": 0, "first_net_only": 1, "penalises_crossing": 0, "compares_heads": 1},
    }
    return attempt(node, {**wanted, **conditions}, NOTHING, steps)


@pytest.mark.parametrize(("count", "rate"), [(3, 1.0), (3, 2.0), (4, 1.0), (5, 1.0)])
def test_rings_use_every_link_of_a_mesh(count: int, rate: float) -> None:
    """A ring uses one link from each GPU, of which each has n - 1: at most (n - 1) x rate rings of 1 GB/s.

    A complete directed graph is a union of Hamiltonian cycles, except for 4 GPUs (Tillson 1980): there 2 rings remain.
    """
    found, _ = rings(mesh(count, rate), 1.0)
    assert found is not None
    assert len(found.orders) == (2 if count == 4 else (count - 1) * rate)
    assert found.hops == len(found.orders) * count
    used = {}
    for order in found.orders:
        assert sorted(order) == list(range(count))
        for pair in zip(order, (*order[1:], order[0]), strict=True):
            used[pair] = used.get(pair, 0) + 1
    assert max(used.values()) <= rate


def test_rates_of_a_tenth_do_not_drift() -> None:
    found, left = rings(mesh(2, 1.0), 0.1, most=10)
    assert found is not None
    assert len(found.orders) == 10
    assert left == -1
    assert rings(mesh(2, 0.999), 0.1, most=10)[1] != -1


def test_all_channels_have_the_order_of_the_first() -> None:
    found, _ = rings(mesh(5, 2.0), 1.0, same=1)
    assert found is not None
    assert found.orders == ((0, 1, 2, 3, 4),) * 2


def test_an_attempt_ends_with_its_steps() -> None:
    assert rings(mesh(4, 1.0), 1.0, steps=4) == (None, 0)  # the fifth step completes a ring
    found, left = rings(mesh(4, 1.0), 1.0, steps=5)
    assert found is not None
    assert (len(found.orders), left) == (1, 0)


def test_paths_of_a_longer_type_are_not_used() -> None:
    node = mesh(3, 1.0)
    node["paths"][:, :, 2] = PIX
    assert rings(node, 1.0)[0] is None
    assert rings(node, 1.0, type_intra=PIX)[0] is not None


def test_enough_channels_end_the_search_at_once() -> None:
    found, left = rings(mesh(3, 4.0), 1.0, most=2)
    assert found is not None
    assert (len(found.orders), left) == (2, -1)


def test_patterns_have_the_numbers_of_the_header() -> None:
    header = ffi.typeof("enum clusim_channels_pattern").relements
    assert header == {f"CLUSIM_CHANNELS_{pattern.name}": pattern for pattern in Pattern}
    assert ffi.sizeof("clusim_channels_net") == NETS.itemsize
