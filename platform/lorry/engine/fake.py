"""An engine without a model: deterministic tokens, the whole contract, and faults on demand. For tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from lorry.adapters.manifest import AdapterRef
from lorry.engine.contract import (
    ChoiceEnd,
    EngineClient,
    EngineEvent,
    EngineInfo,
    EngineRequest,
    Finished,
    Forgotten,
    Provenance,
    Started,
    Tokens,
    Whereabouts,
)
from lorry.engine.fake_model import FakeModel
from lorry.engine.metrics import COMPUTED, OUTPUT, EngineMetrics
from lorry.engine.views import MemoryView, QueueView, VersionCopies
from lorry.errors import (
    AdapterCold,
    AdapterObjectMissing,
    DeadlineExceeded,
    EngineUnavailable,
    FailedPrecondition,
    InvalidRequest,
    LorryError,
)
from lorry.ids import AdapterKey, AdapterScope
from lorry.request import check_params
from lorry.text import Tokenizer

FAKE_BYTES = 1000
"""Of each copy of an adapter that it had."""


class FaultKind(StrEnum):
    """``DIE``: the whole engine, as if its process were killed. ``HANG``: for ever. ``LATE``: until
    ``FakeEngine.release`` is set. ``END``: the iterator ends without Finished. ``FAIL``: ``Fault.error`` is raised.
    ``PROVENANCE``: the next event that states one states ``Fault.provenance`` instead."""

    DIE = "die"
    HANG = "hang"
    LATE = "late"
    END = "end"
    FAIL = "fail"
    PROVENANCE = "provenance"


@dataclass(frozen=True, slots=True)
class Fault:
    """Strikes before event ``at`` of a request: 0 is Started, 1 the first Tokens, -1 Finished."""

    kind: FaultKind
    at: int = 0
    error: LorryError | None = None
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Live:
    request: EngineRequest
    purged: bool = False
    most: int = 1
    fewest: int = 1_000_000


class FakeEngine(EngineClient):
    """Tokens and logprobs are FakeModel's.

    ``script`` names a request's tokens instead (``eos_ids`` among them stop it); ``fault`` its fault. Every event
    takes one turn of the loop, so requests interleave as in a batch, and so do the choices of one.
    """

    def __init__(self, tokenizer: Tokenizer, info: EngineInfo, eos_ids: frozenset[int] = frozenset()) -> None:
        self._info = info
        self.texts: dict[str, Tokenizer] = {}
        """Versions' own text sides by digest; a request that names another gets the base's."""
        self._model = FakeModel(tokenizer, eos_ids, self.texts)
        self._live: dict[int, _Live] = {}
        self._loaded: set[AdapterKey] = set()
        self._hosted: set[AdapterKey] = set()
        self._count = 0
        self._outcomes: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._death: asyncio.Event = asyncio.Event()
        self._closed = False
        self.queued = QueueView()
        """What ``queue`` says."""
        self.release = asyncio.Event()
        self.fault: Callable[[EngineRequest], Fault | None] = lambda request: None
        self.seen: list[EngineRequest] = []
        self.aborted: list[str] = []
        """Ids of requests whose iterator was closed before Finished or an error."""

    @property
    def script(self) -> Callable[[EngineRequest], Sequence[int]] | None:
        return self._model.script

    @script.setter
    def script(self, tokens: Callable[[EngineRequest], Sequence[int]] | None) -> None:
        self._model.script = tokens

    async def info(self) -> EngineInfo:
        self._check_alive()
        return self._info

    async def state(self) -> dict[str, Any]:
        self._check_alive()
        return {
            "live": len(self._live),
            "requests": [live.request.request_id for live in self._live.values()][:100],
            "slots": [{"digest": adapter.digest, "scope": adapter.scope} for adapter in sorted(self._loaded)],
        }

    async def metrics(self) -> EngineMetrics:
        """Of what it has: requests, tokens, hits, slots."""
        self._check_alive()
        return EngineMetrics(
            build=self._info.engine_build,
            dtype=self._info.dtype,
            running=len(self._live),
            outcomes=dict(self._outcomes),
            tokens=dict(self._tokens),
            hits=dict(self._hits),
            slots={"pinned": 0, "held": 0, "idle": len(self._loaded), "empty": 0},
        )

    async def whereabouts(self, adapter: AdapterKey) -> Whereabouts:
        self._check_alive()
        loaded, live = adapter in self._loaded, self._live_on(adapter)
        return Whereabouts(loaded, loaded or adapter in self._hosted, loaded or adapter in self._hosted, live)

    async def memory(self) -> MemoryView:
        """Of what it has: slots and copies."""
        self._check_alive()
        slots = {"total": len(self._loaded), "filled": len(self._loaded)}
        sizes = {"device_used": FAKE_BYTES * len(self._loaded), "device_adapters": FAKE_BYTES * len(self._loaded)}
        return MemoryView(slots=slots, bytes=sizes, copies=self._copies())

    async def copies(self, scopes: Collection[AdapterScope]) -> tuple[VersionCopies, ...]:
        self._check_alive()
        return tuple(one for one in self._copies() if one.adapter.scope in scopes)

    async def queue(self) -> QueueView:
        self._check_alive()
        return self.queued

    async def preload(self, ref: AdapterRef, wait_s: float) -> None:
        self._check_alive()
        self._hosted.add(ref.key)

    async def evict(self, adapter: AdapterKey) -> bool:
        self._check_alive()
        if live := self._live_on(adapter):
            raise FailedPrecondition(f"adapter {adapter}: {live} requests run or wait on it; wait until they end")
        if adapter not in self._loaded:
            return False
        self._loaded.remove(adapter)
        self._hosted.add(adapter)
        return True

    async def forget(self, adapter: AdapterKey) -> Forgotten:
        self._check_alive()
        here = adapter in self._loaded | self._hosted
        found = Forgotten(FAKE_BYTES * here, FAKE_BYTES * here, int(adapter in self._loaded), 0)
        for live in self._live.values():
            live.purged |= live.request.adapter is not None and live.request.adapter.key == adapter
        self._loaded.discard(adapter)
        self._hosted.discard(adapter)
        return found

    async def close(self) -> None:
        self._closed = True
        self._death.set()

    def die(self) -> None:
        """As if the process were killed; ``revive`` starts it anew."""
        self._death.set()

    def revive(self) -> None:
        self._death = asyncio.Event()

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        self._check_alive()
        self._check(request)
        self.seen.append(request)
        self._count += 1
        key, live, ended = self._count, _Live(request), False
        self._live[key] = live
        fault = self.fault(request)
        try:
            async with aclosing(self._events(live, fault)) as events:
                async for event in events:
                    ended = isinstance(event, Finished)
                    self._note(event)
                    yield event
            ended = True
        except LorryError as error:
            ended = True
            self._outcomes[error.reason] += 1
            raise
        finally:
            del self._live[key]
            if not ended:
                self.aborted.append(request.request_id)

    def _note(self, event: EngineEvent) -> None:
        if isinstance(event, Started):
            self._hits[event.tier] += 1
        elif isinstance(event, Finished):
            self._outcomes[event.reason] += 1
            self._tokens[COMPUTED] += event.prompt_tokens
            self._tokens[OUTPUT] += event.output_tokens

    async def _events(self, live: _Live, fault: Fault | None) -> AsyncGenerator[EngineEvent, None]:
        death, request, lie = self._death, live.request, None
        for index, event in enumerate(self._honest(live)):
            await asyncio.sleep(0)
            if death.is_set():
                raise self._gone()
            if live.purged:
                raise AdapterObjectMissing("the adapter was purged; its bytes are destroyed")
            if fault is not None and (fault.at == index or (fault.at == -1 and isinstance(event, Finished))):
                if fault.kind is FaultKind.END:
                    return
                if fault.kind is FaultKind.PROVENANCE:
                    lie = fault.provenance
                else:
                    await self._strike(fault, request, death)
            if lie is not None and not isinstance(event, Tokens):
                event, lie = replace(event, provenance=replace(event.provenance, **lie)), None
            yield event

    async def _strike(self, fault: Fault, request: EngineRequest, death: asyncio.Event) -> None:
        if fault.kind is FaultKind.FAIL:
            assert fault.error is not None
            raise fault.error
        if fault.kind is FaultKind.DIE:
            self.die()
            raise self._gone()
        waits = [asyncio.ensure_future(death.wait())]
        if fault.kind is FaultKind.LATE:
            waits.append(asyncio.ensure_future(self.release.wait()))
        try:
            async with asyncio.timeout(request.deadline_s):
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed while the request ran; allow more time") from None
        finally:
            for wait in waits:
                wait.cancel()
        if death.is_set():
            raise self._gone()

    def _honest(self, live: _Live) -> Iterator[EngineEvent]:
        request = live.request
        provenance = Provenance(
            request.adapter.digest if request.adapter else None,
            self._info.base,
            self._tokenizer_of(request),
            self._info.dtype,
            self._info.engine_build,
            self._info.replica,
        )
        tier = self._load(request)
        load_s = 0.0 if tier in ("base", "device") else 0.002
        yield Started(provenance, tier, 0.001, load_s, self._model.prompt_logprobs(request))
        running = {choice: self._model.choice(request, choice) for choice in range(request.n)}
        ends: dict[int, ChoiceEnd] = {}
        while running:
            for choice, tokens in list(running.items()):
                self._mix(live)
                try:
                    yield next(tokens)
                except StopIteration as done:
                    ends[choice] = done.value
                    del running[choice]
        counts = [end.output_tokens for end in ends.values()]
        yield Finished(
            provenance,
            tuple(ends[choice] for choice in range(request.n)),
            prompt_tokens=len(request.prompt),
            output_tokens=sum(counts),
            cached_prompt_tokens=0,
            prefill_s=0.003,
            ttft_s=0.004,
            decode_s=0.001 * max(counts),
            max_distinct_adapters=live.most,
            min_distinct_adapters=live.fewest,
        )

    def _tokenizer_of(self, request: EngineRequest) -> str:
        named = None if request.text is None else request.text.sha256
        return named if named in self.texts else self._info.tokenizer_sha256

    def _load(self, request: EngineRequest) -> str:
        if request.adapter is None:
            return "base"
        if request.adapter.key in self._loaded:
            return "device"
        self._loaded.add(request.adapter.key)
        return "object_store"

    def _mix(self, live: _Live) -> None:
        adapters = {other.request.adapter.key if other.request.adapter else None for other in self._live.values()}
        live.most, live.fewest = max(live.most, len(adapters)), min(live.fewest, len(adapters))

    def _check(self, request: EngineRequest) -> None:
        if request.deadline_s is not None and request.deadline_s <= 0:
            raise DeadlineExceeded("the deadline had passed before the request came; allow more time")
        if request.base != self._info.base:
            raise FailedPrecondition(f"base: {request.base} is not served here, {self._info.base} is")
        if not request.prompt:
            raise InvalidRequest.field("prompt", "empty; send at least one token")
        vocabulary = self._info.vocabulary if request.vocabulary is None else request.vocabulary
        if request.adapter is None and (request.text is not None or vocabulary != self._info.vocabulary):
            raise InvalidRequest.field("text", "is a version's own, and the request names the base; leave it out")
        bad = next((i for i in request.prompt if not 0 <= i < vocabulary), None)
        if bad is not None:
            raise InvalidRequest.field("token_ids", f"{bad} is not below {vocabulary}; use the model's ids")
        check_params(request.sampling, request.stopping, request.output, request.n)
        bias = next((i for i, _ in request.sampling.logit_bias if not 0 <= i < vocabulary), None)
        if bias is not None:
            raise InvalidRequest.field("sampling.logit_bias", f"{bias} is not below {vocabulary}")
        total = len(request.prompt) + request.stopping.max_tokens
        if total > self._info.context_tokens:
            raise InvalidRequest.field("stopping.max_tokens", f"{total} tokens exceed {self._info.context_tokens}")
        if request.reject_cold and request.adapter and request.adapter.key not in self._loaded:
            raise AdapterCold("the adapter is not loaded; use COLD_LOAD_WAIT or try again", retry_after_s=1.0)

    def _live_on(self, adapter: AdapterKey) -> int:
        adapters = (live.request.adapter for live in self._live.values())
        return sum(one is not None and one.key == adapter for one in adapters)

    def _copies(self) -> tuple[VersionCopies, ...]:
        return tuple(
            VersionCopies(
                adapter,
                slot if adapter in self._loaded else None,
                device_bytes=FAKE_BYTES * (adapter in self._loaded),
                host_bytes=FAKE_BYTES,
                disk_bytes=FAKE_BYTES,
                running=self._live_on(adapter),
                holding=self._live_on(adapter),
                idle_s=0.0 if adapter in self._loaded else None,
            )
            for slot, adapter in enumerate(sorted(self._loaded | self._hosted))
        )

    def _check_alive(self) -> None:
        if self._closed or self._death.is_set():
            raise self._gone()

    def _gone(self) -> EngineUnavailable:
        return EngineUnavailable("the engine is gone; try again", retry_after_s=1.0)


__all__ = ["FakeEngine", "Fault", "FaultKind"]
