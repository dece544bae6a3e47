"""Predicted output of nccl-tests."""
