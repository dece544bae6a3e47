"""Random aggregation trees over the switches of a random fabric."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from support.images import Place
from support.random_fabric import RandomFabric

__all__ = ["RandomTree"]

Row = dict[str, Any]


class RandomTree:
    """A tree over some endpoints, up to three units deep, on random shortest paths.

    Attributes
    ----------
    members : dict
        The vertex of every endpoint.
    """

    def __init__(self, fabric: RandomFabric, places: list[Place], slots: int) -> None:
        self._fabric, self._rng, self._slots = fabric, fabric.rng, slots
        rows = self._grow(places, random_depth(fabric.rng))
        vertices = fabric.builder.tree(*rows)
        placed = zip(rows, vertices, strict=True)
        self.members = {
            row["place"]: vertex for row, vertex in placed if row["place"].endpoint is not None
        }

    def _grow(self, places: list[Place], depth: int) -> list[Row]:
        """Return the vertices, level by level, so that children of one parent are together."""
        root = {"place": self._rng.choice(self._fabric.unit_switches()), "slots": self._slots}
        rows: list[Row] = []
        todo: deque[tuple[Row, list[Place], int]] = deque([(root, list(places), depth)])
        while todo:
            row, below, levels = todo.popleft()
            rows.append(row)
            if row["place"].endpoint is None:
                todo.extend(self._children(row["place"], len(rows) - 1, below, levels))
        return rows

    def _children(
        self, parent: Place, position: int, below: list[Place], levels: int
    ) -> list[tuple[Row, list[Place], int]]:
        """Share out the members below a vertex: to units one level deeper, the others directly."""
        rng, found = self._rng, []
        units = [place for place in self._fabric.unit_switches() if self._linked(place, parent)]
        rng.shuffle(below)
        while levels > 1 and units and below and rng.random() < 0.8:
            share = [below.pop() for _ in range(rng.randint(1, len(below)))]
            found.append((self._vertex(rng.choice(units), parent, position), share, levels - 1))
        found += [(self._vertex(place, parent, position), [], 0) for place in below]
        rng.shuffle(found)
        return found

    def _linked(self, place: Place, parent: Place) -> bool:
        """Say whether there is a path; the planes of a fabric have none between them."""
        return bool(self._fabric.builder.shortest(place.node, parent.node, anywhere=True))

    def _vertex(self, place: Place, parent: Place, position: int) -> Row:
        slots = self._slots + self._rng.choice([0, 0, 1])
        up = self._fabric.random_path(place, parent)
        down = self._fabric.random_path(parent, place)
        return {"place": place, "parent": position, "up": up, "down": down, "slots": slots}


def random_depth(rng: random.Random) -> int:
    """Return the most units between a member and the outside."""
    return rng.choice([1, 2, 2, 3])
