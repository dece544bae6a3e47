"""NCCL's plans as programs that an engine can run."""

from clusim.nccl.programs.api import build, emit
from clusim.nccl.programs.messages import emit_messages, message_class
from clusim.nccl.programs.payload import CollectivePayload
from clusim.nccl.programs.pipeline_fill import filling_bytes

__all__ = ["CollectivePayload", "build", "emit", "emit_messages", "filling_bytes", "message_class"]
