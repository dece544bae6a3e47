"""Sub-commands, one click command ``command`` per module; modules are discovered."""
