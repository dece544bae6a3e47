"""Kernel times of a GPU: matrix products, attention, experts, data movers, clocks under load."""

from clusim.hardware.kernels.measured_tables import ProductTable, Ratios, find_table
from clusim.hardware.kernels.products import Form, Product, Silicon, product_s

__all__ = [
    "Form",
    "Product",
    "ProductTable",
    "Ratios",
    "Silicon",
    "find_table",
    "product_s",
]
