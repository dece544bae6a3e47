"""Reads the ``config.json`` of a Hugging Face model.

A key that is not there means the default of a class in *transformers*, which is not installed; guessing it would give
another model, so a missing key is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusim.errors import InputError
from clusim.workload.models.transformer import Latent, Transformer

__all__ = ["from_config", "read_config"]

ALIASES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "inner": ("intermediate_size", "ffn_dim", "n_inner", "d_ff"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions"),
    "experts": ("n_routed_experts", "num_routed_experts", "num_experts", "num_local_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k"),
    "expert_size": ("moe_intermediate_size", "expert_intermediate_size"),
    "shared": ("n_shared_experts", "num_shared_experts"),
    "dense_layers": ("first_k_dense_replace",),
    "tied": ("tie_word_embeddings",),
}
"""Names under which configurations have the same thing."""

_GATED = ("silu", "swish", "swiglu", "geglu")
_GPT = ("gpt2", "gpt_neo", "gpt_neox", "opt")


def read_config(path: str | Path) -> Transformer:
    """Return the transformer that a ``config.json`` describes."""
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: must be an object with keys such as 'hidden_size'")
    return from_config(data, str(path), path.parent.name or path.stem)


def from_config(data: Mapping[str, Any], where: str = "config.json", name: str = "") -> Transformer:
    """Return the transformer of a configuration; `where` is its name in errors."""

    def find(what: str) -> Any:
        return next((data[key] for key in ALIASES[what] if data.get(key) is not None), None)

    def need(what: str) -> int:
        value = find(what)
        if value is None:
            names = ALIASES[what]
            other = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            raise InputError(
                f"{where}: {names[0]!r}{other} is missing; its default is not in the file, add it"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{where}: {what} is {value!r}; must be a whole number")
        return value

    hidden, heads, kind = need("hidden"), need("heads"), str(data.get("model_type", ""))
    plain = kind in _GPT or kind == "bert"
    head_size = data.get("head_dim") or hidden // max(1, heads)
    experts = find("experts") or 0
    inner = find("inner")
    if inner is None and kind == "gpt2" and "n_inner" in data:
        inner = 4 * hidden
    if inner is None:
        inner = need("inner")
    activation = str(data.get("hidden_act") or data.get("activation_function") or "")
    if not activation:
        raise InputError(
            f"{where}: 'hidden_act' is missing; it says whether the feed-forward block is gated"
        )
    if find("tied") is None:
        raise InputError(
            f"{where}: 'tie_word_embeddings' is missing; its default is not in the file, add it"
        )
    latent = None
    if data.get("kv_lora_rank") is not None:
        names = (
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
        )
        missing = [key for key in names if not isinstance(data.get(key), int)]
        if missing:
            raise InputError(f"{where}: {missing[0]!r} is missing; latent attention needs it")
        latent = Latent(*(data[key] for key in names))
    moe: dict[str, int] = {}
    if experts:
        moe = {
            "experts": int(experts),
            "top_k": need("top_k"),
            "expert_size": find("expert_size") or inner,
            "shared_experts": find("shared") or 0,
            "dense_layers": find("dense_layers") or 0,
        }
    return Transformer(
        name or kind or "model",
        need("layers"),
        hidden,
        heads,
        heads if plain else need("kv_heads"),
        int(head_size),
        int(inner),
        need("vocab"),
        gated=activation.lower() in _GATED and not plain,
        bias=plain,
        qkv_bias=kind.startswith("qwen2") or bool(data.get("attention_bias")),
        tied=bool(find("tied")),
        causal=kind != "bert",
        positions=need("positions") if plain else 0,
        segments=int(data.get("type_vocab_size") or 0) if kind == "bert" else 0,
        pooler=kind == "bert",
        dropout=plain,
        latent=latent,
        **moe,
    )
