"""GPUs by the product names of drivers, logs and tables, and by names in free text.

Names of drivers, logs and tables are matched as complete names.

A name consists of the words of the model (``a100``, ``rtx 4090``) and of qualifiers. A qualifier must
agree with the chip: the form factor (``sxm4``, ``pcie``), the memory size and the memory type. Vendor
words are ignored. Any other word denotes another, unknown product.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

from clusim.base.records import dataclass
from clusim.hardware.catalog import GPUS
from clusim.hardware.gpu import Gpu

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
