"""Layout and painting of pictures of topologies; `draw` is the entry point."""
