"""Execution of many simulations: in this process, in local processes, or by an executor."""

from clusim.base.executors.connect import connected
from clusim.base.executors.workers import Jobs, Workers, model_digest, workers

__all__ = ["Jobs", "Workers", "connected", "model_digest", "workers"]
