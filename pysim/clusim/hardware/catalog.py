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
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from clusim.base.datafiles import OnDemand, read
from clusim.base.errors import InputError, suggest
from clusim.base.extensions import Extension, extensions
from clusim.base.records import dataclass
from clusim.hardware.cpu import Cpu, HostCosts, cpu_of, host_of
from clusim.hardware.gpu import Architecture, Gpu, architecture_of, gpu_of
from clusim.hardware.links import Switch, switch_of
from clusim.hardware.nic import Nic, Pci, Transport, nic_of, pci_of, transport_of


@cache
def _file(name: str) -> dict[str, Any]:
    return read(Path(__file__).with_name(f"{name}.yaml"))


def _hosts() -> dict[str, HostCosts]:
    entries = _file("processors")["hosts"]
    intel = host_of("intel", entries["intel"], None)
    vendors = (vendor for vendor in entries if vendor != "intel")
    return {
        "intel": intel,
        **{name: host_of(name, entries[name], intel) for name in vendors},
    }


PROCESSORS: Mapping[str, Cpu] = OnDemand(
    lambda: {
        name: cpu_of(name, entry)
        for name, entry in _file("processors")["processors"].items()
    }
)
"""Processors by the name of their root complex."""

HOST_COSTS: Mapping[str, HostCosts] = OnDemand(_hosts)
"""Launch costs of hosts, by processor vendor."""

TRANSPORTS: Mapping[str, Transport] = OnDemand(
    lambda: {
        name: transport_of(name, entry, entries["verbs"])
        for entries in [_file("transports")]
        for name, entry in entries.items()
    }
)
"""Transports between NCCL and NICs, by name."""

ADAPTERS: Mapping[str, Nic] = OnDemand(
    lambda: {
        name: nic_of(name, entry, TRANSPORTS)
        for name, entry in _file("nics")["nics"].items()
    }
)
"""NICs by name."""

CROSSBARS: Mapping[str, Switch] = OnDemand(
    lambda: {
        name: switch_of(name, entry) for name, entry in _file("switches").items()
    }
)
"""Switches by name, without root complexes."""

PCIE_SWITCH_IDS: Mapping[tuple[int, int], str] = OnDemand(
    lambda: {
        number: item.name for item in CROSSBARS.values() for number in item.pci_ids
    }
)
"""PCIe switches by PCI vendor and device number."""

USUAL_SWITCHES: Mapping[str, str] = OnDemand(
    lambda: {
        what: item.name for item in CROSSBARS.values() for what in item.usual_for
    }
)
"""Switch that a link, or a kind of network, usually leads to."""

SWITCHES_BY_LINK: Mapping[str, str] = OnDemand(
    lambda: {link: item.name for item in CROSSBARS.values() for link in item.links}
)
"""Switch of a cluster whose description names only the link type."""

ADAPTER_IDS: Mapping[tuple[int, int], Pci] = OnDemand(
    lambda: {
        (item.vendor, item.device): item
        for item in map(pci_of, _file("nics")["pci_ids"])
    }
)
"""NICs by PCI vendor and device numbers."""


def _families() -> dict[str, Architecture]:
    entries = _file("architectures")
    return {
        name: architecture_of(
            name, {**entries.get(entry.get("base", entry.get("like")), {}), **entry}
        )
        for name, entry in entries.items()
    }


FAMILIES: Mapping[str, Architecture] = OnDemand(_families)
"""Architectures by name."""


@cache
def _extension_files() -> dict[str, tuple[Path, Extension]]:
    """Return the files of GPUs in the packages of extensions (group ``clusim.gpus``), by name."""
    result: dict[str, tuple[Path, Extension]] = {}
    for extension in extensions("clusim.gpus").values():
        for folder in extension.attribute("__path__", Iterable):
            for path in sorted(Path(folder).glob("*.yaml")):
                result[path.stem] = (path, extension)
    return result


def _problem(name: str, text: str) -> InputError:
    """Return the error of a GPU's file, with the distribution if it belongs to an extension."""
    if name not in _extension_files():
        return InputError(text)
    return _extension_files()[name][1].failure(text)


def _all_paths() -> dict[str, Path]:
    """Return the file of every GPU, of extensions as well."""
    result = _paths()
    for name, (path, extension) in _extension_files().items():
        if name in result:
            raise extension.failure(f"{path.name}: duplicate of the GPU {name!r}")
        result[name] = path
    return dict(sorted(result.items()))


def _paths() -> dict[str, Path]:
    """Return the file of every shipped GPU and of every GPU in the ``CLUSIM_GPUS`` directories."""
    result: dict[str, Path] = {}
    folders = [
        Path(part)
        for part in os.environ.get("CLUSIM_GPUS", "").split(os.pathsep)
        if part
    ]
    for folder in (Path(__file__).with_name("gpus"), *folders):
        if not folder.is_dir():
            raise InputError(f"CLUSIM_GPUS: {folder} is not a directory")
        for path in sorted(folder.glob("*.py")):
            raise InputError(
                f"{path.name}: GPUs are YAML files; write {path.stem}.yaml"
            )
        for path in sorted(folder.glob("*.yaml")):
            if path.stem in result:
                raise InputError(
                    f"{path}: there is a GPU {path.stem!r} already; rename the file"
                )
            result[path.stem] = path
    return result


