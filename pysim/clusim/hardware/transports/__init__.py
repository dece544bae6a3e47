"""One file per transport by which NCCL reaches adapters, each with its `TRANSPORT`."""
