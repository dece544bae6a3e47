"""NCCL's plans as programs that an engine can run."""

from clusim.nccl.programs.front import build, emit
from clusim.nccl.programs.messages import emit_messages
from clusim.nccl.programs.moved import Moved

__all__ = ["Moved", "build", "emit", "emit_messages"]
