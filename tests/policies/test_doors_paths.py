"""Path policies of commands: which switches have them."""

from __future__ import annotations

from pathlib import Path

import pytest

import clusim
from clusim.base.errors import InputError

FIRST = """
import clusim


@clusim.policy
class First:
    def choose(self, now_ps, size_bytes, key, flow, draw, wires):
        return 0
"""


def time_ps(system: str, routing: str, policy: str = "") -> int:
    options = {"pattern": "permutation", "message": "1MiB", "routing": routing}
    return clusim.traffic(system, **options, policy=policy).time_ps  # type: ignore[arg-type]


def test_all_switches_of_a_network_of_hosts_have_the_policy(tmp_path: Path) -> None:
    """By the emptiest queue it equals adaptive routing; to the first wire all packets share one core switch."""
    path = tmp_path / "first.py"
    path.write_text(FIRST, encoding="utf-8")
    adaptive = time_ps("fat-tree:k=4", "adaptive")
    assert time_ps("fat-tree:k=4", "adaptive", "path=adaptive-policy") == adaptive
    assert time_ps("fat-tree:k=4", "adaptive", f"path={path}:First") > 2 * adaptive


def test_a_node_without_a_network_is_an_error() -> None:
    with pytest.raises(InputError, match="policy path: dgx-h100 lacks switches between nodes"):
        time_ps("dgx-h100", "auto", "path=adaptive-policy")
