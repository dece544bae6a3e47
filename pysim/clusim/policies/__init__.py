"""Policies of a fabric, written in Python: congestion control of senders, and queues of switches.

A policy is a class with a few functions on integers. The C engine calls compiled functions by their addresses, the
reference engine the functions themselves.
"""

from clusim.policies.sender import (
    ACCEPT,
    DROP,
    MARK,
    TRIM,
    SenderFlow,
    SwitchHop,
    policy,
)

__all__ = ["ACCEPT", "DROP", "MARK", "TRIM", "SenderFlow", "SwitchHop", "policy"]
