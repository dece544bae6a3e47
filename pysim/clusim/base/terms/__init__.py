"""The words of the field, each once: operations, reductions, element types, algorithms and protocols.

A word is an object that says what clusim, NCCL, nccl-tests, PyTorch and other simulators call it, and what follows from
it (bus bandwidth, bytes per element, which buffers have a block per rank). Readers and writers of other tools' files
look it up; none has a table of its own.
"""
