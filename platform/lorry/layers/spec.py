"""A decoder's shape, from the Hugging Face ``config.json``. What is not supported is refused by name. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorry.errors import FieldViolation, UnsupportedBase
from lorry.layers.families import FAMILIES
from lorry.layers.fields import ConfigFields
from lorry.layers.rope import RopeSpec, read_rope
from lorry.layers.sites import SITE_SLICES, SLICE_SITE, LoraSite, Site
from lorry.layers.windows import read_windows

_MAX_LAYERS = 100_000
EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
"""Names of a base's tensors outside its layers."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder of a served family. Sizes in elements; ``context_tokens`` counts prompt and output.

    ``head_dim`` need not be hidden / heads. A token at position p of the layers ``windowed_layers`` sees the keys
    p - sliding_window + 1 .. p; ``sliding_window`` is None where no layer is windowed. ``qkv_bias``, ``o_bias`` and
    ``mlp_bias`` say which linears add a bias, ``qk_norm`` that each head of q and k is normed before the rotation.
    """

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
    rope: RopeSpec
    tied_head: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    sliding_window: int | None = None
    windowed_layers: tuple[int, ...] = ()
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DecoderSpec:
        """Raises UnsupportedBase naming every field whose value this runtime does not compute.

        A field that is left out has the default of transformers' configuration class for that ``model_type``.
        """
        model_type = config.get("model_type")
        family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
        if family is None:
            bad = FieldViolation("model_type", f"{model_type!r} is not supported; use one of {', '.join(FAMILIES)}")
            raise UnsupportedBase(
                f"the base's config.json cannot be served: {bad.field}: {bad.description}", violations=[bad]
            )
        fields = ConfigFields(config, family)
        if fields.get("hidden_act") != "silu":
            fields.refuse("hidden_act", fields.get("hidden_act"), "use a base with 'silu'")
        heads = fields.size("num_attention_heads")
        hidden = fields.size("hidden_size")
        kv_heads = fields.size("num_key_value_heads", heads)
        head_dim = fields.size("head_dim", hidden // heads if family.defaults["head_dim"] is None else None)
        if heads % kv_heads:
            fields.refuse("num_key_value_heads", kv_heads, f"it must divide num_attention_heads = {heads}")
        if head_dim % 2:
            fields.refuse("head_dim", head_dim, "it must be even")
        if hidden % heads and (family.model_type == "llama" or fields.get("head_dim") is None):
            fields.refuse("hidden_size", hidden, f"it must be a multiple of num_attention_heads = {heads}")
        layers = fields.size("num_hidden_layers", most=_MAX_LAYERS)
        window, windowed = read_windows(fields, layers)
        context = fields.size("max_position_embeddings")
        attention_bias = fields.reads("attention_bias") and fields.flag("attention_bias")
        bos = fields.token_ids("bos_token_id")
        if len(bos) > 1:
            fields.refuse("bos_token_id", list(bos), "it must be one token id")
        spec = cls(
            model_type=family.model_type,
            layers=layers,
            hidden=hidden,
            intermediate=fields.size("intermediate_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocabulary=fields.size("vocab_size"),
            context_tokens=context,
            rms_norm_eps=fields.number("rms_norm_eps", fields.get("rms_norm_eps")),
            rope=read_rope(fields, context),
            tied_head=fields.flag("tie_word_embeddings"),
            bos_token_id=bos[0] if bos else None,
            eos_token_ids=fields.token_ids("eos_token_id"),
            sliding_window=window,
            windowed_layers=windowed,
            qkv_bias=family.qkv_bias or attention_bias,
            o_bias=attention_bias,
            mlp_bias=fields.reads("mlp_bias") and fields.flag("mlp_bias"),
            qk_norm=family.qk_norm,
        )
        fields.check()
        return spec

    @property
    def causal_lm(self) -> str:
        """The class in transformers, as PEFT's ``auto_mapping`` names it."""
        return FAMILIES[self.model_type].causal_lm

    def window(self, layer: int) -> int | None:
        """How many keys up to and with its own a token of this layer sees; None: all."""
        return self.sliding_window if layer in self.windowed_layers else None

    def has_bias(self, slice_name: str) -> bool:
        """Whether a linear of every layer adds a bias of its N."""
        if slice_name == "o_proj":
            return self.o_bias
        if slice_name in SITE_SLICES[Site.QKV]:
            return self.qkv_bias
        return self.mlp_bias and slice_name in SLICE_SITE

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

    def norms(self) -> dict[str, int]:
        """Elements of every norm's weight, by the tensor's name."""
        found = {FINAL_NORM: self.hidden}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            found[f"{prefix}.input_layernorm.weight"] = self.hidden
            found[f"{prefix}.post_attention_layernorm.weight"] = self.hidden
            if self.qk_norm:
                found[f"{prefix}.self_attn.q_norm.weight"] = self.head_dim
                found[f"{prefix}.self_attn.k_norm.weight"] = self.head_dim
        return found

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


__all__ = ["EMBEDDING", "FINAL_NORM", "HEAD", "DecoderSpec"]
