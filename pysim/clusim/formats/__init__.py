"""Readers of other tools' files: `topologies`, `logs`, `recordings` and `algorithms`.

The first three return plain descriptions and do not import an engine.
"""
