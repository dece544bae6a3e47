"""Logs of NCCL and RCCL, and tables of nccl-tests, read into plain columns and understood.

`read_logs` gives a `Log`: communicators and who is in them, rings, trees, transports, the sequence of collectives, and
what was measured. It imports nothing of the simulator.
"""

from clusim.logs.anomalies import Anomaly, find_anomalies
from clusim.logs.communicators import Communicator
from clusim.logs.log import Log, read_logs
from clusim.logs.routes import Route
from clusim.logs.summary import summarize
from clusim.logs.tables import Device, Run
from clusim.logs.text import report

__all__ = [
    "Anomaly",
    "Communicator",
    "Device",
    "Log",
    "Route",
    "Run",
    "find_anomalies",
    "read_logs",
    "report",
    "summarize",
]
