"""What kernels take on a chip: matrix products, attention, experts, kernels that move data, clocks under load."""

from clusim.compute.measured_tables import ProductTable, find_table
from clusim.compute.products import Form, Product, Silicon, product_s
from clusim.compute.ratios import Ratios

__all__ = [
    "Form",
    "Product",
    "ProductTable",
    "Ratios",
    "Silicon",
    "find_table",
    "product_s",
]
