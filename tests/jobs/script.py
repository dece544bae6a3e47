"""The jobs of `cases.py` for `clusim torchrun`, with their times by its clock."""

import os
import sys
import time

import torch
import torch.distributed as dist

SIZE, WIDTH, BUCKETS = 32 << 20, 4096, 3
PARTS = [1 << 20, 4 << 20, 8 << 20, 16 << 20]

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
# A group that is bound to a device has one communicator for messages, too; others create one per pair.
pairs = "chain of pairs" in sys.argv
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=None if pairs else device)
rank, ranks = dist.get_rank(), dist.get_world_size()
second = dist.new_group(list(range(ranks)))
values = [torch.zeros(SIZE // 4, device="cuda") for _ in range(2)]
left, right = (torch.zeros(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2))


def calls(number):
    groups = [None, second][:number]
    return [
        dist.all_reduce(v, group=g, async_op=True) for v, g in zip(values, groups, strict=False)
    ]


def beside(number):
    works = calls(number)
    torch.mm(left, right)
    return works


def buckets():
    works = []
    for _ in range(BUCKETS):
        torch.mm(left, right)
        works += calls(1)
    return works


def chain():
    if rank > 0:
        dist.recv(values[0], rank - 1)
    if rank < ranks - 1:
        dist.send(values[0], rank + 1)
    return []


sent = [torch.zeros(PARTS[peer] // 4, device="cuda") for peer in range(ranks)]
received = [torch.zeros(PARTS[rank] // 4, device="cuda") for _ in range(ranks)]


def exchange():
    return [dist.all_to_all(received, sent, async_op=True)]


CASES = {
    "one call": lambda: calls(1),
    "two calls": lambda: calls(2),
    "a call beside a kernel": lambda: beside(1),
    "two calls beside a kernel": lambda: beside(2),
    "gradient buckets": buckets,
    "chain of messages": chain,
    "chain of pairs": chain,
    "uneven all-to-all": exchange,
}
for name in sys.argv[1:]:
    dist.barrier()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for work in CASES[name]():
        work.wait()
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    print(f"{name}: {rank}: {1e6 * took:.3f}", flush=True)
dist.destroy_process_group()
