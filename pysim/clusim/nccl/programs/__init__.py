"""NCCL's plans as programs that an engine can run."""

from clusim.nccl.graph import CollectivePayload
from clusim.nccl.programs.api import build, emit
from clusim.nccl.programs.context import FILLS, filling_bytes
from clusim.nccl.programs.message_shapes import message_class
from clusim.nccl.programs.messages import emit_messages

__all__ = [
    "FILLS",
    "CollectivePayload",
    "build",
    "emit",
    "emit_messages",
    "filling_bytes",
    "message_class",
]
