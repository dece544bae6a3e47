"""The error that runs in bursts of `auto` publish holds where the largest was found, against exact packets."""

from __future__ import annotations

import clusim


def test_bursts_of_auto_are_within_the_error_they_publish() -> None:
    fabric = clusim.load("rtx3090x8-edr56")
    auto, exact = (
        clusim.collective(fabric, "allreduce", "32MiB", algorithm="ring", granularity=grain)
        for grain in ("auto", "packet")
    )
    bound = auto.provenance.error_bound
    assert bound, "the run is exact: take a larger one"
    assert exact.provenance.error_bound == 0
    assert abs(auto.time_ps / exact.time_ps - 1) <= bound
