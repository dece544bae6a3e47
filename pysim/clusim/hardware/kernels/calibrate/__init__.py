"""``clusim calibrate gpu``: what a GPU's kernels take, measured on it, as a file that chips and workloads name."""

from clusim.hardware.kernels.calibrate.overlay import (
    RECORD,
    Measurer,
    check_record,
    measure,
    overlay,
)

__all__ = ["RECORD", "Measurer", "check_record", "measure", "overlay"]
