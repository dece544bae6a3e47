"""The C engine, its reference in Python, and the layouts that both read and write."""
