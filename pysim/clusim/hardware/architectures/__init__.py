"""One file per architecture of GPUs, each with an `ARCHITECTURE`."""
