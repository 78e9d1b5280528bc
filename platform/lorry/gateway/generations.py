"""The service layer: one generation as events, the same for every transport."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from typing import Any, TypeVar

from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import Finished
from lorry.errors import Draining, LorryError, ProvenanceMismatch
from lorry.gateway import wire
from lorry.gateway.admission import Admission, Admitted, Noted
from lorry.gateway.calls import Call, Calls
from lorry.gateway.checks import is_request_id
from lorry.gateway.context import CallContext
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.observe import Ended, Watch, ended_request
from lorry.gateway.outcomes import Outcomes
from lorry.gateway.pieces import Merger
from lorry.registry.fleet.desk import RecentRequests

DELTA_TOKENS_MAX = 1024
"""Tokens of one message, so that what piled up for a slow reader fits what clients take."""
ASIDE = 256
"""Tokens with logprobs: what has more is written down by a thread. As many as a request may ask for take a third of a
second, and the loop has all other streams to serve."""

T = TypeVar("T")
Event = pb.StreamStart | pb.Delta | pb.StreamEnd


class Generation:
    """One request. Either ``whole`` or ``events``, once."""

    def __init__(
        self,
        message: pb.GenerateRequest,
        context: CallContext,
        admission: Admission,
        calls: Calls,
        counters: GatewayCounters,
        draining: bool,
        tell: Callable[[Ended], object],
    ) -> None:
        self._began = asyncio.get_running_loop().time()
        self._noted = Noted()
        self._call: Call | None = None
        self._finished: Finished | None = None
        self._tell = tell
        self._message = message
        self._context = context
        self._admission = admission
        self._calls = calls
        self._counters = counters
        self._draining = draining
        self._admitted: Admitted | None = None

    @property
    def admitted(self) -> Admitted:
        """Known once there is an answer, or the first event of one."""
        assert self._admitted is not None, "nothing is answered before it was admitted"
        return self._admitted

    async def whole(self) -> pb.GenerateResponse:
        """Raises the LorryError that refused or ended it."""
        async with self._counted(stream=False):
            admitted = await self._admit()
            async with self._calls.open(admitted, self._context) as call:
                self._call = call
                whole = Merger()
                while True:
                    batch = await call.next()
                    for piece in batch.pieces:
                        whole.add(piece.choice, piece.token_ids, piece.text, piece.logprobs)
                    if batch.finished is not None:
                        self._finished = batch.finished
                        await self._calls.settle(call, batch.finished)
                        pieces, started = whole.take(), call.relay.started
                        scored = len(started.prompt_logprobs) + sum(len(piece.logprobs) for piece in pieces)
                        return await _written(
                            scored, wire.response, admitted.answer, started, pieces, batch.finished, call.ledger_id
                        )

    async def events(self) -> AsyncGenerator[Event, None]:
        """StreamStart, Deltas, StreamEnd; or the LorryError that refused or ended it, at any point. Never ends without
        one of both. Nothing comes before the engine's first token, so what is refused may be sent again; the bill is
        durable before StreamEnd comes. Close it."""
        async with self._counted(stream=True):
            admitted = await self._admit()
            async with self._calls.open(admitted, self._context) as call:
                self._call = call
                begun, finished, held = False, None, dict[int, int]()
                while finished is None:
                    batch = await call.next()
                    finished, checked = batch.finished, True
                    if not begun:
                        begun, checked = True, False
                        started = call.relay.started
                        start = await _written(len(started.prompt_logprobs), wire.start, admitted.answer, started)
                        call.check()
                        yield start
                    for piece in chain.from_iterable(piece.split(DELTA_TOKENS_MAX) for piece in batch.pieces):
                        delta = wire.delta(admitted.answer, piece)
                        tokens = held.pop(piece.choice, 0) + len(piece.token_ids)
                        if delta is None:
                            held[piece.choice] = tokens
                            continue
                        if not checked:
                            call.check()
                        call.handed += tokens
                        checked = False
                        yield delta
                self._finished = finished
                await self._calls.settle(call, finished)
                yield wire.end(admitted.answer, call.relay.started, finished, call.ledger_id)

    async def _admit(self) -> Admitted:
        if self._draining:
            raise Draining("this gateway is going down; send the request again", retry_after_s=1.0)
        try:
            self._admitted = await self._admission.admit(self._message, self._context, self._noted)
        except ProvenanceMismatch:
            self._counters.provenance_mismatches += 1
            raise
        return self._admitted

    @asynccontextmanager
    async def _counted(self, stream: bool) -> AsyncIterator[None]:
        outcome = "CANCELLED"
        try:
            yield
            outcome = "OK"
        except LorryError as error:
            outcome = error.reason
            raise
        except Exception:  # counted under its name, and raised on
            outcome = "INTERNAL"
            raise
        finally:
            self._counters.outcomes[outcome] += 1
            self._tell(
                Ended(
                    self._context,
                    outcome,
                    self._began,
                    asyncio.get_running_loop().time(),
                    self._noted,
                    self._message,
                    self._message.request_id if is_request_id(self._message.request_id) else "",
                    stream,
                    self._admitted,
                    self._call,
                    self._finished,
                )
            )


async def _written(scored: int, write: Callable[..., T], *parts: Any) -> T:
    return write(*parts) if scored <= ASIDE else await asyncio.to_thread(write, *parts)


class Generations:
    """Begins generations, for all transports of one gateway. ``draining``: new ones are refused. ``watch`` hears how
    each of them ended."""

    def __init__(
        self,
        admission: Admission,
        calls: Calls,
        counters: GatewayCounters,
        watch: Watch | None = None,
        recent: RecentRequests | None = None,
        now: Callable[[], float] = time.time,
        outcomes: Outcomes | None = None,
    ) -> None:
        """``recent``: where what failed or took long is remembered. ``outcomes``: where what has no bill is counted."""
        self.watch = watch or Watch()
        self._recent = recent or RecentRequests(now)
        self._outcomes = outcomes or Outcomes(None, now)
        self._now = now
        self.admission = admission
        self._calls = calls
        self._counters = counters
        self.draining = False

    @contextmanager
    def refusals(self, context: CallContext, request_id: str) -> Iterator[Noted]:
        """What a transport refuses in the block, before it begins a generation, counts as the end of one."""
        clock, noted = asyncio.get_running_loop().time, Noted()
        began = clock()
        try:
            yield noted
        except LorryError as error:
            self._counters.outcomes[error.reason] += 1
            self._hear(Ended(context, error.reason, began, clock(), noted, request_id=request_id))
            raise

    def begin(self, message: pb.GenerateRequest, context: CallContext) -> Generation:
        """Nothing is checked before its answer is asked for."""
        return Generation(message, context, self.admission, self._calls, self._counters, self.draining, self._tell)

    def _hear(self, ended: Ended) -> None:
        self.watch.tell(ended)
        caller, resolution = ended.noted.caller, ended.noted.resolution
        if caller is not None and (ended.call is None or not ended.call.billed):
            self._outcomes.add(caller.tenant, "" if resolution is None else resolution.adapter_id, ended.outcome)

    def _tell(self, ended: Ended) -> None:
        self._hear(ended)
        self._recent.note(ended_request(ended, self._now()))


__all__ = ["ASIDE", "DELTA_TOKENS_MAX", "Event", "Generation", "Generations"]
