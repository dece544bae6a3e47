"""Report of a program as text."""

from __future__ import annotations

from clusim.programs.clock import IssuedCall, IssueTimes, RankClock
from clusim.programs.report import run_of
from clusim.programs.step import StepTime

MS = 10**9


def test_the_report_names_step_communication_kernels_and_assumptions() -> None:
    clock = RankClock(0, lambda call: 2 * MS, IssueTimes(0, 0, 0))
    for _ in range(3):
        clock.kernel(0, "mm", 4 * MS)
        clock.kernel(0, "sort", 1 * MS, priced=False)
        clock.call(0, IssuedCall("allreduce", 1 << 20, tuple(range(16))))
    clock.totals.placeholders = 2
    steps = [(20 * MS, StepTime(20 * MS, 20 * MS)), (9 * MS, StepTime(8 * MS, 9 * MS, whole=True))]
    run = run_of("dgx-h100:nodes=2", 16, 0, clock.totals, steps)
    run.time_ps, run.peak_bytes, run.memory_bytes = 30 * MS, 5 << 30, 80 << 30
    assert run.report() == GOLDEN.strip("\n")
    assert run.to_json()["step_us"] == 9000
    assert run.unmeasured == 0.2


GOLDEN = """
16 ranks on dgx-h100:nodes=2; rank 0 represents all

  time    30 ms of virtual time
  step    9 ms, median of 1 after the first, 20 ms
          1 ms due to shared SMs and wires
  memory  5 GiB at the peak of 80 GiB

communication
  operation  ranks  calls  bytes  time alone
  allreduce     16      3  3 MiB        6 ms

kernels
  operator  kernels   time  share
  mm              3  12 ms  80.0%
  sort *          3   3 ms  20.0%

notes
  2 values were read that are not simulated: 1.0, 1 or False in their place
  * 20.0% of the kernel time is priced by memory traffic only, which is too low
"""
