"""The host tier's ready-to-copy image of an adapter, for the CPU arena. Imports torch.

Layout, per site of ``spec.lora_sites()`` that the adapter touches (others are absent)::

    a      [rank, slices, K]      row i of slice s is A_s[i, :]; zeros beyond a slice's own rank
    b[s]   [rank, N_s]            (scale * B_s).T, computed in float32, then cast; None where the slice has no delta

so that ``y_s += (x @ a[:, s].T) @ b[s]`` is the whole delta. ``rank`` is the adapter's largest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from lorry.adapters.header import HeaderLimits, HeaderRefused
from lorry.adapters.image.extras import build_extras, extra_sums
from lorry.adapters.image.source import BaseWeights, ImageSource, no_base
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.shards import WeightFiles
from lorry.errors import AdapterLoadFailed
from lorry.ids import AdapterDigest
from lorry.layers.extras import AdapterExtras
from lorry.layers.sites import SITE_SLICES, Site
from lorry.layers.spec import DecoderSpec

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""By the name that ``EngineConfig.dtype`` uses."""


@dataclass(frozen=True, slots=True)
class SiteImage:
    """One site: ``a`` is ``[rank, slices, K]``, ``b`` one ``[rank, N]`` a slice or None. Contiguous."""

    a: torch.Tensor
    b: tuple[torch.Tensor | None, ...]

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + sum(part.nbytes for part in self.b if part is not None)


@dataclass(frozen=True, slots=True)
class DeviceImage:
    """Read-only by contract: many loads copy from one image at once.

    ``sites`` holds only sites with at least one delta, in the order of the forward pass; ``extras`` is what the
    adapter has beside its rank rows, or None. ``checksum`` is SHA-256 over every tensor's place, shape and bytes: equal
    images have equal checksums. ``rank`` 0: no rank rows.
    """

    digest: AdapterDigest
    rank: int
    dtype: torch.dtype
    sites: Mapping[tuple[int, Site], SiteImage]
    extras: AdapterExtras | None
    checksum: str
    sums: tuple[int, ...]
    """``operand_sums``: what the device's copy must add up to."""
    extra_sums: tuple[int | None, ...]
    """``lorry.adapters.image.extras.extra_sums`` of all extras."""

    extra_bytes: int
    """Device memory beside the rank rows. Kept, as ``nbytes`` is: the thread that plans steps asks for them often."""
    nbytes: int

    @property
    def chunk_count(self) -> None:
        """Rank rows decide."""

    def site(self, layer: int, site: Site) -> SiteImage | None:
        """None: nothing to add at this site."""
        return self.sites.get((layer, site))

    def intact(self) -> bool:
        """Whether the bytes are still those that were built. Reads everything."""
        return checksum(self.sites, self.extras) == self.checksum


