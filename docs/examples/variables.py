"""Tasks whose order follows from the variables that they read and mutate."""

import clusim
from clusim.collectives import ScheduleBuilder

fabric = clusim.load("dgx-a100")
builder = ScheduleBuilder(fabric)


def add(name, read, mutate):
    builder.push(
        lambda after: builder.kernel(0, compute_ps=10**7, stream=name, name=name, after=after),
        read=read,
        mutate=mutate,
    )


add("A = 2", [], ["A"])
add("B = A + 1", ["A"], ["B"])
add("C = A + 2", ["A"], ["C"])  # beside B
add("A = C * 2", ["C"], ["A"])  # after B, which reads the A before

ranks = range(fabric.num_ranks)
for rank in ranks:  # names by rank are variables of a rank
    builder.push(
        lambda after, rank=rank: builder.kernel(
            rank, compute_ps=10**8, name="backward", after=after
        ),
        mutate={rank: ["gradient"]},
    )
builder.push(
    lambda after: builder.collective("allreduce", 4 << 20, after=after.by_rank),
    mutate={rank: ["gradient"] for rank in ranks},
)
tasks = clusim.simulate(fabric, builder.build()).tasks
for name, start, end in list(zip(tasks.names, tasks.start_ps, tasks.end_ps, strict=True))[:4]:
    print(f"{name:10} from {start / 1e6:.0f} us, to {end / 1e6:.0f} us")
