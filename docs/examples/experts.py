"""Training of a layer of experts with uneven all-to-all exchanges: an ordinary PyTorch program.

Routing is drawn on the host with a skewed distribution, as benchmarks of expert parallelism do. With GPUs:
``torchrun --nproc-per-node 8 experts.py``. Without: ``clusim torchrun experts.py``.
"""

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

WIDTH, TOKENS, STEPS = 4096, 4096, 3


class Exchange(torch.autograd.Function):
    """All-to-all with numbers of rows per rank; its backward pass returns them."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, received: list[int], sent: list[int]) -> Any:
        """Return the received rows."""
        context.rows = sent, received
        result = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(result, x, received, sent)
        return result

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient of the sent rows."""
        return Exchange.apply(gradient.contiguous(), *context.rows), None, None


def main() -> None:
    """Train for a few steps."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, experts = dist.get_rank(), dist.get_world_size()
    sizes = (WIDTH, WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)
    dense, up, down = (nn.Linear(*size, device=device, dtype=torch.bfloat16) for size in sizes)
    optimizer = torch.optim.AdamW([*dense.parameters(), *up.parameters(), *down.parameters()])
    popularity = 1.0 / torch.arange(1, experts + 1)  # of Zipf
    generator = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        began = time.perf_counter()
        chosen = torch.multinomial(popularity, TOKENS, replacement=True, generator=generator)
        counts = torch.bincount(chosen, minlength=experts).to(device)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        sent_rows, received_rows = counts.tolist(), received.tolist()
        x = dense(torch.randn(TOKENS, WIDTH, device=device, dtype=torch.bfloat16))
        tokens = x.index_select(0, chosen.argsort().to(device))
        there = Exchange.apply(tokens, received_rows, sent_rows)
        there = down(functional.gelu(up(there)))
        back = Exchange.apply(there, sent_rows, received_rows)
        back.float().square().mean().backward()
        for parameter in dense.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if rank == 0:
            rows = f"{sum(received_rows)} tokens for expert 0"
            print(f"step {step}: {1e3 * (time.perf_counter() - began):.2f} ms, {rows}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
