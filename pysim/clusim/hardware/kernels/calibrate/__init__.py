"""``clusim calibrate gpu``: kernel times measured on a GPU, as a kernel file."""

from clusim.hardware.kernels.calibrate.overlay import (
    RECORD,
    Measurer,
    check_record,
    measure,
    overlay,
)

__all__ = ["RECORD", "Measurer", "check_record", "measure", "overlay"]
