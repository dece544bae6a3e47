"""Reference simulator: the timing contract in plain, slow Python, the oracle of C.

Every module translates one or two sections of ``docs/model/contract.md`` and names them. Clarity has
priority over speed throughout.
"""

from __future__ import annotations

from clusim.engine.reference.simulation import ReferenceSimulation

__all__ = ["ReferenceSimulation"]
