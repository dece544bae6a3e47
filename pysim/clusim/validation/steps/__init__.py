"""Measured training steps as workloads, their predictions, and the errors."""
