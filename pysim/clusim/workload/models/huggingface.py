"""Reader of the ``config.json`` of a Hugging Face model.

A missing key implies the default of a class in *transformers*, which is not installed. A guess could
yield another model, so a missing key is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.limits import json_problem, read_text
from clusim.workload.models.transformer import Transformer
from clusim.workload.models.transformer_sizes import Latent

ALIASES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "inner": ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions"),
    "experts": (
        "n_routed_experts",
        "num_routed_experts",
        "num_experts",
        "num_local_experts",
    ),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k"),
    "expert_size": ("moe_intermediate_size", "expert_intermediate_size"),
    "shared": ("n_shared_experts", "num_shared_experts"),
    "shared_size": ("shared_expert_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
    "head_size": ("head_dim",),
    "segments": ("type_vocab_size",),
}
"""Alternative keys of the same number in configurations."""

WORDS = {
    "activation": ("hidden_act", "hidden_activation", "activation_function"),
    "tied": ("tie_word_embeddings",),
}

LATENT = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)

_GATED = ("silu", "swish", "swiglu", "geglu")
_PLAIN = ("gpt2", "gpt_neo", "gpt_neox", "opt", "bert")
"""Types with biases, equally many heads of keys and queries, and feed-forward blocks of two matrices."""

ABSENT = "its default is not in the file, add it"
LARGEST, MOST_LAYERS = 2**31, 2**16


MOST_BYTES = 4 << 20


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise `ValueError` if a key is repeated."""
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} twice")
    return result


def read_config(path: str | Path) -> Transformer:
    """Return the transformer that a ``config.json`` describes."""
    path = Path(path)
    try:
        data = json.loads(read_text(path, MOST_BYTES), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {json_problem(error)}") from None
    if not isinstance(data, dict):
        raise InputError(
            f"{path}: must be an object with keys such as 'hidden_size'"
        )
    return from_config(data, str(path), path.parent.name or path.stem)


@dataclass(frozen=True)
class _Config:
    """Configuration with its source."""

    data: Mapping[str, Any]
    where: str

    def wrong(self, message: str) -> InputError:
        """Return an error about the file."""
        return InputError(f"{self.where}: {message}")

    def missing(self, names: tuple[str, ...], why: str = ABSENT) -> InputError:
        """Return the error that all these keys are missing."""
        other = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        return self.wrong(f"{names[0]!r}{other} is missing; {why}")

    def find(self, field: str) -> int | None:
        """Return a number, or None if no key has it."""
        for key in ALIASES.get(field, (field,)):
            value = self.data.get(key)
            if value is None:
                continue
            low = (
                0
                if field
                in ("experts", "shared", "shared_size", "dense_layers", "segments")
                else 1
            )
            high = MOST_LAYERS if field == "layers" else LARGEST
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or not low <= value <= high
            ):
                raise self.wrong(
                    f"{key!r} is {value!r:.40}; must be an integer, {low} to {high:,}"
                )
            return value
        return None

    def require(self, field: str) -> int:
        """Return a number; raise `InputError` if no key has it."""
        value = self.find(field)
        if value is None:
            raise self.missing(ALIASES.get(field, (field,)))
        return value

    def activation(self) -> str:
        """Return the activation function."""
        names = WORDS["activation"]
        value = next((self.data[key] for key in names if self.data.get(key)), None)
        if value is None:
            raise self.missing(
                names, "it defines whether the feed-forward block is gated"
            )
        if not isinstance(value, str):
            raise self.wrong(
                f"activation {value!r:.40}: must be a name such as 'silu'"
            )
        return value.lower()

    def flag(self, key: str) -> bool | None:
        """Return a truth value, or None if the key is missing."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(f"{key!r} is {value!r:.40}; must be true or false")
        return value


def from_config(
    data: Mapping[str, Any], where: str = "config.json", name: str = ""
) -> Transformer:
    """Return the transformer of a configuration; `where` is its name in errors."""
    config = _Config(data, where)
    kind = str(data.get("model_type") or "")
    _check_kind(config, kind)
    hidden, heads = config.require("hidden"), config.require("heads")
    plain = kind in _PLAIN
    head_size = config.find("head_size")
    if head_size is None and hidden % heads:
        raise config.wrong(
            f"hidden size {hidden} is not a multiple of {heads} heads, and 'head_dim' is missing"
        )
    inner = _inner(config, kind, hidden)
    activation = config.activation()
    tied = config.flag("tie_word_embeddings")
    if tied is None:
        raise config.missing(WORDS["tied"])
    result = Transformer(
        name or kind or "model",
        config.require("layers"),
        hidden,
        heads,
        heads if plain else config.require("kv_heads"),
        head_size or hidden // heads,
        inner,
        config.require("vocab"),
        gated=(activation in _GATED or kind.startswith("gemma")) and not plain,
        bias=plain or bool(config.flag("use_bias")),
        qkv_bias=kind.startswith("qwen2") or bool(config.flag("attention_bias")),
        tied=tied,
        causal=kind != "bert",
        positions=config.require("positions") if plain and kind != "gpt_neox" else 0,
        segments=(config.find("segments") or 0) if kind == "bert" else 0,
        pooler=kind == "bert",
        dropout=plain,
        latent=_latent(config),
        **_experts(config, inner),
    )
    try:
        result.check_numbers()
    except InputError as error:
        raise config.wrong(str(error)) from None
    return result


def _check_kind(config: _Config, kind: str) -> None:
    """Raise an error for models that are not transformers with equal layers."""
    if config.flag("is_encoder_decoder"):
        raise config.wrong(
            f"{kind or 'this'} has an encoder and a decoder; only one can be read"
        )
    if "text_config" in config.data and config.data.get("hidden_size") is None:
        raise config.wrong(
            "a model of several parts; save its 'text_config' as a separate file"
        )
    if (config.data.get("decoder_sparse_step") or 1) != 1 or config.data.get(
        "mlp_only_layers"
    ):
        raise config.wrong(
            "'decoder_sparse_step' and 'mlp_only_layers': every layer must have experts"
        )


def _inner(config: _Config, kind: str, hidden: int) -> int:
    if (
        kind == "gpt2"
        and "n_inner" in config.data
        and config.data["n_inner"] is None
    ):
        return 4 * hidden
    if kind == "gpt2" and config.find("inner") is None:
        raise config.missing(("n_inner",), "add it; null means four times 'n_embd'")
    return config.require("inner")


def _latent(config: _Config) -> Latent | None:
    if config.data.get("kv_lora_rank") is None:
        return None
    for key in LATENT:
        if config.find(key) is None:
            raise config.missing((key,), "latent attention needs it")
    return Latent(*(config.require(key) for key in LATENT))


def _experts(config: _Config, inner: int) -> dict[str, int]:
    experts = config.find("experts") or 0
    if not experts:
        return {}
    size = config.find("expert_size") or inner
    shared, shared_size = config.find("shared") or 0, config.find("shared_size") or 0
    if shared_size % size:
        raise config.wrong(
            f"'shared_expert_intermediate_size' {shared_size} is not a multiple of {size}"
        )
    return {
        "experts": experts,
        "top_k": config.require("top_k"),
        "expert_size": size,
        "shared_experts": shared or shared_size // size,
        "dense_layers": config.find("dense_layers") or 0,
    }
