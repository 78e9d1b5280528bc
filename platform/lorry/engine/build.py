"""A running engine with disk and host tiers over the configured object store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from lorry.adapters.image import DeviceImage, build_image
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.store import open_store
from lorry.adapters.tiers import HostTierStore, open_host_tier
from lorry.adapters.validate import Limits
from lorry.config import EngineConfig
from lorry.engine.local import LocalEngine
from lorry.engine.parts import build_parts
from lorry.ids import AdapterDigest
from lorry.models.weights import read_spec


def build_engine(config: EngineConfig) -> LocalEngine:
    """Call on the event loop's thread. Raises what ``build_parts`` raises, with nothing left running."""
    wake: list[Callable[[], None]] = []

    def changed() -> None:
        for call in wake:
            call()

    spec = read_spec(config.base_dir)

    def image(folder: Path, plan: AdapterPlan, digest: AdapterDigest) -> DeviceImage:
        # The CPU's arena is float32 whatever the base's dtype is, so that LoRA loses nothing to rounding.
        return build_image(folder, plan, spec, torch.float32, digest)

    store = open_store(config.store)
    host: HostTierStore[DeviceImage] = open_host_tier(
        config.tiers,
        store,
        spec,
        image,
        limits=Limits(max_rank=config.memory.max_rank),
        on_change=changed,
    )

    def close() -> None:
        host.close()
        store.close()

    try:
        parts = build_parts(config, host)
    except BaseException:
        close()
        raise
    wake.append(parts.core.wake)
    return LocalEngine(parts.core, parts.info, close)


__all__ = ["build_engine"]
