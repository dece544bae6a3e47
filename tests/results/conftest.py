from __future__ import annotations

import pytest

from clusim.topology import Endpoint, Fabric, Format, Link, Node


@pytest.fixture
def fabric() -> Fabric:
    """Four GPUs, two links each to both of two switches."""
    gpus = [Node(f"gpu{i}", "gpu", endpoint=Endpoint()) for i in range(4)]
    switches = [Node(f"sw{i}", "switch") for i in range(2)]
    links = [Link(gpu.name, switch.name, count=2) for gpu in gpus for switch in switches]
    return Fabric("toy", (*gpus, *switches), tuple(links), {"nvlink": Format("nvlink")})
