"""Parallelism layouts: the work of all ranks as tasks and collectives of a schedule."""
