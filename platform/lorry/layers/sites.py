"""Where a LoRA delta can enter a decoder, and the shapes there. No torch.

A **site** is a place in a layer with one input: its **slices** are the projections that share that
input (qkv has q, k and v). The runtime applies one shrink per site and one expand per slice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Site(StrEnum):
    QKV = "qkv"
    O = "o"  # noqa: E741  the field's own name
    GATE_UP = "gate_up"
    DOWN = "down"


SITE_SLICES: dict[Site, tuple[str, ...]] = {
    Site.QKV: ("q_proj", "k_proj", "v_proj"),
    Site.O: ("o_proj",),
    Site.GATE_UP: ("gate_proj", "up_proj"),
    Site.DOWN: ("down_proj",),
}
"""Slices in storage order. The names are the Hugging Face module names."""

SLICE_SITE: dict[str, tuple[Site, int]] = {
    name: (site, index) for site, names in SITE_SLICES.items() for index, name in enumerate(names)
}

SLICE_PARENT: dict[str, str] = {
    name: "self_attn" if site in (Site.QKV, Site.O) else "mlp" for name, (site, _) in SLICE_SITE.items()
}


@dataclass(frozen=True, slots=True)
class LoraSite:
    """One site of one layer. ``in_features`` is K; ``out_features`` is N of each slice. What an adapter does here
    beside LoRA is ``lorry.layers.extras.SiteVectors``. ``sharding`` of K and N by tensor parallelism is a seam, None
    today."""

    layer: int
    site: Site
    in_features: int
    out_features: tuple[int, ...]
    sharding: str | None = None

    @property
    def slices(self) -> tuple[str, ...]:
        return SITE_SLICES[self.site]


_MODULE = re.compile(r"^model\.layers\.(0|[1-9][0-9]{0,4})\.(self_attn|mlp)\.([a-z]+_proj)$")


def module_name(layer: int, slice_name: str) -> str:
    """``model.layers.{layer}.self_attn.q_proj`` and so on."""
    return f"model.layers.{layer}.{SLICE_PARENT[slice_name]}.{slice_name}"


def parse_module(name: str) -> tuple[int, str] | None:
    """(layer, slice name) of a module path that is exactly a LoRA-capable linear, else None."""
    match = _MODULE.match(name)
    if match is None or SLICE_PARENT.get(match[3]) != match[2]:
        return None
    return int(match[1]), match[3]


__all__ = ["SITE_SLICES", "SLICE_PARENT", "SLICE_SITE", "LoraSite", "Site", "module_name", "parse_module"]
