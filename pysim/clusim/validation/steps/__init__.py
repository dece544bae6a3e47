"""Measured training steps: rows of a table as workloads, predicted, and how far off that is."""
