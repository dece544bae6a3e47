"""Kernel times of a GPU: matrix products, attention, experts, data movers, clocks under load."""

from clusim.hardware.kernels.measured_tables import ProductTable, find_table
from clusim.hardware.kernels.products import Form, Product, Silicon, product_s
from clusim.hardware.kernels.ratios import Ratios

__all__ = [
    "Form",
    "Product",
    "ProductTable",
    "Ratios",
    "Silicon",
    "find_table",
    "product_s",
]
