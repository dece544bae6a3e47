"""`rocm-smi --showtopo`: link types and hops between GPUs, and their NUMA nodes."""

from __future__ import annotations

import re

from clusim.formats.topologies.matrix import MAX_DEVICES, Matrix
from clusim.formats.values import fail

_NUMA = re.compile(r"GPU\[([0-9]{1,4})\]\s*:.*Numa Node:\s*(-?[0-9]{1,4})")


def parse_rocm(text: str, where: str) -> tuple[Matrix, dict[tuple[str, str], int]]:
    """Return the distances in a text, and the number of xGMI links of pairs with one hop."""
    matrix = Matrix()
    tables: dict[str, dict[tuple[str, str], str]] = {}
    section = ""
    columns: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        title = re.search(r"(Weight|Hops|Link Type) between two GPUs", line)
        if title or line.startswith("="):
            section, columns = (title[1], []) if title else ("", [])
            continue
        match = _NUMA.search(line)
        if match and int(match[2]) >= 0:
            matrix.numa[f"GPU{int(match[1])}"] = int(match[2])
        words = line.split()
        if not section or not words or not re.fullmatch(r"GPU[0-9]{1,4}", words[0]):
            continue
        if not columns:
            columns = [word for word in words if re.fullmatch(r"GPU[0-9]{1,4}", word)]
            if len(columns) > MAX_DEVICES:
                raise fail(where, number, f"more than {MAX_DEVICES} GPUs; that is the limit")
            matrix.names = list(dict.fromkeys([*matrix.names, *columns]))
            continue
        cells = words[1 : 1 + len(columns)]
        if len(cells) < len(columns) or words[0] not in columns:
            raise fail(where, number, f"row {words[0]} does not fit the table; is it cut off?")
        table = tables.setdefault(section, {})
        for other, cell in zip(columns, cells, strict=True):
            if other != words[0]:
                table[words[0], other] = cell.upper()
    types = tables.get("Link Type", {})
    if not matrix.names or not types:
        raise fail(where, 0, "no table 'Link Type between two GPUs'; give the output of --showtopo")
    return matrix, _links(matrix, types, tables.get("Hops", {}))


def _links(
    matrix: Matrix, types: dict[tuple[str, str], str], hops: dict[tuple[str, str], str]
) -> dict[tuple[str, str], int]:
    links: dict[tuple[str, str], int] = {}
    for pair, kind in types.items():
        if kind == "XGMI" and hops.get(pair, "1") == "1":
            links[pair] = 1
        elif kind != "XGMI":
            a, b = pair
            near = a in matrix.numa and matrix.numa.get(a) == matrix.numa.get(b)
            matrix.words[pair] = "NODE" if near else "SYS"
    matrix.numa = {name: numa for name, numa in matrix.numa.items() if name in matrix.names}
    return links
