"""CUDA graphs: a replay has the operations of the capture and one launch of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.hardware import FRAMEWORKS
from clusim.programs.clock import IssueTimes
from clusim.topology import load
from clusim.workload.host import pace_of
from support.torch_programs import calls, needs_torch, result

needs_torch()

GRAPHS = """
dist.init_process_group("nccl")
model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(20)]).cuda()
x, count = torch.ones(64, 256, device="cuda"), torch.zeros(1, device="cuda")
side = torch.cuda.Stream()
def run():
    y = model(x)
    dist.all_reduce(y)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        count.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    return y
def timed(function):
    torch.cuda.synchronize()
    began = time.perf_counter()
    function()
    issued = time.perf_counter()
    torch.cuda.synchronize()
    print(1e6 * (issued - began), 1e6 * (time.perf_counter() - began))
with torch.no_grad():
    timed(run)
    print(count.item())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        run()
    timed(graph.replay)
    print(count.item())
inputs = [torch.randn(64, 256, device="cuda", requires_grad=True) for _ in range(2)]
graphed = torch.cuda.make_graphed_callables(nn.Sigmoid(), (inputs[0],))
timed(lambda: graphed(inputs[1]).sum().backward())
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()
except RuntimeError as error:
    print(error)
"""


def test_a_replay_costs_one_launch_and_the_time_of_its_kernels(tmp_path: Path) -> None:
    done, lines = result(tmp_path, GRAPHS)
    eager, known, graph, unknown, callables, error = lines
    times = IssueTimes.of(FRAMEWORKS["pytorch"], pace_of(load("dgx-h100")))
    issued_us, total_us = map(float, graph.split())
    assert issued_us == pytest.approx(times.operator_ps / 1e6)
    # The capture itself ran no kernel: 40 products in two runs, and two reductions.
    kernels = {k["operator"]: k for k in done["kernels"]}
    assert (kernels["mm"]["count"], calls(done)["allreduce", 8][0]) == (2 * 20, 2)
    reduce_us = next(c["time_us"] for c in done["calls"]) / 2
    each = {name: kernels[name]["time_us"] / kernels[name]["count"] for name in ("mm", "add_")}
    work_us = 20 * each["mm"] + each["add_"] + reduce_us
    assert total_us == pytest.approx(issued_us + work_us, abs=0.1)
    # Eagerly, the host issues 20 operators and their views.
    assert float(eager.split()[0]) > 20 * issued_us
    # The sum of the eager run is known; that of a replay is not.
    assert (known, unknown, done["placeholders"]) == ("1.0", "1.0", 1)
    assert kernels["sigmoid"]["count"] == 3 + 1
    assert float(callables.split()[1]) > 0
    assert error == "CUDA error: operation not permitted when stream is capturing"
