"""One file per GPU, each with a `GPU`; files in the directories of ``CLUSIM_GPUS`` are found as well."""

from __future__ import annotations

import os

__path__.extend(part for part in os.environ.get("CLUSIM_GPUS", "").split(os.pathsep) if part)
