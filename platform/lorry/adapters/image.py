"""The host tier's ready-to-copy image of an adapter, for the CPU arena. The only module here that imports torch.

Layout, per site of ``spec.lora_sites()`` that the adapter touches (others are absent)::

    a      [rank, slices, K]      row i of slice s is A_s[i, :]; zeros beyond a slice's own rank
    b[s]   [rank, N_s]            (scale * B_s).T, computed in float32, then cast; None where the slice has no delta

so that ``y_s += (x @ a[:, s].T) @ b[s]`` is the whole delta. ``rank`` is the adapter's largest.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from lorry.adapters.header import HeaderLimits, HeaderRefused, TensorFile
from lorry.adapters.plan import AdapterPlan, ModulePlan
from lorry.errors import AdapterLoadFailed
from lorry.ids import AdapterDigest
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

    ``sites`` holds only sites with at least one delta, in the order of the forward pass. ``checksum`` is
    SHA-256 over every tensor's place, shape and bytes: equal images have equal checksums.
    """

    digest: AdapterDigest
    rank: int
    dtype: torch.dtype
    sites: Mapping[tuple[int, Site], SiteImage]
    nbytes: int
    checksum: str
    sums: tuple[int, ...]
    """``operand_sums``: what the device's copy must add up to."""

    def site(self, layer: int, site: Site) -> SiteImage | None:
        """None: nothing to add at this site."""
        return self.sites.get((layer, site))

    def intact(self) -> bool:
        """Whether the bytes are still those that were built. Reads everything."""
        return checksum(self.sites) == self.checksum


def checksum(sites: Mapping[tuple[int, Site], SiteImage]) -> str:
    digest = hashlib.sha256()
    for layer, site in sorted(sites):
        image = sites[layer, site]
        for index, tensor in enumerate((image.a, *image.b)):
            if tensor is not None:
                digest.update(f"{layer} {site} {index} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
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


class _ImageMemory:
    """One anonymous mapping for all tensors of an image, so that its memory goes back to the system with the last of
    them: hundreds of small tensors on malloc's heap, which come and go by the adapter, leave holes between them."""

    _ALIGN = 16

    def __init__(self, elements: int, tensors: int, dtype: torch.dtype) -> None:
        size = (elements + tensors * self._ALIGN) * dtype.itemsize
        self._flat = torch.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=dtype)
        self._next = 0

    def zeros(self, *shape: int) -> torch.Tensor:
        begin, count = self._next, math.prod(shape)
        self._next += -(-count // self._ALIGN) * self._ALIGN
        return self._flat[begin : begin + count].view(shape)


def _memory_for(plan: AdapterPlan, spec: DecoderSpec, dtype: torch.dtype) -> _ImageMemory:
    elements = tensors = 0
    for site in spec.lora_sites():
        touched = [(site.layer, name) in plan.modules for name in site.slices]
        if any(touched):
            outs = [out for out, there in zip(site.out_features, touched, strict=True) if there]
            elements += plan.rank * (len(touched) * site.in_features + sum(outs))
            tensors += 1 + len(outs)
    return _ImageMemory(elements, tensors, dtype)


def build_image(
    directory: Path, plan: AdapterPlan, spec: DecoderSpec, dtype: torch.dtype, digest: AdapterDigest
) -> DeviceImage:
    """Reads each tensor once. ``plan`` must come from validating this very directory against ``spec``.

    Raises AdapterLoadFailed if the file and the plan disagree, or a value leaves the range of ``dtype``.
    """
    try:
        with TensorFile(directory / plan.weights, HeaderLimits()) as weights:
            sites: dict[tuple[int, Site], SiteImage] = {}
            memory = _memory_for(plan, spec, dtype)
            for lora_site in spec.lora_sites():
                modules = [plan.modules.get((lora_site.layer, name)) for name in lora_site.slices]
                if not any(modules):
                    continue
                a = memory.zeros(plan.rank, len(modules), lora_site.in_features)
                b: list[torch.Tensor | None] = []
                for index, (module, out_features) in enumerate(zip(modules, lora_site.out_features, strict=True)):
                    if module is None:
                        b.append(None)
                        continue
                    part_a, part_b = _read(weights, module, lora_site.in_features, out_features, digest)
                    a[: module.rank, index] = part_a.to(dtype)
                    part = memory.zeros(plan.rank, out_features)
                    part[: module.rank] = part_b.mul(module.scale).T.to(dtype)
                    b.append(part)
                sites[lora_site.layer, lora_site.site] = _finite(SiteImage(a, tuple(b)), dtype, digest)
    except HeaderRefused as error:
        raise AdapterLoadFailed(f"adapter {digest}: {error.message}", metadata={"adapter": digest}) from error
    placed = sum(part is not None for image in sites.values() for part in image.b)
    if placed != len(plan.modules):
        raise _failed(digest, f"{placed} of {len(plan.modules)} modules have a place in the base; register it again")
    nbytes = sum(image.nbytes for image in sites.values())
    return DeviceImage(digest, plan.rank, dtype, sites, nbytes, checksum(sites), operand_sums(sites, spec))


def image_builder(spec: DecoderSpec, dtype: torch.dtype) -> Callable[[Path, AdapterPlan, AdapterDigest], DeviceImage]:
    """What ``lorry.adapters.tiers`` takes as its builder."""

    def build(directory: Path, plan: AdapterPlan, digest: AdapterDigest) -> DeviceImage:
        return build_image(directory, plan, spec, dtype, digest)

    return build


def _read(
    weights: TensorFile, module: ModulePlan, in_features: int, out_features: int, digest: AdapterDigest
) -> tuple[torch.Tensor, torch.Tensor]:
    for name, want in ((module.a_tensor, (module.rank, in_features)), (module.b_tensor, (out_features, module.rank))):
        info = weights.tensors.get(name)
        if info is None or info.shape != want:
            have = "absent" if info is None else f"of shape {info.shape}"
            raise _failed(digest, f"tensor {name} is {have}, want shape {want}; register the adapter again")
    # A copy, since torch does not take read-only arrays and the file's map must not outlive the build.
    return (
        torch.from_numpy(weights.read_tensor(module.a_tensor).copy()),
        torch.from_numpy(weights.read_tensor(module.b_tensor).copy()),
    )


def _finite(image: SiteImage, dtype: torch.dtype, digest: AdapterDigest) -> SiteImage:
    for tensor in (image.a, *image.b):
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            raise _failed(digest, f"a scaled weight is outside the range of {dtype}; serve it in float32")
    return image


def _failed(digest: AdapterDigest, why: str) -> AdapterLoadFailed:
    return AdapterLoadFailed(f"adapter {digest}: {why}", metadata={"adapter": digest})


__all__ = ["DTYPES", "DeviceImage", "SiteImage", "build_image", "checksum", "image_builder", "operand_sums", "row_sums"]
