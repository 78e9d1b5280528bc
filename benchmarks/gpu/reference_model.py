"""The random model once more, in float64, with an adapter's factors added into the weights: what an engine's logits are
held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gpu.images import ImageMaker, head_factors
from lorry.adapters.image.packed import PackedImage
from lorry.layers.sites import module_name
from lorry.layers.spec import EMBEDDING, FINAL_NORM, HEAD, DecoderSpec
from lorry.models.rope import rotary_frequencies


class ReferenceModel:
    """Of one adapter, or the base. Small models only: all weights are copied to float64."""

    def __init__(
        self, spec: DecoderSpec, tensors: Mapping[str, Tensor], maker: ImageMaker, image: PackedImage | None
    ) -> None:
        self._spec = spec
        self._weights = {name: tensor.double() for name, tensor in tensors.items()}
        if image is not None:
            for site in spec.lora_sites():
                for index, name in enumerate(site.slices):
                    factors = maker.factors(image, site, index)
                    if factors is not None:
                        delta = factors.scale * (factors.b @ factors.a)
                        self._weights[f"{module_name(site.layer, name)}.weight"] += delta
            head = head_factors(image)
            if head is not None:
                self._weights[HEAD] += head.scale * (head.b[: spec.vocabulary] @ head.a)

    def logits(self, ids: Sequence[int]) -> Tensor:
        """float64 ``[V]``: of the token behind ``ids``."""
        spec, weights = self._spec, self._weights
        device = weights[EMBEDDING].device
        x = weights[EMBEDDING][torch.tensor(list(ids), device=device)]
        for layer in range(spec.layers):
            prefix = f"model.layers.{layer}"
            normed = self._norm(x, f"{prefix}.input_layernorm.weight")
            x = x + self._attend(layer, normed) @ weights[f"{module_name(layer, 'o_proj')}.weight"].T
            normed = self._norm(x, f"{prefix}.post_attention_layernorm.weight")
            gate, up = (normed @ weights[f"{module_name(layer, name)}.weight"].T for name in ("gate_proj", "up_proj"))
            inner = gate * torch.sigmoid(gate) * up
            x = x + inner @ weights[f"{module_name(layer, 'down_proj')}.weight"].T
        found: Tensor = weights[HEAD] @ self._norm(x[-1:], FINAL_NORM)[0]
        return found

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._spec.rms_norm_eps) * self._weights[name]

    def _attend(self, layer: int, x: Tensor) -> Tensor:
        spec, count = self._spec, len(x)

        def heads(name: str) -> Tensor:
            made = x @ self._weights[f"{module_name(layer, name)}.weight"].T
            return made.view(count, -1, spec.head_dim).transpose(0, 1)

        q, k, v = self._turn(heads("q_proj")), self._turn(heads("k_proj")), heads("v_proj")
        group = spec.heads // spec.kv_heads
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        scores = q @ k.transpose(1, 2) * spec.head_dim**-0.5
        later = torch.ones(count, count, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        found: Tensor = (weights @ v).transpose(0, 1).reshape(count, -1)
        return found

    def _turn(self, x: Tensor) -> Tensor:
        frequencies, _ = rotary_frequencies(self._spec.rope, self._spec.head_dim)
        positions = torch.arange(x.shape[1], dtype=torch.float64)
        angle = torch.outer(positions, frequencies.double()).to(x.device)
        lower, upper = x.chunk(2, -1)
        return torch.cat([lower * angle.cos() - upper * angle.sin(), upper * angle.cos() + lower * angle.sin()], -1)


__all__ = ["ReferenceModel"]
