"""A step of one's own: three layers, whose gradients are reduced on a second stream while earlier layers compute."""

import clusim
from clusim.collectives import ScheduleBuilder

LAYERS, GRADIENT_BYTES = 3, 64 << 20

fabric = clusim.load("dgx-a100")
ranks = range(fabric.num_ranks)
step = ScheduleBuilder(fabric, "my step")
for layer in range(LAYERS):
    for rank in ranks:
        step.kernel(rank, compute_ps=300_000_000, hbm_bytes=200 << 20, name=f"forward {layer}")
reduced = []
for layer in reversed(range(LAYERS)):
    done = {
        rank: [
            step.kernel(rank, compute_ps=600_000_000, hbm_bytes=400 << 20, name=f"backward {layer}")
        ]
        for rank in ranks
    }
    reduced.append(step.collective("allreduce", GRADIENT_BYTES, stream="gradients", after=done))
for rank in ranks:
    step.wait(rank, [tasks[rank] for tasks in reduced])
    step.kernel(rank, compute_ps=1, hbm_bytes=1 << 30, name="optimizer")

result = clusim.simulate(fabric, step.build())
tasks = result.tasks
for index, name in list(enumerate(tasks.names))[:: fabric.num_ranks]:
    print(f"{tasks.start_ps[index] / 1e6:7.0f} us, {tasks.end_ps[index] / 1e6:7.0f} us  {name}")
