"""Catalogue of GPUs and look-up by name, PCI identity, compute capability or stand-in.

Names are product names in drivers, logs and tables, matched as complete names, or names in free text.

A name consists of the words of the model (``a100``, ``rtx 4090``) and of qualifiers. A qualifier must
agree with the chip: the form factor (``sxm4``, ``pcie``), the memory size and the memory type. Vendor
words are ignored. Any other word denotes another, unknown product.

Catalogue of processors, NICs and switches, by name and by PCI identity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path

from clusim.base.errors import InputError, one_line, suggest
from clusim.hardware.cpu import Cpu, HostCosts, cpu_of, host_of
from clusim.hardware.datafiles import FOLDER, read
from clusim.hardware.gpu import Architecture, Gpu, architecture_of, gpu_of
from clusim.hardware.links import Switch, switch_of
from clusim.hardware.nic import Nic, Pci, Transport, nic_of, pci_of, transport_of

_PROCESSORS, _NICS = read(FOLDER / "processors.yaml"), read(FOLDER / "nics.yaml")

PROCESSORS: dict[str, Cpu] = {
    name: cpu_of(name, entry) for name, entry in _PROCESSORS["processors"].items()
}
"""Processors by the name of their root complex."""

_INTEL = host_of("intel", _PROCESSORS["hosts"]["intel"], None)

HOST_COSTS: dict[str, HostCosts] = {
    "intel": _INTEL,
    **{
        vendor: host_of(vendor, entry, _INTEL)
        for vendor, entry in _PROCESSORS["hosts"].items()
        if vendor != "intel"
    },
}
"""Launch costs of hosts, by processor vendor."""

TRANSPORTS: dict[str, Transport] = {
    name: transport_of(name, entry) for name, entry in read(FOLDER / "transports.yaml").items()
}
"""Transports between NCCL and NICs, by name."""

ADAPTERS: dict[str, Nic] = {
    name: nic_of(name, entry, TRANSPORTS) for name, entry in _NICS["nics"].items()
}
"""NICs by name."""

CROSSBARS: dict[str, Switch] = {
    name: switch_of(name, entry) for name, entry in read(FOLDER / "switches.yaml").items()
}
"""Switches by name, without root complexes."""

PCIE_SWITCH_IDS = {identity: item.name for item in CROSSBARS.values() for identity in item.pci_ids}
"""PCIe switches by PCI vendor and device number."""

USUAL_SWITCHES = {what: item.name for item in CROSSBARS.values() for what in item.usual_for}
"""Switch that a link, or a kind of network, usually leads to."""

SWITCHES_BY_LINK = {link: item.name for item in CROSSBARS.values() for link in item.links}
"""Switch of a cluster whose description names only the link type."""

ADAPTER_IDS: dict[tuple[int, int], Pci] = {
    (item.vendor, item.device): item for item in map(pci_of, _NICS["pci_ids"])
}
"""NICs by PCI vendor and device numbers."""


FAMILIES: dict[str, Architecture] = {
    name: architecture_of(name, entry)
    for name, entry in read(FOLDER / "architectures.yaml").items()
}
"""Architectures by name."""


def _paths() -> dict[str, Path]:
    """Return the file of every shipped GPU and of every GPU in the ``CLUSIM_GPUS`` directories."""
    result: dict[str, Path] = {}
    folders = [Path(part) for part in os.environ.get("CLUSIM_GPUS", "").split(os.pathsep) if part]
    for folder in (FOLDER / "gpus", *folders):
        if not folder.is_dir():
            raise InputError(f"CLUSIM_GPUS: {folder} is not a directory")
        for path in sorted(folder.glob("*.py")):
            raise InputError(f"{path.name}: GPUs are YAML files; write {path.stem}.yaml")
        for path in sorted(folder.glob("*.yaml")):
            if path.stem in result:
                raise InputError(f"{path}: there is a GPU {path.stem!r} already; rename the file")
            result[path.stem] = path
    return dict(sorted(result.items()))


def _read(
    name: str, paths: Mapping[str, Path], known: dict[str, Gpu], above: tuple[str, ...] = ()
) -> Gpu:
    """Return a GPU after the one that its file starts from."""
    if name in known:
        return known[name]
    entry = read(paths[name])
    try:
        start, base = entry.pop("base", None), None
        if start is not None:
            if start not in paths or start in (*above, name):
                near = suggest(str(start), [item for item in paths if item not in (*above, name)])
                raise InputError(f"base is {start!r}, which is not another GPU{near}")
            base = _read(start, paths, known, (*above, name))
        known[name] = gpu_of(name, entry, FAMILIES, base)
    except InputError as error:
        text = str(error)
        raise InputError(text if ".yaml: " in text else f"{paths[name].name}: {text}") from None
    return known[name]


def _found() -> dict[str, Gpu]:
    """Return the GPUs in order of preference for short names: usual chip, modules, cards."""
    claimed: dict[object, str] = {}
    known: dict[str, Gpu] = {}
    paths = _paths()
    for name, path in paths.items():
        for claim in _claims(_read(name, paths, known)):
            if claim in claimed:
                raise InputError(f"{path.name}: {claim} is taken by {claimed[claim]}")
            claimed[claim] = path.name
    order = sorted(known.values(), key=lambda item: (not item.usual, item.form != "sxm", item.name))
    return {item.name: item for item in order}


def _claims(item: Gpu) -> Iterable[str]:
    """Yield the properties that only one GPU may claim."""
    yield from (f"PCI id {vendor:04x}:{device:04x}" for vendor, device in item.pci_ids)
    yield from (f"stands_for {link!r}" for link in item.stands_for)
    if item.usual and item.gfx:
        yield from (f"usual of gfx{number}" for number in item.gfx)
    elif item.usual:
        yield f"usual of compute capability {item.compute_capability / 10:g}"


GPUS: dict[str, Gpu] = _found()
"""GPUs by name."""

_BY_PCI = {identity: item for item in GPUS.values() for identity in item.pci_ids}
_STANDING = {what: item for item in GPUS.values() for what in item.stands_for}


def gpu(name: str) -> Gpu:
    """Return the GPU called `name`; the error has the nearest names."""
    if name not in GPUS:
        raise InputError(f"no GPU is called {name!r}{suggest(name, GPUS)}")
    return GPUS[name]


def gpu_by_pci(vendor: int | None, device: int | None) -> Gpu | None:
    """Return the GPU of a PCI vendor and device number."""
    return _BY_PCI.get((vendor or 0, device or 0))


def gpu_by_capability(capability: int | None) -> Gpu | None:
    """Return the usual GPU of a CUDA compute capability times ten."""
    same = (
        i for i in GPUS.values() if i.usual and not i.gfx and i.compute_capability == capability
    )
    return next(same, None)


def gpu_by_gfx(text: str, units: int | None = None) -> Gpu | None:
    """Return the GPU of an AMD number (``908``, ``gfx942``).

    With `units`, it is the GPU with that number of CUs, otherwise the usual one.
    """
    number = text.lower().removeprefix("gfx").partition(":")[0]
    same = [item for item in GPUS.values() if number in item.gfx]
    exact = (item for item in same if item.sms == units)
    return next(exact, next((item for item in same if item.usual), None))


def stand_in(kind: str, number: int | None = None) -> Gpu | None:
    """Return the stand-in for an unnamed GPU (`Gpu.stands_for`); None if there is none."""
    return _STANDING.get(kind if number is None else f"{kind}:{number}")


def standing(kind: str) -> dict[int, Gpu]:
    """Return the stand-ins of a kind by number of links or PCIe generation."""
    result = (link.split(":") for link in _STANDING if link.startswith(f"{kind}:"))
    return {int(number): _STANDING[f"{kind}:{number}"] for _, number in sorted(result)}


VENDOR_WORDS = frozenset(
    ("nvidia", "amd", "corporation", "tesla", "geforce", "instinct", "gpu", "gpus")
)
"""Words that do not identify a chip."""

FORM_WORDS = {
    "sxm": ("sxm", "hgx", "dgx"),
    "card": ("pcie", "pci"),
    "superchip": ("superchip", "nvl72", "hgx", "dgx"),
    "oam": ("oam",),
    "apu": ("apu",),
}
"""Words for form factors; ``sxm`` may have a generation suffix."""

BRIDGED = "nvl"
"""Word for PCIe cards that are sold with NVLink bridges; part of their names."""

SIZE_TOLERANCE = 0.1
"""Relative difference between a memory size in a name and the size that the driver reports."""

OTHER_MODELS = frozenset(
    ("ti", "super", "d", "3e", "dgxs", "max", "q", "laptop", "mobile", "sff", "edition")
)
"""Words that turn a model name in free text into a different model."""

_PORT_RATES = (100, 200, 400, 800)
"""Numbers that are NIC rates in free text [Gb/s]."""

_NEAR = 0.6
_LONGEST = 12
_SIZE = re.compile(r"([0-9]{1,4})g(?:i?b)?")
_MEMORY = re.compile(r"hbm[0-9]?e?|gddr[0-9]x?|lpddr[0-9]x?")
_SXM = re.compile(r"sxm[0-9]?")
_BRAND = re.compile(r"\b(rtx|gtx)(?=[0-9])")
_TIMES = re.compile(r"([0-9]{1,3}x)(?=[a-z])|(?<=[0-9])x[0-9]{1,3}$")


@dataclass(frozen=True, slots=True)
class _Name:
    """Words of a name, split into the model and its qualifiers."""

    model: tuple[str, ...]
    forms: frozenset[str]
    sizes: frozenset[int]
    memories: frozenset[str]


def _split(text: str) -> list[str]:
    """Return the words of a text in lower case; a size and its unit are one word."""
    plain = _BRAND.sub(r"\1 ", re.sub(r"[^a-z0-9]+", " ", text.lower()))
    return re.sub(r"\b([0-9]{1,4}) (gi?b)\b", r"\1\2", plain).split()


def _is_form(word: str) -> bool:
    known = word == BRIDGED or any(word in words for words in FORM_WORDS.values())
    return known or _SXM.fullmatch(word) is not None


def _name(words: Iterable[str]) -> _Name:
    model, forms, sizes, memories = [], set(), set(), set()
    for word in words:
        if size := _SIZE.fullmatch(word):
            sizes.add(int(size[1]))
        elif _is_form(word):
            forms.add(word)
        elif _MEMORY.fullmatch(word):
            memories.add(word)
        elif word not in VENDOR_WORDS:
            model.append(word)
    return _Name(tuple(model), frozenset(forms), frozenset(sizes), frozenset(memories))


@dataclass(frozen=True, slots=True)
class _Known:
    """The names of a chip, and the qualifiers that agree with it."""

    item: Gpu
    models: frozenset[tuple[str, ...]]
    forms: frozenset[str]
    bridged: bool
    generation: str
    size: float
    sizes: frozenset[int]
    memories: frozenset[str]

    def agrees(self, name: _Name) -> bool:
        """Return True if a name without contradictions means this chip."""
        bridged = BRIDGED in name.forms
        return (
            name.model in self.models
            and bridged == self.bridged
            and all(self._has_form(word) for word in name.forms - {BRIDGED})
            and all(self._has_size(size) for size in name.sizes)
            and name.memories <= self.memories
        )

    def _has_form(self, word: str) -> bool:
        if _SXM.fullmatch(word) and self.item.form == "sxm":
            return word in ("sxm", self.generation)
        return word in self.forms

    def _has_size(self, size: int) -> bool:
        return size in self.sizes or abs(size - self.size) <= SIZE_TOLERANCE * self.size


def _known(item: Gpu) -> _Known:
    texts = (item.name, item.model, *item.products, *item.names)
    names = [_name(_split(text)) for text in texts]
    words = {word for text in texts for word in _split(text)}
    memory = str(item.figures["memory_rate"].source).lower()
    return _Known(
        item,
        frozenset(name.model for name in names if name.model),
        frozenset(FORM_WORDS[item.form]),
        BRIDGED in words,
        next((word for word in sorted(words) if re.fullmatch(r"sxm[0-9]", word)), ""),
        item.memory_GiB,
        frozenset(size for text in item.products for size in _name(_split(text)).sizes),
        frozenset(_MEMORY.findall(memory)),
    )


_KNOWN = [_known(item) for item in GPUS.values()]
_COMPLETE = {
    tuple(_split(text)): item
    for item in reversed(GPUS.values())
    for text in (*item.names, *item.products, item.name)
}
"""Chips by the words of complete names."""

_MODELS = frozenset(model for known in _KNOWN for model in known.models)
_MODEL_WORDS = {word for model in _MODELS for word in model}


@lru_cache(maxsize=1024)  # a log repeats a few names many thousand times
def gpu_by_product(text: str) -> Gpu | None:
    """Return the GPU of a complete name; None if it is unknown.

    Examples of names are ``NVIDIA A100-SXM4-80GB`` and ``H100``.
    """
    return _match(_split(text))


def _match(words: Sequence[str]) -> Gpu | None:
    complete = _COMPLETE.get(tuple(words)) or _COMPLETE.get(("nvidia", *words))
    if complete is not None:
        return complete
    name = _name(words)
    return next((known.item for known in _KNOWN if known.agrees(name)), None)


def gpu_by_words(text: str) -> tuple[Gpu | None, str] | None:
    """Return the GPU named in a file's name or comment, with the words; None without one.

    The name of a system (``p4d``) is preferred, as it fixes the chip. Words that are a known model with
    qualifiers that no known chip has are returned without a GPU.
    """
    systems = [
        (match, item)
        for item in GPUS.values()
        for pattern in item.machines
        if (match := re.search(rf"(?<![a-z0-9])(?:{pattern})(?![0-9])", text, re.IGNORECASE))
    ]
    if systems:
        match, item = max(systems, key=lambda pair: (len(pair[0][0]), -pair[0].start()))
        return item, match[0]
    result = [(_match(run), " ".join(run)) for run in _runs(text)]
    return max(result, key=lambda pair: (pair[0] is not None, len(pair[1])), default=None)


def _runs(text: str) -> Iterable[list[str]]:
    """Yield the longest word sequences that can form a GPU name with a known model."""
    run: list[str] = []
    for word in [*(_TIMES.sub("", word) for word in _split(text)), ""]:
        if _is_part(word):
            run.append(word)
            continue
        if _has_model(_name(run[:_LONGEST]).model):
            yield list(dict.fromkeys(run[:_LONGEST]))
        run = []


def _is_part(word: str) -> bool:
    size = _SIZE.fullmatch(word)
    if size is not None:
        return int(size[1]) not in _PORT_RATES
    known = word in _MODEL_WORDS or word in VENDOR_WORDS or word in OTHER_MODELS
    return known or _is_form(word) or _MEMORY.fullmatch(word) is not None


def _has_model(words: tuple[str, ...]) -> bool:
    ends = range(1, len(words) + 1)
    return any(words[at:end] in _MODELS for end in ends for at in range(end))


def nearest_gpu(text: str) -> Gpu | None:
    """Return the known GPU with the most similar name; None if none is similar.

    GPUs of the same form factor are preferred.
    """
    name = _name(_split(text))
    plain = " ".join(name.model)

    def score(known: _Known) -> tuple[float, bool]:
        near = max(SequenceMatcher(None, plain, " ".join(m)).ratio() for m in known.models)
        forms = name.forms or {"sxm", "pcie"}
        return round(near, 2), any(known._has_form(word) for word in forms)

    best = max(_KNOWN, key=score)
    return best.item if score(best)[0] >= _NEAR else None


def unknown_gpu(text: str) -> str:
    """Return the message for a GPU that is named but not known, with the nearest known one."""
    near = nearest_gpu(text)
    named = one_line(text[:60])
    return f"the GPU {named} is not known" + (f"; the nearest is {near.name}" if near else "")
