"""NCCL's plans as programs that an engine can run."""

from clusim.nccl.programs.filling import filling_bytes
from clusim.nccl.programs.front import build, emit
from clusim.nccl.programs.messages import emit_messages, message_class
from clusim.nccl.programs.moved import Moved

__all__ = ["Moved", "build", "emit", "emit_messages", "filling_bytes", "message_class"]
