"""What a gateway asks of an engine, whatever the transport: one contract, one test suite. No torch, no grpc."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.plan import TextPlan
from lorry.engine.metrics import EngineMetrics
from lorry.engine.views import MemoryView, QueueView, VersionCopies
from lorry.errors import EmptyStream, InternalError, LorryError
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, BaseDigest, RequestId, TenantId
from lorry.request import OutputParams, SamplingParams, StoppingParams, TokenLogprobs

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """``adapter`` None is the base. Times are seconds from the moment of submission; None is no limit.

    ``n`` choices share the prompt; each has ``stopping`` of its own count. ``cache_salt`` is the tenant's, derived by
    the gateway: requests with another one, or another ``cache_scope``, never meet in the prefix cache, and an empty one
    keeps out of it.

    ``vocabulary`` and ``text`` are what the registry says of the adapter's version, None where they are the base's: ids
    are below the one, and the engine answers only with a text side whose digest is the other's.

    ``weight``, 1 to WEIGHT_MAX, is the tenant's: so many turns it has for one of a tenant of weight 1, when requests of
    both wait. Where a tenant's live requests say different ones, the newest's holds.
    """

    request_id: RequestId
    tenant: TenantId
    prompt: tuple[int, ...] = field(repr=False)
    adapter: AdapterRef | None
    base: BaseDigest
    sampling: SamplingParams
    stopping: StoppingParams
    deadline_s: float | None = None
    queue_timeout_s: float | None = None
    reject_cold: bool = False
    ttft_timeout_s: float | None = None
    priority: int = 0
    n: int = 1
    output: OutputParams = OutputParams()
    cache_salt: bytes = field(default=b"", repr=False)
    cache_scope: str = ""
    vocabulary: int | None = None
    text: TextPlan | None = None
    weight: int = 1


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
    adapter was when the request came. ``prompt_logprobs``: of every prompt token but the first, where asked for."""

    provenance: Provenance
    tier: str
    queue_s: float
    adapter_load_s: float
    prompt_logprobs: tuple[TokenLogprobs, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Tokens:
    """New ids of one choice and the text that became certain with them (it may be empty, or lag behind the ids).
    ``logprobs``: of ``token_ids``, where asked for."""

    token_ids: tuple[int, ...] = field(repr=False)
    text: str = field(repr=False)
    choice: int = 0
    logprobs: tuple[TokenLogprobs, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """``reason``: ``stop`` (end of sequence, a stop id, a stop string) or ``length`` (max_tokens, or the context's
    end). ``matched_stop`` is the stop string, or ''; ``matched_stop_id`` the id that ended it."""

    reason: str
    matched_stop: str
    matched_stop_id: int | None
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """All choices have ended; ``choices[i]`` is choice i. Nothing follows it. ``output_tokens`` is their sum,
    ``prompt_tokens`` and ``cached_prompt_tokens`` count the prompt once. Seconds are of choice 0, ``decode_s`` up to
    the last token of all."""

    provenance: Provenance
    choices: tuple[ChoiceEnd, ...]
    prompt_tokens: int
    output_tokens: int
    cached_prompt_tokens: int
    prefill_s: float
    ttft_s: float
    decode_s: float
    max_distinct_adapters: int
    min_distinct_adapters: int

    @property
    def reason(self) -> str:
        """Of choice 0."""
        return self.choices[0].reason

    @property
    def matched_stop(self) -> str:
        """Of choice 0."""
        return self.choices[0].matched_stop

    @property
    def matched_stop_id(self) -> int | None:
        """Of choice 0."""
        return self.choices[0].matched_stop_id


EngineEvent = Started | Tokens | Finished


class EventSink(Protocol):
    """Takes a request's events at once, on the engine client's loop. Neither method may raise or wait."""

    def event(self, event: EngineEvent) -> None: ...

    def fail(self, error: LorryError) -> None:
        """The request has ended so; nothing follows."""
        ...


class Feed(Protocol):
    """A request whose events are pushed."""

    def stop(self) -> None:
        """Aborts the request unless it has ended; the sink hears nothing more. Idempotent; a sink may call it too."""
        ...

    async def closed(self) -> None:
        """After ``stop``: returns when the engine has been told."""
        ...


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
    max_rank: int
    """The largest rank of an adapter's module that is served."""
    max_extra_bytes: int
    """The most device memory that one adapter may take beside its rank rows."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a version's bytes are in an engine. ``live``: requests that run or wait on it."""

    device: bool
    host: bool
    disk: bool
    live: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What an engine dropped of a version: bytes on disk and in host memory, slots of the device, pages of the prefix
    cache."""

    disk_bytes: int
    host_bytes: int
    device_slots: int
    kv_pages: int


class EngineClient(ABC):
    """One engine, as its gateway sees it. All methods belong to one event loop.

    Versions are known by their ``AdapterKey``: no method's answer, nor how long it takes, tells of the copies that
    other adapters with equal bytes have.
    """

    @abstractmethod
    async def info(self) -> EngineInfo:
        """Raises EngineUnavailable until the engine is warm."""

    @abstractmethod
    def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        """Started, Tokens..., Finished; or a LorryError at any point, and nothing after it. One choice's error is
        the request's.

        Never ends without Finished or an error. Closing the iterator (or cancelling its consumer) aborts
        the request: its pages, pin and hold are free within one step. The engine dying raises
        EngineUnavailable in every open iterator.
        """

    def feed(self, request: EngineRequest, sink: EventSink) -> Feed:
        """As ``generate``, for a reader that takes at once: what it would have yielded or raised is pushed, in later
        turns of the loop. Raises what ``generate`` raises before anything was asked of the engine."""
        return _PumpedFeed(self, request, sink)

    @abstractmethod
    async def state(self) -> dict[str, Any]:
        """Bounded JSON: queue, pages, slots (slot, generation, digest, pins), loads, steps."""

    @abstractmethod
    async def metrics(self) -> EngineMetrics:
        """At one moment between two steps; costs what it takes to copy some hundred numbers. Raises EngineUnavailable
        where there is no engine, or until it is warm."""

    @abstractmethod
    async def whereabouts(self, adapter: AdapterKey) -> Whereabouts:
        """An observation: it may be another a moment later."""

    @abstractmethod
    async def memory(self) -> MemoryView:
        """Bounded. Raises EngineUnavailable as ``metrics`` does."""

    @abstractmethod
    async def copies(self, scopes: Collection[AdapterScope]) -> tuple[VersionCopies, ...]:
        """Every copy of the adapters with these scopes; nothing in it depends on what others have."""

    @abstractmethod
    async def queue(self) -> QueueView:
        """Bounded. Raises EngineUnavailable as ``metrics`` does."""

    @abstractmethod
    async def preload(self, ref: AdapterRef, wait_s: float) -> None:
        """Returns when the version is in host memory, ready for the device. Nothing keeps it there but that it is the
        last that was asked for. Raises DeadlineExceeded after ``wait_s`` (the load goes on), or the load's error."""

    @abstractmethod
    async def evict(self, adapter: AdapterKey) -> bool:
        """Takes the version off the device; False where it is not there. Raises FailedPrecondition while requests run
        or wait on it."""

    @abstractmethod
    async def forget(self, adapter: AdapterKey) -> Forgotten:
        """Ends every request on the version (AdapterObjectMissing) and drops its bytes from device, prefix cache, host
        memory and disk. Memory is given back, not overwritten. A request that comes later brings it anew, if the object
        store still has it: who calls this sees to it that none comes. What other adapters with equal bytes have is
        not touched."""

    @abstractmethod
    async def close(self) -> None:
        """Ends every open iterator with EngineUnavailable. Idempotent."""


class _PumpedFeed:
    """A feed from an iterator."""

    def __init__(self, engine: EngineClient, request: EngineRequest, sink: EventSink) -> None:
        self._sink = sink
        self._open = True
        self._task = asyncio.create_task(self._run(engine, request))

    def stop(self) -> None:
        self._open = False
        if asyncio.current_task() is not self._task:
            self._task.cancel()

    async def closed(self) -> None:
        await asyncio.wait([self._task])

    async def _run(self, engine: EngineClient, request: EngineRequest) -> None:
        events: Any = engine.generate(request)
        finished = False
        try:
            async for event in events:
                self._sink.event(event)
                finished = isinstance(event, Finished)
                if finished or not self._open:
                    return
            raise EmptyStream("the engine ended the request without finishing it; try again, and report this")
        except LorryError as error:
            self._fail(error)
        except Exception:  # a task nobody awaits: its reader must be told, whatever it was
            _log.exception("request %s failed in its engine client", request.request_id)
            self._fail(InternalError(f"request {request.request_id} failed; the gateway's log says how"))
        finally:
            aclose = getattr(events, "aclose", None)
            if aclose is not None:
                await aclose()

    def _fail(self, error: LorryError) -> None:
        if self._open:
            self._open = False
            self._sink.fail(error)


__all__ = [
    "ChoiceEnd",
    "EngineClient",
    "EngineEvent",
    "EngineInfo",
    "EngineRequest",
    "EventSink",
    "Feed",
    "Finished",
    "Forgotten",
    "Provenance",
    "Started",
    "Tokens",
    "Whereabouts",
]
