"""Images as files for ``csrc/tests/fuzz_image.c``, and back.

    python tests/support/corpus.py write DIR [COUNT]     random images, as a corpus to mutate
    python tests/support/corpus.py keep FILE.img...      as tests/engine/crashers/*.npz, to be replayed for ever

The fuzzer's files hold the tables as they lie in memory; kept ones name their fields, so that they outlive
changes of the layout.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from clusim.engine.image import DTYPES, Image
from clusim.engine.ranges import TABLES

__all__ = ["keep", "load", "read", "write"]

ROOT = Path(__file__).resolve().parents[2]
CRASHERS = ROOT / "tests" / "engine" / "crashers"
MAGIC = b"climage1"
HEAD = struct.Struct("<8sIQ")
TABLE = struct.Struct("<QQ")
DIFFERENT_SIZES = ("tiny", "small", "small", "small")


def write(image: Image, path: Path) -> None:
    """Write an image for the fuzzer."""
    parts, tables = [HEAD.pack(MAGIC, image.nvc, image.seed)], image.tables()
    for name in TABLES:
        table = tables[name]
        parts += [TABLE.pack(table.dtype.itemsize, len(table)), table.tobytes()]
    path.write_bytes(b"".join(parts))


def read(path: Path) -> Image:
    """Read a file of the fuzzer; its opcodes are forgotten."""
    data = path.read_bytes()
    magic, nvc, seed = HEAD.unpack_from(data)
    assert magic == MAGIC, f"{path} is no image"
    at = HEAD.size
    tables = {}
    for name in TABLES:
        itemsize, rows = TABLE.unpack_from(data, at)
        at += TABLE.size
        dtype = DTYPES.get(name, np.dtype(np.uint32))
        assert dtype.itemsize == itemsize, f"{path}: {name} had another layout"
        tables[name] = np.frombuffer(data, dtype, rows, at).copy()
        at += itemsize * rows
    del tables["op_flags"]
    return Image(nvc=nvc, seed=seed, **tables)


def keep(image: Image, path: Path) -> None:
    """Write an image with the names of its fields."""
    tables = {name: getattr(image, name) for name in DTYPES if len(getattr(image, name))}
    np.savez_compressed(path, _nvc=image.nvc, _seed=np.uint64(image.seed), **tables)


def load(path: Path) -> Image:
    """Read a kept image; fields it does not have, and further numbers of a field, are 0."""
    with np.load(path) as file:
        tables = {name: _fitted(file[name], name) for name in DTYPES if name in file}
        return Image(nvc=int(file["_nvc"]), seed=int(file["_seed"]), **tables)


def _fitted(table: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    if DTYPES[name].names is None:
        return table
    fitted = np.zeros(len(table), DTYPES[name])
    for field in DTYPES[name].names:
        if field not in (table.dtype.names or ()):
            continue
        own = table[field]
        if own.ndim == 1:
            fitted[field] = own
        else:
            fitted[field][:, : own.shape[1]] = own
            if name == "formats":  # further kinds of packets are as the first
                fitted[field][:, own.shape[1] :] = own[:, :1]
    return fitted


def main(command: str, *paths: str) -> None:
    """Do what the module's text says."""
    if command == "keep":
        CRASHERS.mkdir(exist_ok=True)
        for path in map(Path, paths):
            keep(read(path), CRASHERS / f"{path.stem}.npz")
        return
    from support.random_images import random_image
    from support.random_losses import lossy_image
    from support.random_schedules import scheduled_image
    from support.windowed import paired_image, windowed_image

    target = Path(paths[0])
    target.mkdir(parents=True, exist_ok=True)
    for seed in range(int(paths[1]) if len(paths) > 1 else 200):
        size = DIFFERENT_SIZES[seed % len(DIFFERENT_SIZES)]
        if seed % 12 == 11:
            image = paired_image(seed, size)
        elif seed % 3 == 2:
            image = windowed_image(seed, size)
        else:
            image = random_image(random.Random(seed), size=size)
        if seed % 5 == 1:
            image = scheduled_image(image, random.Random(seed))
        if seed % 4 == 1:
            image = lossy_image(image, random.Random(seed))
        write(image, target / f"{seed:04}.img")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    main(*sys.argv[1:])
