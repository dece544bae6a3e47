"""A fabric of one's own: four H100 on one small switch, and what a ring all-reduce reaches on it."""

import clusim

net = clusim.FabricBuilder("four-on-one", channels={"default": 8})
net.gpu("gpu0..3", chip="h100-sxm5")
net.switch("switch0", latency="110ns")
net.link("gpu0..3", "switch0", count=4, type="nvlink4")
fabric = net.build()

schedule = clusim.collectives.build(fabric, "allreduce", "ring", 16 << 20)
result = clusim.simulate(fabric, schedule)
print(f"{result.time_ps / 1e6:.1f} us, {result.busbw_GBps:.1f} GB/s of bus bandwidth")
print(f"the four links of a GPU together: {4 * 25} GB/s")
