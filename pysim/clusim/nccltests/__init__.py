"""What nccl-tests would print on a machine, and how far that is from what it printed."""
