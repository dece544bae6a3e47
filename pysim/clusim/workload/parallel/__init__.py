"""Parallelism: what a plan makes the ranks do, as tasks and collectives of a schedule."""
