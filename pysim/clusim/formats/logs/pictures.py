"""Small pictures of rings, trees and transports, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusim.formats.logs.columns import NONE
from clusim.formats.logs.log import Tree
from clusim.formats.logs.routes import LoggedRoute


def ranges(numbers: Sequence[int]) -> str:
    """Write numbers as ranges: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def ring_picture(ring: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return a ring in one line; ``=>`` marks a hop to another node."""
    if not ring:
        return "(empty)"
    text = str(ring[0])
    for before, rank in zip(ring, [*ring[1:], ring[0]], strict=True):
        text += f"{' => ' if _far(before, rank, hosts) else ' '}{rank}"
    return text


def tree_picture(tree: Tree, hosts: Mapping[int, str]) -> str:
    """Return a tree in one line: ``0 > (1 > 2 | 8 => 9)``; it ends at ranks that did not log."""
    children = {rank: list(down) for rank, (_, down) in tree.items()}
    for rank, (up, _) in tree.items():
        if up != NONE and rank not in children.setdefault(up, []):
            children[up].append(rank)
    roots = [rank for rank, (up, _) in tree.items() if up == NONE]
    if not roots:
        below = {child for down in children.values() for child in down}
        roots = [rank for rank in children if rank not in below][:1]
    shown = [_branch(root, children, hosts) for root in sorted(roots)]
    return " ; ".join(shown) or "(not whole)"


def _branch(root: int, children: Mapping[int, list[int]], hosts: Mapping[int, str]) -> str:
    seen = {root}
    text, rank = str(root), root
    # Iterative: a chain can contain all ranks, too many for recursion.
    stack: list[tuple[int, list[int]]] = []
    while True:
        down = [child for child in children.get(rank, []) if child not in seen]
        seen.update(down)
        if down:
            text += " > (" if len(down) > 1 else " => " if _far(rank, down[0], hosts) else " > "
            if len(down) > 1:
                text += "=> " if _far(rank, down[0], hosts) else ""
                stack.append((rank, down[1:]))
            rank = down[0]
            text += str(rank)
            continue
        while stack and not stack[-1][1]:
            stack.pop()
            text += ")"
        if not stack:
            return text
        parent, rest = stack[-1]
        rank = rest.pop(0)
        text += f" | {'=> ' if _far(parent, rank, hosts) else ''}{rank}"


def _far(one: int, other: int, hosts: Mapping[int, str]) -> bool:
    """Return True if two ranks are known to be on different nodes."""
    return one in hosts and other in hosts and hosts[one] != hosts[other]


def symbol(route: LoggedRoute) -> str:
    """Return the letter of a transport in the matrix."""
    if route.kind == "P2P":
        return "i" if route.how == "indirect" else "P"
    if route.kind == "NET":
        if route.how.lower().startswith("socket"):
            return "T"
        return "N" if route.gdr else "n"
    return {"SHM": "S", "COLLNET": "C"}[route.kind]


def matrix(
    connections: Sequence[tuple[int, int, int, int, LoggedRoute, int]], n_ranks: int
) -> list[str]:
    """Return the transports between ranks as lines; row = source, column = target."""
    cells: dict[tuple[int, int], set[str]] = {}
    for _channel, _index, source, target, route, _ in connections:
        if target != NONE:
            cells.setdefault((source, target), set()).add(symbol(route))
    width = len(str(n_ranks - 1)) + 1
    lines = [" " * width + "".join(f"{target:>{width}}" for target in range(n_ranks))]
    for source in range(n_ranks):
        row = ""
        for target in range(n_ranks):
            found = cells.get((source, target), set())
            mark = "." if not found else found.copy().pop() if len(found) == 1 else "*"
            row += f"{'-' if source == target else mark:>{width}}"
        lines.append(f"{source:>{width}}{row}")
    return lines
