"""Search for the parallelism of a training job on a system."""
