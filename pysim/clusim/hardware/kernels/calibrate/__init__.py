"""``clusim calibrate gpu``: what a GPU's kernels take, measured on it, as a file that chips and workloads name."""

from clusim.hardware.kernels.calibrate.overlay import overlay
from clusim.hardware.kernels.calibrate.records import RECORD, Measurer, check_record, measure

__all__ = ["RECORD", "Measurer", "check_record", "measure", "overlay"]
