"""Report of a program as text."""

from __future__ import annotations

from collections import Counter

from clusim.programs.clock import Totals
from clusim.programs.report import run_of
from clusim.programs.step import RankResult

MS = 10**9


def test_the_report_names_step_communication_kernels_and_assumptions() -> None:
    call = ("allreduce", 16)
    totals = Totals(
        Counter(mm=12 * MS, sort=3 * MS),
        Counter(mm=3, sort=3),
        *(Counter({call: 3}), Counter({call: 3 << 20}), Counter({call: 6 * MS})),
        placeholders=Counter({"train.py:9": 2}),
        unused={"own::scan": "train.py:3"},
        eager=["train.py:5"],
        unpriced_ps=Counter(sort=3 * MS),
        unpriced_at={"sort": "train.py:7"},
    )
    results = {0: RankResult(totals, [20 * MS, 9 * MS], 30 * MS, 5 << 30)}
    run = run_of("dgx-h100:nodes=2", [0] * 16, results)
    run.memory_bytes = 80 << 30
    run.overlaps = ["overlaps of calls of several communicators: 2 simulated together"]
    assert run.report() == GOLDEN.strip("\n")
    assert run.to_json()["step_us"] == 9000
    assert run.unmeasured == 0.2


def test_ranks_that_ran_are_listed_with_the_number_that_they_represent() -> None:
    totals = Totals(
        *(Counter(mm=2 * MS), Counter(mm=1)),
        *(Counter({("send", 2): 3, ("recv", 2): 1, ("allreduce", 4): 7}),) * 2,
        Counter(),
    )
    results = {rank: RankResult(totals, [], 5 * MS, 1 << 20) for rank in (0, 4)}
    lines = run_of("dgx-h100", [0] * 4 + [4] * 4, results).report().splitlines()
    assert lines[0] == "8 ranks on dgx-h100; ranks 0, 4 represent all"
    at = lines.index("other ranks")
    assert lines[at + 1].split() == ["rank", "represents", "time", "kernels", "memory", "messages"]
    assert lines[at + 2].split() == ["4", "4", "5", "ms", "2", "ms", "1", "MiB", "4"]


GOLDEN = """
16 ranks on dgx-h100:nodes=2; rank 0 represents all

  time    30 ms of virtual time
  step    9 ms, median of 1 after the first, 20 ms
          eager: torch.compile is not simulated
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
    train.py:9
  * 20.0% of the kernel time is priced by memory traffic only, which is too low; clusim.torch.annotate sets other times
    sort: train.py:7
  torch.compile runs eagerly: kernels and launches are those of eager PyTorch
    train.py:5
  annotations without effect: these operators were not called
    train.py:3: own::scan
  overlaps of calls of several communicators: 2 simulated together
"""
