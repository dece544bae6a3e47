"""NCCL's decisions on a system: graphs, channels, algorithm, protocol, chunks; by release and environment."""

from clusim.base.terms.operations import Algorithm, Collective, Protocol
from clusim.nccl.callconfig import CallConfig
from clusim.nccl.communicator import Communicator, NcclPlan, communicator
from clusim.nccl.constants import LATEST, Version, parse_version
from clusim.nccl.env import Settings, parse_assignments, parse_env

__all__ = [
    "LATEST",
    "Algorithm",
    "CallConfig",
    "Collective",
    "Communicator",
    "NcclPlan",
    "Protocol",
    "Settings",
    "Version",
    "communicator",
    "parse_assignments",
    "parse_env",
    "parse_version",
]
