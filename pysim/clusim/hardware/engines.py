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
"""Architecture of which all forms were measured; of chips that have no similar one."""

SIMILAR = {"fp8": ("fp8-block",), "fp8-block": ("fp8",)}
"""Types of weights, and those with similar kernels."""

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
        `ExpertForm` by architecture or chip, and type of the weights.
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
        forms = self.latent if latent else self.attention
        return DecodeForm(**_values(forms[_key(forms, place, (cache, "bf16"))]))

    def expert_form(self, place: tuple[str, str], kind: str) -> ExpertForm:
        """Return the form of grouped experts on a chip (name and architecture), for a type of the weights."""
        return ExpertForm(**_values(self.experts[self._expert_key(place, kind)]))

    def _expert_key(self, place: tuple[str, str], kind: str) -> str:
        key = _key(self.experts, place, (kind, *SIMILAR.get(kind, ())))
        if not key:
            have = ", ".join(sorted({name.split()[1] for name in self.experts}))
            raise InputError(
                f"precision {kind}: grouped experts of {self.name} on {place[0] or place[1]} are not measured;"
                f" measured types are {have}"
            )
        return key

    def assumptions(
        self,
        place: tuple[str, str],
        formats: tuple[str, str],
        *,
        latent: bool,
        experts: bool,
    ) -> list[str]:
        """Return notes on forms of other chips or types, for the formats of weights and cache."""
        weights, cache = formats
        forms = self.latent if latent else self.attention
        rows = [
            (
                f"decode attention of {self.name} on {{}} with a cache of {cache}",
                cache,
                forms,
                _key(forms, place, (cache, "bf16")),
            )
        ]
        if experts:
            rows.append(
                (
                    f"grouped experts of {self.name} on {{}} with weights of {weights}",
                    weights,
                    self.experts,
                    self._expert_key(place, weights),
                )
            )
        notes = []
        for text, kind, figures, key in rows:
            figure = figures[key]
            if key not in [f"{name} {kind}" for name in place]:
                notes.append(
                    f"assumed: {text.format(place[0] or place[1])} as {key}"
                )
            elif figure.mark == "assumed":
                notes.append(
                    f"assumed: {text.format(place[0] or place[1])} {figure.source}"
                )
        return notes

    def reduce_algorithm(self, ranks: int, size_bytes: int) -> str:
        """Return the all-reduce of ranks of a node; empty is NCCL's choice."""
        for algorithm, below in self.reductions.get(str(ranks), {}).items():
            if size_bytes < parse_size(below):
                return algorithm
        return ""

    def host_ps(self, name: str) -> int:
        """Return ``step``, ``sequence``, ``request`` or ``reduction`` [ps]."""
        return parse_time(str(value_of(getattr(self, name))))


def _key(forms: Preset, place: tuple[str, str], kinds: tuple[str, ...]) -> str:
    """Return the first key of a form by type: of the chip or its architecture, else of a similar one; may be empty."""
    places = (*place, LIKE.get(place[1], MEASURED), MEASURED)
    keys = (f"{name} {kind}" for kind in kinds for name in places)
    return next((key for key in keys if key in forms), "")


def _values(figure: Figure) -> dict[str, Any]:
    values = value_of(figure)
    assert isinstance(values, dict)
    return {name: float(value) for name, value in values.items()}


ENGINES: dict[str, ServingEngine] = {
    name: build(ServingEngine, entry, name=name)
    for name, entry in read(Path(__file__).with_name("engines.yaml")).items()
}
"""Engines by name."""
