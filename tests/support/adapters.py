"""Adapters made and saved by PEFT, and a host tier that reads them from folders at once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Generic

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel
from typing_extensions import TypeVar

from lorry.adapters.extra_bytes import extra_bytes
from lorry.adapters.image.build import DeviceImage, image_builder
from lorry.adapters.image.source import BaseWeights, no_base
from lorry.adapters.manifest import AdapterRef, files_digest, scan_directory
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.tier_views import HostImage, TierSight
from lorry.adapters.tiers import Build
from lorry.adapters.validate import Limits, validate_directory
from lorry.errors import AdapterLoadFailed, AdapterObjectMissing
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope
from lorry.layers.base_tensors import BaseTensors
from lorry.layers.spec import DecoderSpec
from lorry.residency import Failed, HostState, Ready
from lorry.text import Tokenizer, tokenizer_digest

ALL_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def save_adapter(model: PreTrainedModel, folder: Path, seed: int = 0, size: float = 0.3, **config: Any) -> PeftModel:
    """Gives the model a random LoRA of both factors, saves it with PEFT and returns the PEFT model."""
    defaults = {"r": 8, "lora_alpha": 16, "target_modules": ALL_TARGETS, "task_type": "CAUSAL_LM"}
    values: dict[str, Any] = defaults | config
    torch.manual_seed(seed)
    tuned = get_peft_model(copy.deepcopy(model), LoraConfig(**values))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * size / parameter.shape[-1] ** 0.5)
    tuned.eval()
    tuned.save_pretrained(str(folder))
    return tuned


def key_of(digest: AdapterDigest, scope: str = "a_own") -> AdapterKey:
    return AdapterKey(digest, AdapterScope(scope))


def ref_of(folder: Path, scope: str = "a_own") -> AdapterRef:
    files = scan_directory(folder)
    digest = files_digest(files)
    return AdapterRef(digest, f"adapters/sha256/{digest}", files, AdapterScope(scope))


I = TypeVar("I", bound=HostImage, default=DeviceImage)  # noqa: E741  an image


class FolderHost(Generic[I]):
    """HostTier over local folders: no fetching, images are built when they are asked for and kept. ``base_dir``: the
    base's folder, for adapters that need its weights. ``build``: of another device than the CPU."""

    def __init__(self, spec: DecoderSpec, base_dir: Path | None = None, build: Build[I] | None = None) -> None:
        self._spec = spec
        self._base_dir = base_dir
        self._base: BaseWeights = no_base if base_dir is None else BaseTensors(base_dir, spec, torch.float32)
        self._folders: dict[AdapterKey, Path] = {}
        self._build: Build[Any] = build or image_builder(spec, torch.float32, self._base)
        self._own = build is None
        self._images: dict[AdapterKey, I] = {}
        self.retained: set[AdapterKey] = set()

    def add(self, folder: Path, scope: str = "a_own") -> AdapterRef:
        ref = ref_of(folder, scope)
        self._folders[ref.key] = folder
        return ref

    def ensure(self, ref: AdapterRef) -> HostState:
        if ref.key not in self._images:
            folder = self._folders.get(ref.key)
            if folder is None:
                return Failed(AdapterObjectMissing(f"adapter {ref.digest} is not here"))
            report = validate_directory(folder, self._spec, Limits(), base_dir=self._base_dir)
            if report.plan is None:
                return Failed(AdapterLoadFailed(str(report.error())))
            image = self._images[ref.key] = self._build(folder, report.plan, ref.digest)
            if self._own:
                self._as_stated(report.plan, image.extra_bytes)
        image = self._images[ref.key]
        return Ready(image.rank, image.extra_bytes, image.chunk_count)

    def _as_stated(self, plan: AdapterPlan, taken: int) -> None:
        """What registration admits by is what a load takes, but for whole matrices that are the base's."""
        stated, whole = extra_bytes(plan, self._spec, 4), self._spec.hidden * 4
        spared = (stated - taken) / (whole * (plan.vocabulary or self._spec.vocabulary))
        assert spared in (0, 1, 2), f"{stated} bytes of extras are stated and {taken} are taken"

    def tier_of(self, adapter: AdapterKey) -> str:
        return "host" if adapter in self._images else "object_store"

    def sizes(self, adapter: AdapterKey) -> tuple[int, int]:
        image, folder = self._images.get(adapter), self._folders.get(adapter)
        size = 0 if folder is None else sum(file.stat().st_size for file in folder.iterdir())
        return (0 if image is None else image.nbytes), size

    def sight(self) -> TierSight:
        return TierSight({key: image.nbytes for key, image in self._images.items()})

    def forget(self, adapter: AdapterKey) -> tuple[int, int]:
        sizes = self.sizes(adapter)
        self._images.pop(adapter, None)
        self._folders.pop(adapter, None)
        return sizes

    def retain(self, adapter: AdapterKey) -> None:
        self.retained.add(adapter)

    def release(self, adapter: AdapterKey) -> None:
        self.retained.discard(adapter)

    def image(self, adapter: AdapterKey) -> I | None:
        return self._images.get(adapter)

    def text(self, adapter: AdapterKey) -> Tokenizer | None:
        if self._base_dir is None:
            return None
        own = Tokenizer.load(self._base_dir, self._folders[adapter])
        return None if own.sha256 == tokenizer_digest(self._base_dir) else own

    def discard(self, adapter: AdapterKey) -> None:
        self._images.pop(adapter, None)

    def close(self) -> None:
        self._images.clear()


__all__ = ["ALL_TARGETS", "FolderHost", "key_of", "ref_of", "save_adapter"]
