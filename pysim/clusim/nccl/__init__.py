"""NCCL's decisions on a system: graphs, channels, algorithm, protocol, chunks; by release and environment."""

from clusim.base.terms.algorithms import Algorithm, Protocol
from clusim.base.terms.operations import Collective
from clusim.nccl.communicator import Communicator, NcclPlan, communicator
from clusim.nccl.env import Settings, parse_assignments, parse_env
from clusim.nccl.versions import LATEST, Version, parse_version

__all__ = [
    "LATEST",
    "Algorithm",
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
