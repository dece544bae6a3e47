"""Logs of NCCL and RCCL, and tables of nccl-tests, read into plain columns and understood.

`read_logs` returns a `Log`: communicators and their ranks, rings, trees, transports, the sequence of
collectives, and measurements. This package does not import the simulator.
"""

from clusim.formats.logs.anomalies import find_anomalies
from clusim.formats.logs.communicators import LoggedCommunicator
from clusim.formats.logs.infer_collective import LoggedRoute
from clusim.formats.logs.log import Log, read_logs
from clusim.formats.logs.logreport import report
from clusim.formats.logs.summary import summarize
from clusim.formats.logs.system_anomalies import Anomaly
from clusim.formats.logs.tables import TableDevice, TableRun

__all__ = [
    "Anomaly",
    "Log",
    "LoggedCommunicator",
    "LoggedRoute",
    "TableDevice",
    "TableRun",
    "find_anomalies",
    "read_logs",
    "report",
    "summarize",
]
