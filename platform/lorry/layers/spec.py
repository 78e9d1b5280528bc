"""A decoder's shape, from the Hugging Face ``config.json``. What is not supported is refused by name. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorry.errors import FieldViolation, UnsupportedBase
from lorry.layers.sites import SITE_SLICES, LoraSite, Site

_HARMLESS = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "hidden_act",
        "hidden_size",
        "initializer_range",
        "intermediate_size",
        "max_position_embeddings",
        "model_type",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "head_dim",
        "pad_token_id",
        "pretraining_tp",
        "rms_norm_eps",
        "rope_theta",
        "rope_parameters",
        "rope_scaling",
        "tie_word_embeddings",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "vocab_size",
        "attention_bias",
        "mlp_bias",
        "is_llama_config",
        "rope_interleaved",
        "transformers.js_config",
        "unsloth_fixed",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "chunk_size_feed_forward",
        "id2label",
        "label2id",
        "problem_type",
        "is_encoder_decoder",
        "tokenizer_class",
    }
)
# Keys of config.json that are computed, or that change nothing at inference.


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A Llama-family decoder. Sizes in elements; ``context_tokens`` counts prompt and output."""

    model_type: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_tokens: int
    rms_norm_eps: float
    rope_theta: float
    tied_head: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DecoderSpec:
        """Raises UnsupportedBase naming every field whose value this runtime does not compute."""
        bad: list[FieldViolation] = []

        def refuse(field: str, value: object, remedy: str) -> None:
            bad.append(FieldViolation(field, f"{value!r} is not supported; {remedy}"))

        if config.get("model_type") != "llama":
            refuse("model_type", config.get("model_type"), "use a base of type 'llama'")
        rope = config.get("rope_parameters") or {}
        scaling = config.get("rope_scaling") or {}
        rope_type = rope.get("rope_type", scaling.get("rope_type", scaling.get("type", "default")))
        if rope_type != "default":
            refuse("rope_scaling", rope_type, "use a base with plain rotary embeddings")
        if config.get("hidden_act", "silu") != "silu":
            refuse("hidden_act", config.get("hidden_act"), "use a base with 'silu'")
        for field in ("attention_bias", "mlp_bias", "rope_interleaved"):
            if config.get(field):
                refuse(field, config[field], "use a base where it is false")
        if config.get("pretraining_tp", 1) != 1:
            refuse("pretraining_tp", config["pretraining_tp"], "use a base where it is 1")
        if config.get("quantization_config") is not None:
            refuse("quantization_config", "set", "use an unquantised base")
        for field in sorted(set(config) - _HARMLESS - {"quantization_config"}):
            refuse(field, config[field], "the field is unknown to this runtime, which will not guess")

        def size(field: str, default: object = None) -> int:
            value = config.get(field)
            value = default if value is None else value
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                refuse(field, value, "it must be a positive integer")
                return 1
            return value

        heads = size("num_attention_heads")
        hidden = size("hidden_size")
        kv_heads = size("num_key_value_heads", heads)
        head_dim = size("head_dim", hidden // heads)
        if heads % kv_heads:
            refuse("num_key_value_heads", kv_heads, f"it must divide num_attention_heads = {heads}")
        if head_dim % 2:
            refuse("head_dim", head_dim, "it must be even")
        eos = config.get("eos_token_id")
        spec = cls(
            model_type="llama",
            layers=size("num_hidden_layers"),
            hidden=hidden,
            intermediate=size("intermediate_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocabulary=size("vocab_size"),
            context_tokens=size("max_position_embeddings", 2048),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            tied_head=bool(config.get("tie_word_embeddings", False)),
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
        )
        if bad:
            listing = "; ".join(f"{v.field}: {v.description}" for v in bad)
            raise UnsupportedBase(f"the base's config.json cannot be served: {listing}", violations=bad)
        return spec

    def slice_shape(self, slice_name: str) -> tuple[int, int]:
        """(out_features N, in_features K) of a linear of every layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (q, self.hidden),
            "k_proj": (kv, self.hidden),
            "v_proj": (kv, self.hidden),
            "o_proj": (self.hidden, q),
            "gate_proj": (self.intermediate, self.hidden),
            "up_proj": (self.intermediate, self.hidden),
            "down_proj": (self.hidden, self.intermediate),
        }[slice_name]

    def lora_sites(self) -> tuple[LoraSite, ...]:
        """Every site of every layer, in the order of the forward pass."""
        return tuple(
            LoraSite(
                layer=layer,
                site=site,
                in_features=self.slice_shape(SITE_SLICES[site][0])[1],
                out_features=tuple(self.slice_shape(name)[0] for name in SITE_SLICES[site]),
            )
            for layer in range(self.layers)
            for site in Site
        )

    @property
    def lora_row_elements(self) -> int:
        """Elements of one rank row over all sites: its A row of every slice and its B column."""
        per_layer = sum(sum(self.slice_shape(name)) for names in SITE_SLICES.values() for name in names)
        return per_layer * self.layers

    @property
    def kv_elements_per_token(self) -> int:
        """K and V of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


__all__ = ["DecoderSpec"]
