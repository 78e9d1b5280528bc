"""From a base's digest to the engine that serves it, with the tokenizer that belongs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lorry.engine.contract import EngineClient, EngineInfo
from lorry.errors import (
    EngineUnavailable,
    InternalError,
    LorryError,
    ProvenanceMismatch,
    Unavailable,
    UnsupportedBase,
)
from lorry.ids import BaseDigest
from lorry.registry.entries import BaseModelEntry
from lorry.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Route:
    """``context_tokens`` is the smaller of what engine and registry allow, prompt and output together."""

    engine: EngineClient
    info: EngineInfo
    tokenizer: Tokenizer
    context_tokens: int


class EngineRoutes:
    """Asks engines what they serve at first need, and again after one was lost (``forget``)."""

    def __init__(self, engines: Sequence[EngineClient], load: Callable[[Path], Tokenizer] = Tokenizer.load) -> None:
        self._engines = tuple(engines)
        self._load = load
        self._known: dict[BaseDigest, tuple[EngineClient, EngineInfo, Tokenizer]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def route(self, base: BaseModelEntry) -> Route:
        """Raises EngineUnavailable where no engine serves the base now, and ProvenanceMismatch where the
        engine's tokenizer is not the registered one."""
        found = self._known.get(base.base_digest)
        if found is None:
            await self._ask()
            found = self._known.get(base.base_digest)
        if found is None:
            raise EngineUnavailable(f"model: no engine serves {base.resource} now; try again", retry_after_s=1.0)
        engine, info, tokenizer = found
        if tokenizer.sha256 != base.tokenizer_sha256 or info.tokenizer_sha256 != base.tokenizer_sha256:
            raise ProvenanceMismatch(
                f"tokenizer: {base.resource} is registered with {base.tokenizer_sha256}, its engine has "
                f"{info.tokenizer_sha256} and its files are {tokenizer.sha256}; register the base anew"
            )
        return Route(engine, info, tokenizer, min(info.context_tokens, base.context_tokens))

    def forget(self, base: BaseDigest) -> None:
        """The engine behind this base was lost: what it said of itself may no longer hold."""
        self._known.pop(base, None)

    async def check(self) -> None:
        """Raises what an engine that is not warm says of itself, or EngineUnavailable where there is none."""
        if not self._engines:
            raise EngineUnavailable("no engine is configured here; start one")
        for engine in self._engines:
            await engine.info()

    async def healthy(self) -> bool:
        """Whether every engine is warm and takes requests."""
        try:
            await self.check()
        except LorryError:
            return False
        return True

    async def _ask(self) -> None:
        """One round for all who wait for it, whatever its outcome; a caller that leaves does not end it."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._round())
        await asyncio.shield(self._asking)

    async def _round(self) -> None:
        try:
            for engine in self._engines:
                try:
                    info = await engine.info()
                except Unavailable:  # it is not warm, or it drains
                    continue
                if info.base not in self._known:
                    tokenizer = await self._tokenizer(info.base_dir)
                    self._known[info.base] = (engine, info, tokenizer)
        finally:
            self._asking = None

    async def _tokenizer(self, folder: Path) -> Tokenizer:
        try:
            return await asyncio.to_thread(self._load, folder)
        except UnsupportedBase as error:  # the operator's fault, not the caller's
            raise InternalError(f"the tokenizer of the base cannot be used: {error}") from error


__all__ = ["EngineRoutes", "Route"]
