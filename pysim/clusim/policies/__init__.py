"""Policies of a fabric, written in Python: congestion control of senders.

A policy is a class with a few functions on integers. The C engine calls compiled functions by their addresses, the
reference engine the functions themselves.
"""

from clusim.policies.sender import SenderFlow, SwitchHop, policy

__all__ = ["SenderFlow", "SwitchHop", "policy"]
