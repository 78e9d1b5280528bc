"""A running engine with disk and host tiers over the configured object store."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lorry.adapters.image import DeviceImage, image_builder
from lorry.adapters.store import open_store
from lorry.adapters.tiers import HostTierStore, open_host_tier
from lorry.adapters.validate import Limits
from lorry.config import EngineConfig
from lorry.engine.local import LocalEngine
from lorry.engine.parts import build_parts
from lorry.models.weights import read_spec


def build_engine(config: EngineConfig) -> LocalEngine:
    """Call on the event loop's thread. Raises what ``build_parts`` raises, with nothing left running."""
    wake: list[Callable[[], None]] = []

    def changed() -> None:
        for call in wake:
            call()

    spec = read_spec(config.base_dir)

    store = open_store(config.store)
    host: HostTierStore[DeviceImage] = open_host_tier(
        config.tiers,
        store,
        spec,
        # The CPU's arena is float32 whatever the base's dtype is, so that LoRA loses nothing to rounding.
        image_builder(spec, torch.float32),
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
