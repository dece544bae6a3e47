"""Readers of plans of MSCCL++."""
