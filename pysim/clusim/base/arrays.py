"""Type of NumPy arrays whose element types differ or are named in the text beside them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
