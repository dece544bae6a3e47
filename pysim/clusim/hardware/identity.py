"""Identity of a GPU in files: (vendor, compute capability, product name) -> a known chip, or a refusal.

A file never gets a chip of another vendor, architecture or product. Several chips may share a compute capability; the
usual one is then an assumption of the importer. GPUs with a coherent link to their CPU are superchips.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from clusim.base.errors import InputError, one_line
from clusim.base.records import dataclass
from clusim.hardware.catalog import GPUS, gpu_by_gfx, gpu_by_pci
from clusim.hardware.gpu import Gpu
from clusim.hardware.product_names import OTHER_MODELS, VENDOR_WORDS, gpu_by_product

NVIDIA, AMD = 0x10DE, 0x1002
_UNKNOWN_VENDORS = (0, 0xFFFF)
"""PCI vendor numbers of files that do not name the vendor."""

CHOOSE = "choose a simulated GPU with --chip NAME"
"""Remedy of an error about an unknown GPU."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Facts of a file about a GPU; missing facts are None or empty.

    Attributes
    ----------
    vendor, device : int or None
        PCI numbers.
    product : str
        Product name.
    capability : int or None
        Compute capability times ten; of AMD's GPUs the number of CUs.
    gfx : str
        AMD's architecture number.
    coherent : bool
        True if it has a coherent link to its CPU.
    """

    vendor: int | None = None
    device: int | None = None
    product: str = ""
    capability: int | None = None
    gfx: str = ""
    coherent: bool = False


def named_gpu(identity: Identity) -> Gpu | None:
    """Return the GPU that a file names by its PCI identity or product; None if it does not name one."""
    return gpu_by_pci(identity.vendor, identity.device) or gpu_by_product(
        identity.product
    )


def identify_gpu(identity: Identity) -> Gpu | None:
    """Return the GPU of an identity, the usual one of its compute capability; None without any fact.

    Raises
    ------
    InputError
        The facts belong to no known GPU.
    """
    gpu = named_gpu(identity)
    if gpu is not None:
        return gpu
    if identity.product:
        raise InputError(f"{unknown_gpu(identity.product)}; {CHOOSE}")
    vendor = identity.vendor or 0
    pci = f"PCI device {vendor:04x}:{identity.device or 0:04x}"
    if vendor not in (NVIDIA, AMD, *_UNKNOWN_VENDORS):
        raise InputError(
            f"{pci}: not a GPU of NVIDIA or AMD, and not known; {CHOOSE}"
        )
    if identity.gfx:
        result = gpu_by_gfx(identity.gfx, identity.capability)
        description = f"gcn {one_line(identity.gfx[:16])}"
    elif identity.capability:
        result = _by_capability(identity.capability, coherent=identity.coherent)
        description = f"sm {identity.capability}"
    else:
        return None
    if result is None:
        raise InputError(f"no known GPU has {description}; {CHOOSE}")
    return result


def _by_capability(capability: int, *, coherent: bool) -> Gpu | None:
    """Return the usual GPU of a compute capability, or the only one; superchips with a coherent link."""
    same = [
        i for i in GPUS.values() if not i.gfx and i.compute_capability == capability
    ]
    same = [item for item in same if item.architecture.vendor == "nvidia"]
    fitting = [item for item in same if bool(item.processor) == coherent] or same
    usual = [item for item in fitting if item.usual]
    return next(
        iter(usual or sorted(fitting, key=lambda item: len(item.name))), None
    )


_NEAR = 0.5
"""Least similarity of a suggested name."""


def nearest_gpu(text: str) -> Gpu | None:
    """Return the known GPU with the most similar name of the same series; None without a similar name.

    The series is the words of a name (``h``, ``mi x``, ``rtx ada``). A series of one word and four digits is of one
    generation, the first two digits.
    """
    series, number, plain = _parts(text)
    best: tuple[tuple[float, bool], Gpu] | None = None
    for item in GPUS.values():
        for name in (item.model, *item.products, *item.names):
            other, digits, words = _parts(name)
            if other != series or (
                len(digits) != len(number) and max(len(digits), len(number)) > 3
            ):
                continue
            if len(series) == 1 and len(number) == 4 and digits[:2] != number[:2]:
                continue
            similarity = SequenceMatcher(None, plain, words).ratio()
            key = (round(similarity, 2), item.form == "sxm")
            if similarity >= _NEAR and (best is None or key > best[0]):
                best = key, item
    return best[1] if best is not None else None


def _parts(text: str) -> tuple[frozenset[str], str, str]:
    """Return the series and the number of a product name, and its model as text.

    Letters after a number (``10m``, ``308x``) do not belong to the series.
    """
    series: list[str] = []
    numbers: list[str] = []
    model: list[str] = []
    for token in re.findall(r"[a-z0-9]+", text.lower()):
        match = re.fullmatch(r"([a-z]*)([0-9]+).*", token)
        words = [match[1]] if match is not None else [token]
        series += [word for word in words if word and word not in _ASIDE]
        if match is not None and match[1] not in _ASIDE:
            numbers.append(match[2])
            model.append(token)
    return frozenset(series), numbers[0] if numbers else "", " ".join(model[:1])


_ASIDE = VENDOR_WORDS | OTHER_MODELS | {"sxm", "pcie", "nvl", "hbm", "generation"}
_ASIDE |= {"server", "workstation", "gcd", "oam"}
"""Words of vendors, form factors and memories, which do not define a series."""


def unknown_gpu(text: str) -> str:
    """Return the message for a GPU that is named but not known, with the nearest known one."""
    suggestion = nearest_gpu(text)
    named = one_line(text[:60])
    return f"the GPU {named} is not known" + (
        f"; the nearest is {suggestion.name}" if suggestion else ""
    )