def _read(
    name: str,
    paths: Mapping[str, Path],
    gpus: dict[str, Gpu],
    above: tuple[str, ...] = (),
) -> Gpu:
    """Return a GPU after the one that its file starts from."""
    if name in gpus:
        return gpus[name]
    entry = read(paths[name])
    try:
        start, base = entry.pop("base", None), None
        if start is not None:
            if start not in paths or start in (*above, name):
                suggestions = suggest(
                    str(start),
                    [item for item in paths if item not in (*above, name)],
                )
                raise InputError(
                    f"base is {start!r}, which is not another GPU{suggestions}"
                )
            base = _read(start, paths, gpus, (*above, name))
        gpus[name] = gpu_of(name, entry, FAMILIES, base)
    except InputError as error:
        text = str(error)
        raise InputError(
            text if ".yaml: " in text else f"{paths[name].name}: {text}"
        ) from None
    return gpus[name]


_READ: dict[str, Gpu] = {}
"""GPUs whose files were read."""


def _of_file(name: str) -> Gpu:
    paths = _paths()
    if name not in paths:
        paths = _all_paths()
    if name not in paths:
        raise KeyError(name)
    return _read_named(name, paths, _READ)


def _read_named(name: str, paths: Mapping[str, Path], gpus: dict[str, Gpu]) -> Gpu:
    """Return a GPU; the error of an extension's file has its distribution."""
    try:
        return _read(name, paths, gpus)
    except InputError as error:
        raise _problem(name, str(error)) from None


def _one(name: str) -> Gpu | None:
    """Return a shipped GPU; None with GPUs of the user, whose files are checked together first.

    Raises
    ------
    KeyError
        No GPU has this name.
    """
    if os.environ.get("CLUSIM_GPUS"):
        return None
    return _READ[name] if name in _READ else _of_file(name)


def _read_gpus() -> dict[str, Gpu]:
    """Return the GPUs in order of preference for short names: usual chip, modules, cards."""
    claimed: dict[object, str] = {}
    gpus: dict[str, Gpu] = {} if os.environ.get("CLUSIM_GPUS") else _READ
    paths = _all_paths()
    for name, path in paths.items():
        for claim in _claims(_read_named(name, paths, gpus)):
            if claim in claimed:
                raise _problem(
                    name, f"{path.name}: {claim} is taken by {claimed[claim]}"
                )
            claimed[claim] = path.name
    order = sorted(
        gpus.values(),
        key=lambda item: (not item.usual, item.form != "sxm", item.name),
    )
    return {item.name: item for item in order}


def _claims(item: Gpu) -> Iterable[str]:
    """Yield the properties that only one GPU may claim."""
    yield from (
        f"PCI id {vendor:04x}:{device:04x}" for vendor, device in item.pci_ids
    )
    yield from (f"stands_for {link!r}" for link in item.stands_for)
    if item.usual and item.gfx:
        yield from (f"usual of gfx{number}" for number in item.gfx)
    elif item.usual:
        kind = "superchip" if item.processor else "usual"
        yield f"{kind} of compute capability {item.compute_capability / 10:g}"


GPUS: Mapping[str, Gpu] = OnDemand(_read_gpus, _one)
"""GPUs by name."""


@cache
def _by_pci() -> dict[tuple[int, int], Gpu]:
    return {identity: item for item in GPUS.values() for identity in item.pci_ids}


@cache
def _read_stand_ins() -> dict[str, Gpu]:
    return {what: item for item in GPUS.values() for what in item.stands_for}


def gpu(name: str) -> Gpu:
    """Return the GPU called `name`; the error has the nearest names."""
    if name not in GPUS:
        raise InputError(f"no GPU is called {name!r}{suggest(name, GPUS)}")
    return GPUS[name]


def gpu_by_pci(vendor: int | None, device: int | None) -> Gpu | None:
    """Return the GPU of a PCI vendor and device number."""
    return _by_pci().get((vendor or 0, device or 0))


def gpu_by_gfx(text: str, units: int | None = None) -> Gpu | None:
    """Return the GPU of an AMD number (``908``, ``gfx942``).

    With `units`, it is the GPU with that number of CUs, otherwise the usual one.
    """
    number = text.lower().removeprefix("gfx").partition(":")[0]
    same = [item for item in GPUS.values() if number in item.gfx]
    exact = (item for item in same if item.sms == units)
    return next(exact, next((item for item in same if item.usual), None))


