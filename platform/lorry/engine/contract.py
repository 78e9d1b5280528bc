"""What a gateway asks of an engine, whatever the transport: one contract, one test suite. No torch, no grpc."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorry.adapters.manifest import AdapterRef
from lorry.ids import AdapterDigest, BaseDigest, RequestId, TenantId
from lorry.request import SamplingParams, StoppingParams


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """``adapter`` None is the base. Times are seconds from the moment of submission; None is no limit."""

    request_id: RequestId
    tenant: TenantId
    prompt: tuple[int, ...]
    adapter: AdapterRef | None
    base: BaseDigest
    sampling: SamplingParams
    stopping: StoppingParams
    deadline_s: float | None = None
    queue_timeout_s: float | None = None
    reject_cold: bool = False


@dataclass(frozen=True, slots=True)
class Provenance:
    """Filled by the engine from its slot table: the digest of the bytes that it loaded and ran."""

    adapter: AdapterDigest | None
    base: BaseDigest
    tokenizer_sha256: str
    dtype: str
    engine_build: str
    replica: str


@dataclass(frozen=True, slots=True)
class Started:
    """The request's first token is there. ``tier``: base, device, host, disk or object_store, where the
    adapter was when the request came."""

    provenance: Provenance
    tier: str
    queue_s: float
    adapter_load_s: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """New ids and the text that became certain with them (it may be empty, or lag behind the ids)."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """``reason``: ``stop`` or ``length``. Nothing follows it."""

    provenance: Provenance
    reason: str
    matched_stop: str
    matched_stop_id: int | None
    prompt_tokens: int
    output_tokens: int
    cached_prompt_tokens: int
    prefill_s: float
    ttft_s: float
    decode_s: float
    max_distinct_adapters: int
    min_distinct_adapters: int


EngineEvent = Started | Tokens | Finished


@dataclass(frozen=True, slots=True)
class EngineInfo:
    base: BaseDigest
    tokenizer_sha256: str
    dtype: str
    engine_build: str
    replica: str
    context_tokens: int
    vocabulary: int
    max_sequences: int
    base_dir: Path


class EngineClient(ABC):
    """One engine, as its gateway sees it. All methods belong to one event loop."""

    @abstractmethod
    async def info(self) -> EngineInfo:
        """Raises EngineUnavailable until the engine is warm."""

    @abstractmethod
    def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        """Started, Tokens..., Finished; or a LorryError at any point, and nothing after it.

        Never ends without Finished or an error. Closing the iterator (or cancelling its consumer) aborts
        the request: its pages, pin and hold are free within one step. The engine dying raises
        EngineUnavailable in every open iterator.
        """

    @abstractmethod
    async def state(self) -> dict[str, Any]:
        """Bounded JSON: queue, pages, slots (slot, generation, digest, pins), loads, steps."""

    @abstractmethod
    async def close(self) -> None:
        """Ends every open iterator with EngineUnavailable. Idempotent."""


__all__ = [
    "EngineClient",
    "EngineEvent",
    "EngineInfo",
    "EngineRequest",
    "Finished",
    "Provenance",
    "Started",
    "Tokens",
]
