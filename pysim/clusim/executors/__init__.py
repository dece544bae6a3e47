"""Where many simulations run: here, in processes of this computer, or wherever an executor takes them."""

from clusim.executors.connect import connected
from clusim.executors.identity import model_digest
from clusim.executors.workers import Jobs, Workers, workers

__all__ = ["Jobs", "Workers", "connected", "model_digest", "workers"]
