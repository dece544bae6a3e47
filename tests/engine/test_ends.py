"""The end of a simulation, however its memory is collected."""

from __future__ import annotations

import gc
import random

from clusim.engine.simulation import Simulation
from support.random_images import random_image


def test_a_simulation_in_a_circle_of_references_ends_before_its_model() -> None:
    """The collector of cycles ends the parts of a circle in any order; the sanitized build sees a wrong one."""
    gc.freeze()  # what was there before is not looked through twenty times
    try:
        for seed in range(20):
            circle: list[object] = [Simulation(random_image(random.Random(seed)))]
            circle.append(circle)
            del circle
            assert gc.collect() > 0
    finally:
        gc.unfreeze()
