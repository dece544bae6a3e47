"""Training of a transformer in pipeline stages, each replicated by data parallelism: an ordinary PyTorch program.

With GPUs: ``torchrun --nproc-per-node 8 pipeline.py``. Without: ``clusim torchrun pipeline.py``.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

WIDTH, HEADS, LAYERS, VOCABULARY, SEQUENCE, BATCH = 2048, 16, 8, 32000, 1024, 16
STAGES, MICROBATCHES, STEPS = 4, 8, 3


def main() -> None:
    """Train for a few steps."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    mesh = init_device_mesh(
        "cuda", (STAGES, dist.get_world_size() // STAGES), mesh_dim_names=("stage", "data")
    )
    stage = mesh.get_local_rank("stage")
    first, last = stage == 0, stage == STAGES - 1
    layers: list[nn.Module] = [
        nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        for _ in range(LAYERS // STAGES)
    ]
    if first:
        layers.insert(0, nn.Embedding(VOCABULARY, WIDTH))
    if last:
        layers.append(nn.Linear(WIDTH, VOCABULARY))
    model = nn.Sequential(*layers).to(device, torch.bfloat16)

    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())

    pipeline = Schedule1F1B(
        PipelineStage(model, stage, STAGES, device, group=mesh.get_group("stage")),
        MICROBATCHES,
        loss_fn=loss,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        began = time.perf_counter()
        tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), device=device)
        pipeline.step(*((tokens,) if first else ()), **({"target": tokens} if last else {}))
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=mesh.get_group("data"))
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            print(f"step {step}: {1e3 * (time.perf_counter() - began):.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
