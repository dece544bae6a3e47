"""Execution of calls: NCCL's choice, the communicators of a job, launches."""
