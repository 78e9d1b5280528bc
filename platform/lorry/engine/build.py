"""A running engine with disk and host tiers over the configured object store, and its watchdog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lorry.adapters.image.build import DeviceImage, image_builder
from lorry.adapters.store import open_store
from lorry.adapters.tiers import BaseFiles, HostTierStore, open_host_tier
from lorry.adapters.validate import Limits
from lorry.config import EngineConfig
from lorry.engine.local import LocalEngine
from lorry.engine.parts import EngineParts, build_parts
from lorry.engine.watchdog import Watchdog
from lorry.layers.base_tensors import BaseTensors
from lorry.models.weights import DTYPES, read_spec
from lorry.text import Tokenizer


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine that does not run yet. ``open`` makes it run, once; ``close`` is for one that never will."""

    config: EngineConfig
    parts: EngineParts
    close: Callable[[], None]

    def open(self) -> LocalEngine:
        """Call on the event loop's thread. The engine is warm when its ``info`` answers."""
        core = self.parts.core
        watchdog = Watchdog(self.config.watchdog, core)
        core.listen(watchdog)
        core.sections["watchdog"] = watchdog.state

        def close() -> None:
            watchdog.stop()
            self.close()

        watchdog.start()
        return LocalEngine(core, self.parts.info, close)


def build(config: EngineConfig) -> BuiltEngine:
    """Loads the base; takes seconds, on any thread. Raises what ``build_parts`` raises, with nothing left running."""
    wake: list[Callable[[], None]] = []

    def changed() -> None:
        for call in wake:
            call()

    spec = read_spec(config.base_dir)
    base = BaseFiles(config.base_dir, Tokenizer.load(config.base_dir))

    store = open_store(config.store)
    host: HostTierStore[DeviceImage] = open_host_tier(
        config.tiers,
        store,
        spec,
        # The CPU's arena is float32 whatever the base's dtype is, so that LoRA loses nothing to rounding.
        image_builder(spec, torch.float32, BaseTensors(config.base_dir, spec, DTYPES[config.dtype])),
        base=base,
        limits=Limits(max_rank=config.memory.max_rank),
        on_change=changed,
    )

    def close() -> None:
        host.close()
        store.close()

    try:
        parts = build_parts(config, host)
    except BaseException:  # nothing is left running, whatever was raised
        close()
        raise
    wake.append(parts.core.wake)
    return BuiltEngine(config, parts, close)


__all__ = ["BuiltEngine", "build"]
