"""NCCL's plans as programs that an engine can run."""

from clusim.nccl.programs.front import build, emit
from clusim.nccl.programs.messages import emit_messages

__all__ = ["build", "emit", "emit_messages"]
