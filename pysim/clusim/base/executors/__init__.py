"""Where many simulations run: here, in processes of this computer, or wherever an executor takes them."""

from clusim.base.executors.connect import connected
from clusim.base.executors.identity import model_digest
from clusim.base.executors.workers import Jobs, Workers, workers

__all__ = ["Jobs", "Workers", "connected", "model_digest", "workers"]
