"""Models: their layers, parameters, operations, memory traffic and activations."""

from __future__ import annotations

from clusim.workload.models.huggingface import from_config, read_config
from clusim.workload.models.presets import MODELS, Dlrm, Model, Recurrent, find_model
from clusim.workload.models.transformer import Transformer
from clusim.workload.models.transformer_sizes import Latent
from clusim.workload.models.vision import Perceptron, ResNet

__all__ = [
    "MODELS",
    "Dlrm",
    "Latent",
    "Model",
    "Perceptron",
    "Recurrent",
    "ResNet",
    "Transformer",
    "find_model",
    "from_config",
    "read_config",
]
