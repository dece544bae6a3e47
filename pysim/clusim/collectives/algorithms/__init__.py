"""Algorithms of collectives, one kind per file; every decorated function is an entry of the registry."""
