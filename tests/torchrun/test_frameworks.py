"""Training loops of five frameworks, unmodified: their collectives by arithmetic.

Each test is skipped without its package. Sizes are of all steps; a gathered or scattered tensor counts complete.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.torch_programs import calls, needs_torch, result
from support.warm_torch import clusim

needs_torch()

STEPS = 3
GPUS = "--nproc-per-node", "4"


def needs(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"could not import '{package}'")


def sums(done: dict[str, Any], operation: str) -> int:
    """Return the bytes of an operation among the four ranks."""
    return calls(done)[operation, 4][1]


TRAINER = """
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, at):
        x = torch.randint(0, 1000, (64,))
        return dict(input_ids=x, labels=x.clone())
config = LlamaConfig(
    vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
)
arguments = TrainingArguments(
    "out", per_device_train_batch_size=8, max_steps=3, bf16=True, report_to=[], save_strategy="no"
)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens()).train()
"""


def test_the_trainer_of_transformers_reduces_gradients_and_maps_of_used_parameters(
    tmp_path: Path,
) -> None:
    """Two layers of Llama, gradients in 32 bits; its DDP looks for unused ones among the 21 parameters."""
    needs("transformers")
    done, _ = result(tmp_path, TRAINER, *GPUS)
    layer = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
    gradients = 2 * layer + 2 * 1000 * 64 + 64
    assert calls(done)["allreduce", 4] == (2 * STEPS, STEPS * 4 * (gradients + 2 * 9 + 3))


BLOCKS = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))
model = nn.Sequential(Block(), Block())
"""

BLOCK = 64 * 128 + 128 + 128 * 64 + 64

ACCELERATE = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader, TensorDataset
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
loader = DataLoader(TensorDataset(torch.randn(256, 64)), batch_size=4)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, (x,) in zip(range(3), loader):
    accelerator.backward(model(x).float().sum())
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_accelerate_gathers_blocks_for_both_passes_and_reduces_the_norms_of_shards(
    tmp_path: Path,
) -> None:
    """16-bit gathers and gradients; eight 32-bit norms of parameters, partial sums of the shards."""
    needs("accelerate")
    done, _ = result(tmp_path, BLOCKS + ACCELERATE, *GPUS)
    assert calls(done)["all_gather", 4] == (STEPS * 2 * 2, STEPS * 2 * 2 * 2 * BLOCK)
    assert calls(done)["reduce_scatter", 4] == (STEPS * 2, STEPS * 2 * 2 * BLOCK)
    assert calls(done)["allreduce", 4] == (STEPS, STEPS * 8 * 4)


DEEPSPEED = """
import deepspeed
config = dict(
    train_micro_batch_size_per_gpu=4, zero_optimization=dict(stage=3), bf16=dict(enabled=True),
    optimizer=dict(type="AdamW", params=dict(torch_adam=True)),
)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(3):
    x = torch.randn(4, 64, device=engine.device, dtype=torch.bfloat16)
    engine.backward(engine(x).float().pow(2).mean())
    engine.step()
"""


def test_deepspeed_gathers_weights_for_both_passes_and_scatters_gradients(tmp_path: Path) -> None:
    """ZeRO 3 in 16 bits."""
    needs("deepspeed")
    done, _ = result(tmp_path, BLOCKS + DEEPSPEED, *GPUS)
    assert sums(done, "all_gather") == STEPS * 2 * 2 * 2 * BLOCK
    assert sums(done, "reduce_scatter") == STEPS * 2 * 2 * BLOCK


LIGHTNING = """
import lightning
from torch.utils.data import DataLoader, TensorDataset
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 32)
    def training_step(self, batch, number):
        return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(256, 64)), batch_size=8)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
lightning.Trainer(accelerator="gpu", devices=4, strategy="ddp", max_steps=3, **quiet).fit(Module(), loader)
"""


def test_lightning_reduces_gradients_once_per_step(tmp_path: Path) -> None:
    """Its barriers and decisions to stop are further reductions of at most eight bytes."""
    needs("lightning")
    done, _ = result(tmp_path, LIGHTNING, *GPUS)
    count, size = calls(done)["allreduce", 4]
    gradients = STEPS * 4 * (64 * 32 + 32)
    assert 0 <= size - gradients <= 8 * (count - STEPS)


def _assets(folder: Path) -> None:
    """Write a tokenizer of single characters, and a text."""
    (folder / "tokenizer").mkdir(parents=True)
    names = [*map(chr, range(32, 127)), "<s>", "</s>"]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": names.index(name), "content": name, "special": True, **special}
        for name in names[-2:]
    ]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    for name, data in {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"},
    }.items():
        (folder / "tokenizer" / name).write_text(json.dumps(data), encoding="utf-8")
    (folder / "c4_test").mkdir()
    line = json.dumps({"text": "a line of text " * 200})
    (folder / "c4_test" / "data.json").write_text(64 * f"{line}\n", encoding="utf-8")


def test_the_program_of_torchtitan_shards_its_llama(tmp_path: Path) -> None:
    """16-bit gathers, of layers and the embedding for both passes, of norm and output once; 32-bit gradients."""
    needs("torchtitan")
    _assets(tmp_path / "tests" / "assets")
    options = {
        **{"model.name": "llama3", "model.flavor": "debugmodel"},
        **{"model.hf_assets_path": "tests/assets/tokenizer", "training.dataset": "c4_test"},
        **{"training.steps": STEPS, "training.seq_len": 128, "training.local_batch_size": 2},
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words = ["--json", "--compare", "off", *GPUS, "-m", "torchtitan.train", *words]
    run = clusim("torchrun", *words, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    done = json.loads(run.stdout.splitlines()[-1])
    width, hidden = 256, 768
    layer = 4 * width * width + 3 * width * hidden + 2 * width
    embedding, ends = 2048 * width, 2048 * width + width
    assert sums(done, "reduce_scatter") == STEPS * 4 * (6 * layer + embedding + ends)
    assert sums(done, "all_gather") == STEPS * 2 * (2 * 6 * layer + 2 * embedding + ends)
