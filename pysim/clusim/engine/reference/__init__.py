"""The reference simulator: the timing contract in plain, slow Python, the oracle of the C engine.

Every module translates one or two sections of ``docs/model/contract.md`` and names them. Clarity comes
before speed throughout.
"""

from __future__ import annotations

from clusim.engine.reference.simulation import ReferenceSimulation

__all__ = ["ReferenceSimulation"]
