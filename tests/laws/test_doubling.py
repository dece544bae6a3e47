"""Twice the bytes take twice the increment where the plan stays: a pipeline that is full moves bytes at one rate.

The time of S, 2 S and 4 S bytes is a start and the bytes over a rate, so that 4 S less 2 S is twice 2 S less S. Two
systems always, all with CLUSIM_THOROUGH=1.
"""

from __future__ import annotations

from itertools import product

import pytest

from clusim.base.terms.operations import Collective
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from support.covering import THOROUGH

MIB = 1 << 20
SIZES = (256 * MIB, 512 * MIB, 1024 * MIB)
FEW = [
    ("gh200x4-mesh", 1, Collective.ALLREDUCE),
    ("dgx-a100", 2, Collective.BROADCAST),
]
SYSTEMS = (
    *("a100x4-mesh", "alps-gh200", "aws-p4d", "aws-p5", "aws-p6-b200", "azure-ndv4", "azure-ndv5"),
    *("dgx-1v", "dgx-2", "dgx-a100", "dgx-h100", "dgx-h200", "gcp-a3-mega", "gcp-a4"),
    *("gh200x4-mesh", "hgx-b200", "hgx-b300", "hgx-h100-ndr", "mi300x", "polaris"),
)
OPERATIONS = (
    *(Collective.ALLREDUCE, Collective.ALLGATHER, Collective.REDUCESCATTER, Collective.BROADCAST),
)
GRANULARITY = 8192 if THOROUGH else 32768
CASES = list(product(SYSTEMS, (1, 2), OPERATIONS)) if THOROUGH else FEW
NOISE = 0.05
"""Relative difference of the increments, by bursts and by the order of packets."""


@pytest.mark.parametrize(("system", "nodes", "collective"), CASES)
def test_increments_double_where_the_plan_stays(
    system: str, nodes: int, collective: Collective
) -> None:
    setup = Setup(system, nodes=nodes)
    plans = [setup.comm.plan(collective, size) for size in SIZES]
    if len({(p.selection.algorithm, p.selection.protocol, p.num_channels) for p in plans}) > 1:
        pytest.skip("the plan changes")
    requests = [
        Request(setup, collective.operation, size, granularity=GRANULARITY) for size in SIZES
    ]
    jobs = [job_of(request, RunOptions()) for request in requests]
    one, two, four = (run_job(job, RunOptions()).time_ps for job in jobs)
    assert one < two < four
    assert four - two == pytest.approx(2 * (two - one), rel=NOISE)
