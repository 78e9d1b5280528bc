"""A running engine with disk and host tiers over the configured object store, and its watchdog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lorry.adapters.image.build import image_builder
from lorry.adapters.store import open_store
from lorry.adapters.tier_views import TierCounts
from lorry.adapters.tiers import BaseFiles, Build, HostTierStore, I, open_host_tier
from lorry.adapters.validate import Limits
from lorry.config import EngineConfig
from lorry.engine.holdings import Copies, Holdings
from lorry.engine.local import LocalEngine
from lorry.engine.parts import EngineParts, build_parts
from lorry.engine.watchdog import Watchdog
from lorry.errors import InvalidRequest
from lorry.layers.base_tensors import BaseTensors
from lorry.models.weights import DTYPES, read_spec
from lorry.text import Tokenizer

if TYPE_CHECKING:
    from lorry.engine.gpu.parts import PagedEngineParts


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine that does not run yet. ``open`` makes it run, once; ``close`` is for one that never will."""

    config: EngineConfig
    parts: EngineParts | PagedEngineParts
    copies: Copies
    close: Callable[[], None]
    tiers: Callable[[], TierCounts] = TierCounts

    def open(self) -> LocalEngine:
        """Call on the event loop's thread. The engine is warm when its ``info`` answers."""
        core = self.parts.core
        watchdog = Watchdog(self.config.watchdog, core)
        core.listen(watchdog)
        core.meter.tiers = self.tiers
        core.sections["watchdog"] = watchdog.state

        def close() -> None:
            watchdog.stop()
            self.close()

        watchdog.start()
        holdings = Holdings(core, self.parts.scheduler, self.copies)
        return LocalEngine(core, self.parts.info, holdings, close)


def build(config: EngineConfig) -> BuiltEngine:
    """Loads the base; takes seconds, on any thread. Raises what ``build_parts`` raises, with nothing left running."""
    wake: list[Callable[[], None]] = []

    def changed() -> None:
        for call in wake:
            call()

    spec = read_spec(config.base_dir)
    base = BaseFiles(config.base_dir, Tokenizer.load(config.base_dir))

    store = open_store(config.store)
    tensors = BaseTensors(config.base_dir, spec, DTYPES[config.dtype])

    def tier(builder: Build[I]) -> HostTierStore[I]:
        limits = Limits(max_rank=config.memory.max_rank)
        return open_host_tier(config.tiers, store, spec, builder, base=base, limits=limits, on_change=changed)

    opened: list[Callable[[], None]] = [store.close]

    def close() -> None:
        for call in reversed(opened):
            call()

    try:
        parts: EngineParts | PagedEngineParts
        if config.device == "cpu":
            # The CPU's arena is float32 whatever the base's dtype is, so that LoRA loses nothing to rounding.
            host = tier(image_builder(spec, torch.float32, tensors))
            opened.append(host.close)
            copies: Copies = host
            counts = host.counts
            parts = build_parts(config, host)
        else:
            from lorry.engine.gpu.parts import build_paged_parts, packed_images  # Triton is not everywhere

            device = device_of(config.device)
            packed = tier(packed_images(config, spec, tensors, device))
            opened.append(packed.close)
            copies = packed
            counts = packed.counts
            parts = build_paged_parts(config, packed, device)
    except BaseException:  # nothing is left running, whatever was raised
        close()
        raise
    wake.append(parts.core.wake)
    return BuiltEngine(config, parts, copies, close, counts)


def device_of(name: str) -> torch.device:
    """Raises InvalidRequest where the machine has no such device."""
    if name == "interpreter":
        return torch.device("cpu")
    if not name.startswith("cuda"):
        raise InvalidRequest.field("device", f"{name!r} is not served; use cpu or cuda")
    if not torch.cuda.is_available():
        raise InvalidRequest.field("device", f"{name!r}: this machine or this build of torch has no GPU; use cpu")
    number = name.removeprefix("cuda").removeprefix(":") or "0"
    count = torch.cuda.device_count()
    if not number.isdecimal() or int(number) >= count:
        raise InvalidRequest.field("device", f"{name!r} is not one of cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", int(number))  # with its number, as tensors have it


__all__ = ["BuiltEngine", "build", "device_of"]