def gfx_of(item: Gpu) -> str:
    """Return AMD's number of a GPU, by default its architecture's; empty for another vendor."""
    same = (
        one.gfx
        for one in GPUS.values()
        if one.architecture is item.architecture and one.gfx
    )
    numbers = item.gfx or next(same, ())
    return numbers[-1] if numbers else ""


def stand_in(kind: str) -> Gpu | None:
    """Return the stand-in for an unnamed GPU (`Gpu.stands_for`); None if there is none."""
    return _read_stand_ins().get(kind)


def stand_ins(kind: str) -> dict[int, Gpu]:
    """Return the stand-ins of a kind by number of links or PCIe generation."""
    all_stand_ins = _read_stand_ins()
    result = (
        link.split(":") for link in all_stand_ins if link.startswith(f"{kind}:")
    )
    return {
        int(number): all_stand_ins[f"{kind}:{number}"]
        for _, number in sorted(result)
    }


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
    (
        "ti",
        "super",
        "d",
        "3e",
        "dgxs",
        "max",
        "q",
        "laptop",
        "mobile",
        "sff",
        "edition",
    )
)
"""Words that turn a model name in free text into a different model."""

_PORT_RATES = (100, 200, 400, 800)
"""Numbers that are NIC rates in free text [Gb/s]."""

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
    is_form_word = word == BRIDGED or any(
        word in words for words in FORM_WORDS.values()
    )
    return is_form_word or _SXM.fullmatch(word) is not None


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
    return _Name(
        tuple(model), frozenset(forms), frozenset(sizes), frozenset(memories)
    )


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
        return (
            size in self.sizes or abs(size - self.size) <= SIZE_TOLERANCE * self.size
        )


def _names_of_gpu(item: Gpu) -> _Known:
    texts = (item.name, item.model, *item.products, *item.names)
    names = [_name(_split(text)) for text in texts]
    words = {word for text in texts for word in _split(text)}
    memory = str(item.figures["memory_rate"].source).lower()
    return _Known(
        item,
        frozenset(name.model for name in names if name.model),
        frozenset(FORM_WORDS[item.form]),
        BRIDGED in words,
        next(
            (word for word in sorted(words) if re.fullmatch(r"sxm[0-9]", word)), ""
        ),
        item.memory_GiB,
        frozenset(
            size for text in item.products for size in _name(_split(text)).sizes
        ),
        frozenset(_MEMORY.findall(memory)),
    )


@cache
def _all_known() -> list[_Known]:
    return [_names_of_gpu(item) for item in GPUS.values()]


@cache
def _complete() -> dict[tuple[str, ...], Gpu]:
    """Return the chips by the words of complete names."""
    return {
        tuple(_split(text)): item
        for item in reversed(list(GPUS.values()))
        for text in (*item.names, *item.products, item.name)
    }


@cache
def _models() -> frozenset[tuple[str, ...]]:
    return frozenset(model for entry in _all_known() for model in entry.models)


@cache
def _model_words() -> frozenset[str]:
    return frozenset(word for model in _models() for word in model)


@lru_cache(maxsize=1024)  # a log repeats a few names many thousand times
def gpu_by_product(text: str) -> Gpu | None:
    """Return the GPU of a complete name; None if it is unknown.

    Examples of names are ``NVIDIA A100-SXM4-80GB`` and ``H100``.
    """
    return _match(_split(text))


def _match(words: Sequence[str]) -> Gpu | None:
    names = _complete()
    complete = names.get(tuple(words)) or names.get(("nvidia", *words))
    if complete is not None:
        return complete
    name = _name(words)
    return next((entry.item for entry in _all_known() if entry.agrees(name)), None)


def gpu_by_words(text: str) -> tuple[Gpu | None, str] | None:
    """Return the GPU named in a file's name or comment, with the words; None without one.

    The name of a system (``p4d``) is preferred, as it fixes the chip. Words that are a known model with
    qualifiers that no known chip has are returned without a GPU.
    """
    systems = [
        (match, item)
        for item in GPUS.values()
        for pattern in item.machines
        if (
            match := re.search(
                rf"(?<![a-z0-9])(?:{pattern})(?![0-9])", text, re.IGNORECASE
            )
        )
    ]
    if systems:
        match, item = max(
            systems, key=lambda pair: (len(pair[0][0]), -pair[0].start())
        )
        return item, match[0]
    result = [(_match(run), " ".join(run)) for run in _runs(text)]
    return max(
        result, key=lambda pair: (pair[0] is not None, len(pair[1])), default=None
    )


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
    is_known_word = (
        word in _model_words() or word in VENDOR_WORDS or word in OTHER_MODELS
    )
    return is_known_word or _is_form(word) or _MEMORY.fullmatch(word) is not None


def _has_model(words: tuple[str, ...]) -> bool:
    ends, models = range(1, len(words) + 1), _models()
    return any(words[at:end] in models for end in ends for at in range(end))
