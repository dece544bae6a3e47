"""Vocabulary: operations, reductions, element types, algorithms and protocols, each once.

A term is an object with its names in clusim, NCCL, nccl-tests, PyTorch and other simulators, and its
properties (bus bandwidth, bytes per element, buffers with a block per rank). All readers and writers of
other tools' files use these tables.
"""
