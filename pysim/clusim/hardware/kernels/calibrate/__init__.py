"""``clusim calibrate gpu``: kernel times measured on a GPU, as a file for chips and workloads."""

from clusim.hardware.kernels.calibrate.overlay import (
    RECORD,
    Measurer,
    check_record,
    measure,
    overlay,
)

__all__ = ["RECORD", "Measurer", "check_record", "measure", "overlay"]
