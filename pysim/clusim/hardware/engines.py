"""Serving engines: their decode kernels, all-reduces and hosts.

**Hardware** vLLM, SGLang and TensorRT-LLM run the same products and the same fused attention of prefills, but different
kernels of decode attention, and different all-reduces up to sizes of several MiB. A thread schedules the sequences of
each step and handles its outputs; a server reads a request and splits its text into tokens.
**Model** Forms and thresholds by engine; a time per step, per sequence of a step, and per request. **Not modelled**
Gaps between kernels of a step without CUDA graph; other threads on the core.
**Parameters** The fields of `ServingEngine`, in ``engines.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusim.base.datafiles import read
from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.units import parse_size, parse_time
from clusim.hardware.figures import Figure, Preset, Sourced, build, value_of
from clusim.hardware.kernels.decoding import DecodeForm, ExpertForm

MEASURED = "hopper"
"""Architecture whose grouped experts, and all decode attention, were measured."""

LIKE = {
    "turing": "ampere",
    "volta": "ampere",
    "cdna3": "hopper",
    "cdna4": "blackwell",
}
"""Architectures without measurements, and the one with their forms: **assumed**, at the chip's rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEngine(Sourced):
    """An engine at a release.

    Attributes
    ----------
    release : str
        Release of the measured kernels.
    rule : str
        Default scheduler (`clusim.serving.scheduler.RULES`).
    attention, latent : Preset
        `DecodeForm` by architecture or chip, and type of the cache: ``hopper fp8``.
    experts : Preset
        `ExpertForm` by type of the weights.
    reductions : mapping
        Algorithms of all-reduces by ranks, each with the size that it is used below; NCCL for others.
    reduction : Figure
        Time of an all-reduce in addition to its algorithm, with the engine's kernels [s].
    step, sequence, request : Figure
        Host time of a step, of a sequence in it, and of a request before its first step [s].
    """

    name: str
    release: str
    rule: str
    attention: Preset
    latent: Preset
    experts: Preset
    reductions: Mapping[str, Mapping[str, str]]
    reduction: Figure
    step: Figure
    sequence: Figure
    request: Figure

    def decode_form(
        self, place: tuple[str, str], cache: str, *, latent: bool
    ) -> DecodeForm:
        """Return the form of decode attention on a chip (name and architecture), for a type of the cache."""
        key = self._decode_key(place, cache, latent=latent)
        return DecodeForm(
            **_values((self.latent if latent else self.attention)[key])
        )

    def _decode_key(
        self, place: tuple[str, str], cache: str, *, latent: bool
    ) -> str:
        """Return the key of a form: of the chip or its architecture, else of a similar one; then for 16 bits."""
        forms = self.latent if latent else self.attention
        places = (*place, LIKE.get(place[1], MEASURED), MEASURED)
        keys = [f"{name} {kind}" for kind in (cache, "bf16") for name in places]
        return next(key for key in keys if key in forms)

    def assumptions(
        self, place: tuple[str, str], cache: str, *, latent: bool, experts: bool
    ) -> list[str]:
        """Return notes on forms that were measured on other chips, or for another type of the cache."""
        key, notes = self._decode_key(place, cache, latent=latent), []
        chip = place[0] or place[1]
        if key not in [f"{name} {cache}" for name in place]:
            notes.append(
                f"assumed: decode attention of {self.name} on {chip} with a cache of {cache} as {key}"
            )
        if experts and place[1] != MEASURED:
            notes.append(f"assumed: grouped experts on {chip} as on {MEASURED}")
        return notes

    def expert_form(self, kind: str) -> ExpertForm:
        """Return the form of grouped experts, for a type of the weights."""
        figure = self.experts.get(kind)
        if figure is None:
            names = ", ".join(self.experts)
            raise InputError(
                f"precision {kind}: grouped experts of {self.name} have {names}"
            )
        return ExpertForm(**_values(figure))

    def reduce_algorithm(self, ranks: int, size_bytes: int) -> str:
        """Return the all-reduce of ranks of a node; empty is NCCL's choice."""
        for algorithm, below in self.reductions.get(str(ranks), {}).items():
            if size_bytes < parse_size(below):
                return algorithm
        return ""

    def host_ps(self, name: str) -> int:
        """Return ``step``, ``sequence``, ``request`` or ``reduction`` [ps]."""
        return parse_time(str(value_of(getattr(self, name))))


def _values(figure: Figure) -> dict[str, Any]:
    values = value_of(figure)
    assert isinstance(values, dict)
    return {name: float(value) for name, value in values.items()}


ENGINES: dict[str, ServingEngine] = {
    name: build(ServingEngine, entry, name=name)
    for name, entry in read(Path(__file__).with_name("engines.yaml")).items()
}
"""Engines by name."""