def checksum(sites: Mapping[tuple[int, Site], SiteImage], extras: AdapterExtras | None = None) -> str:
    digest = hashlib.sha256()
    for layer, site in sorted(sites):
        image = sites[layer, site]
        for index, tensor in enumerate((image.a, *image.b)):
            if tensor is not None:
                digest.update(f"{layer} {site} {index} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    for index, tensor in enumerate(() if extras is None else extras.tensors()):
        digest.update(f"extra {index} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """Wrapping int64 sums of the raw bytes, one a leading index: ``[n, ..., width]`` -> ``[n]``. The order of the
    rows and the zeros among them do not matter."""
    word = torch.int64 if rows.shape[-1] * rows.element_size() % 8 == 0 else torch.int32
    return rows.view(word).flatten(1).sum(1)


def operand_sums(sites: Mapping[tuple[int, Site], SiteImage], spec: DecoderSpec) -> tuple[int, ...]:
    """``row_sums`` of every operand: by site, its A of each slice and then its B of each slice, by layer; 0 where the
    adapter has nothing. Cheap enough to be compared at each load, unlike ``checksum``."""
    sums: list[int] = []
    for site, names in SITE_SLICES.items():
        for index in range(2 * len(names)):
            for layer in range(spec.layers):
                image = sites.get((layer, site))
                part = None if image is None else (*image.a.unbind(1), *image.b)[index]
                sums.append(0 if part is None else int(row_sums(part.contiguous().unsqueeze(0))[0]))
    return tuple(sums)


def build_image(
    directory: Path,
    plan: AdapterPlan,
    spec: DecoderSpec,
    dtype: torch.dtype,
    digest: AdapterDigest,
    base: BaseWeights = no_base,
) -> DeviceImage:
    """Reads each tensor of the adapter once, and of the base what DoRA's norms and replaced biases need. ``plan`` must
    come from validating this very directory against ``spec``.

    Raises AdapterLoadFailed if the file and the plan disagree, or a value leaves the range of ``dtype``.
    """
    try:
        with WeightFiles(directory, plan.weights, HeaderLimits()) as weights:
            source = ImageSource(weights, spec, digest, base)
            sites = {key: image for key, image in _sites(source, plan, dtype)}
            extras = build_extras(source, plan)
    except HeaderRefused as error:
        raise AdapterLoadFailed(f"adapter {digest}: {error.message}", metadata={"adapter": digest}) from error
    placed = sum(part is not None for image in sites.values() for part in image.b)
    wanted = sum(module.rank > 0 for module in plan.modules.values())
    if placed != wanted or any(key[0] >= spec.layers for key in plan.modules):
        raise source.failed(f"{placed} of {wanted} modules have a place in the base; register it again")
    extra_bytes = 0 if extras is None else extras.nbytes
    return DeviceImage(
        digest=digest,
        rank=plan.rank,
        dtype=dtype,
        sites=sites,
        extras=extras,
        checksum=checksum(sites, extras),
        sums=operand_sums(sites, spec),
        extra_sums=extra_sums(extras),
        extra_bytes=extra_bytes,
        nbytes=extra_bytes + sum(image.nbytes for image in sites.values()),
    )


def _sites(source: ImageSource, plan: AdapterPlan, dtype: torch.dtype) -> Iterator[tuple[tuple[int, Site], SiteImage]]:
    for lora_site in source.spec.lora_sites():
        modules = [plan.modules.get((lora_site.layer, name)) for name in lora_site.slices]
        if not any(module is not None and module.rank for module in modules):
            continue
        a = source.memory.zeros((plan.rank, len(modules), lora_site.in_features), dtype)
        b: list[torch.Tensor | None] = []
        for index, (module, out_features) in enumerate(zip(modules, lora_site.out_features, strict=True)):
            if module is None or not module.rank:
                b.append(None)
                continue
            part_a, part_b = source.factors(module, lora_site.in_features, out_features)
            a[: module.rank, index] = part_a.to(dtype)
            part = source.memory.zeros((plan.rank, out_features), dtype)
            part[: module.rank] = part_b.mul(module.scale).T.to(dtype)
            b.append(part)
        image = SiteImage(a, tuple(b))
        if not all(bool(torch.isfinite(part).all()) for part in (image.a, *image.b) if part is not None):
            raise source.failed(f"a scaled weight is outside the range of {dtype}; serve it in float32")
        yield (lora_site.layer, lora_site.site), image


def image_builder(
    spec: DecoderSpec, dtype: torch.dtype, base: BaseWeights = no_base
) -> Callable[[Path, AdapterPlan, AdapterDigest], DeviceImage]:
    """What ``lorry.adapters.tiers`` takes as its builder."""

    def build(directory: Path, plan: AdapterPlan, digest: AdapterDigest) -> DeviceImage:
        return build_image(directory, plan, spec, dtype, digest, base)

    return build


__all__ = ["DTYPES", "DeviceImage", "SiteImage", "build_image", "checksum", "image_builder", "operand_sums", "row_sums"]
