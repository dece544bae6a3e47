"""Matrix of `nvidia-smi topo -m` and ``-p2p``: header, rows, affinities."""

from __future__ import annotations

import re

from clusim.base.limits import fail, printable
from clusim.formats.topologies.smi_nvlink import (
    LEVELS,
    MAX_DEVICES,
    NVLINK,
    Matrix,
    is_gpu,
)

P2P = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
"""Cells of ``topo -p2p``: supported, and reasons if not."""

MAX_AROUND = 4000
"""Characters before a table in which names of GPUs are searched."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAG = re.compile(r"^(?:\[[0-9]+,[0-9]+\]<[a-z]+>:|\s*[0-9]{1,5}:\s|\s*[>|#]+\s)")
_CPUS = re.compile(r"[0-9]{1,5}(?:[-,][0-9]{1,5}){0,400}")
_AFFINITY = re.compile(r"\b(CPU Affinity|NUMA Affinity|GPU NUMA ID|CPU NUMA)\b.*")
_DEVICE = re.compile(r"(?:GPU|NIC|mlx[0-9]_)[0-9]{1,4}")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,39}")


def parse_matrix(text: str, where: str) -> Matrix:
    """Return the first table of a text."""
    matrix = Matrix()
    rows: set[str] = set()
    lines = text.splitlines()
    for number, raw in enumerate(lines, 1):
        line = _TAG.sub("", _ANSI.sub("", raw)).rstrip()
        legend = re.fullmatch(r"\s*(NIC[0-9]+)\s*:\s*(\S.*)", line)
        if legend:
            matrix.legend[legend[1]] = printable(legend[2].strip(), 40)
        words = line.split()
        if not words:
            continue
        if not matrix.names:
            if words[0] == "GPU0" and "X" not in words:
                matrix.names = _header(line, where, number)
            else:
                matrix.around += (
                    f" {line[:200]}" if len(matrix.around) < MAX_AROUND else ""
                )
        elif words[0] in matrix.names and not _is_header(words, matrix):
            _row(matrix, words, where, number)
            rows.add(words[0])
        elif _is_header(words, matrix) and rows:
            _no_other(matrix, lines, number, where)
            break
        elif _DEVICE.fullmatch(words[0]) and len(words) > 1 and _is_path(words[1]):
            raise fail(
                where,
                number,
                f"row {words[0]} does not match a column: is the table cut off, or its first line broken in two?",
            )
    if not rows:
        raise fail(
            where,
            0,
            "no table with GPU0 in its first line; use the output of topo -m",
        )
    _no_gaps(matrix, rows, where)
    return matrix


def _no_gaps(matrix: Matrix, rows: set[str], where: str) -> None:
    """Refuse a table without the rows of two or more GPUs: the path between these is unknown."""
    missing = [name for name in matrix.gpus if name not in rows]
    if len(missing) > 1:
        raise fail(
            where, 0, f"the rows of {', '.join(missing[:4])} are missing, so their links are unknown; is the"
            " table cut off?"
        )  # fmt: skip


def _no_other(matrix: Matrix, lines: list[str], number: int, where: str) -> None:
    """Refuse a second table of distances, of another node; `number` is its first line."""
    if any(word in P2P for word in matrix.words.values()):
        return
    other = parse_matrix("\n".join([""] * (number - 1) + lines[number - 1 :]), where)
    peer_words = {
        pair: word for pair, word in other.words.items() if word not in P2P
    }
    if peer_words and peer_words != matrix.words:
        raise fail(
            where,
            number,
            "another table begins here, of another node: use one table only",
        )


def _is_path(word: str) -> bool:
    return (
        word.upper() in ("X", *LEVELS, *P2P)
        or NVLINK.fullmatch(word.upper()) is not None
    )


def _is_header(words: list[str], matrix: Matrix) -> bool:
    return (
        words[: len(matrix.gpus)] == matrix.gpus
        and len(words) > 1
        and words[1] != "X"
    )


def _header(line: str, where: str, number: int) -> list[str]:
    names = _AFFINITY.sub("", line).split()
    for name in names:
        if not _NAME.fullmatch(name):
            raise fail(
                where,
                number,
                f"unknown device {printable(name)!r} in the first line",
            )
    if len(set(names)) != len(names):
        raise fail(where, number, "two columns have the same name")
    if len(names) > MAX_DEVICES:
        raise fail(
            where, number, f"more than {MAX_DEVICES} devices; that is the limit"
        )
    return names


def _row(matrix: Matrix, words: list[str], where: str, number: int) -> None:
    name, cells = words[0], words[1 : 1 + len(matrix.names)]
    if len(cells) < len(matrix.names):
        raise fail(
            where,
            number,
            f"row {name} has {len(cells)} of {len(matrix.names)} cells; is it cut off?",
        )
    for other, cell in zip(matrix.names, cells, strict=True):
        if cell == "X" or other == name:
            continue
        word = cell.upper()
        if not _is_path(word):
            raise fail(
                where,
                number,
                f"row {name}: unknown path {printable(cell, 20)!r} to {other}; there are"
                f" {', '.join(LEVELS)}, NV# and {', '.join(P2P)}",
            )
        matrix.words[name, other] = word
    affinity = words[1 + len(matrix.names) :]
    if is_gpu(name) and affinity and _CPUS.fullmatch(affinity[0]):
        matrix.near[name] = affinity[0]
    numa = (
        re.match(r"([0-9]{1,5})(?![0-9])", affinity[1])
        if len(affinity) >= 2
        else None
    )
    if is_gpu(name) and numa is not None:
        matrix.numa[name] = int(numa[1])
