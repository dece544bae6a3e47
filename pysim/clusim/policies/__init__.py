"""Policies of a fabric, written in Python: congestion control of senders and receivers, queues and schedules of
switches, choice of paths.

A policy is a class with a few functions on integers. The C engine calls compiled functions by their addresses, the
reference engine the functions themselves.
"""

from clusim.policies.kinds import (
    ACCEPT,
    DROP,
    MARK,
    TRIM,
    ClassHead,
    OutputWire,
    SwitchHop,
)
from clusim.policies.sender import SenderFlow, policy

__all__ = [
    "ACCEPT",
    "DROP",
    "MARK",
    "TRIM",
    "ClassHead",
    "OutputWire",
    "SenderFlow",
    "SwitchHop",
    "policy",
]
