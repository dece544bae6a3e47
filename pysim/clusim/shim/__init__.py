"""Unmodified programs that call NCCL and the CUDA runtime, on a simulated system."""
