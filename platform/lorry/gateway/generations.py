"""The service layer: one generation as events, the same for every transport."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import chain

from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import Finished
from lorry.errors import Draining, LorryError, ProvenanceMismatch
from lorry.gateway import wire
from lorry.gateway.admission import Admission, Admitted
from lorry.gateway.calls import Call, Calls
from lorry.gateway.context import CallContext
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.pieces import Merger
from lorry.registry.authz import Caller
from lorry.registry.fleet.desk import NAME_MAX, EndedRequest, RecentRequests

DELTA_TOKENS_MAX = 1024
"""Tokens of one message, so that what piled up for a slow reader fits what clients take."""

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
        recent: RecentRequests,
        now: Callable[[], float],
    ) -> None:
        self._message = message
        self._context = context
        self._admission = admission
        self._calls = calls
        self._counters = counters
        self._draining = draining
        self._admitted: Admitted | None = None
        self._recent = recent
        self._now = now
        self._began = now()
        self._caller: Caller | None = None
        self._call: Call | None = None

    @property
    def admitted(self) -> Admitted:
        """Known once there is an answer, or the first event of one."""
        assert self._admitted is not None, "nothing is answered before it was admitted"
        return self._admitted

    async def whole(self) -> pb.GenerateResponse:
        """Raises the LorryError that refused or ended it."""
        async with self._counted():
            admitted = await self._admit()
            async with self._calls.open(admitted, self._context) as call:
                self._call, whole = call, Merger()
                while True:
                    batch = await call.next()
                    for piece in batch.pieces:
                        whole.add(piece.choice, piece.token_ids, piece.text, piece.logprobs)
                    if batch.finished is not None:
                        await self._calls.settle(call, batch.finished)
                        return wire.response(
                            admitted.answer, call.relay.started, whole.take(), batch.finished, call.ledger_id
                        )

    async def events(self) -> AsyncGenerator[Event, None]:
        """StreamStart, Deltas, StreamEnd; or the LorryError that refused or ended it, at any point. Never ends without
        one of both. Nothing comes before the engine's first token, so what is refused may be sent again; the bill is
        durable before StreamEnd comes. Close it."""
        async with self._counted():
            admitted = await self._admit()
            async with self._calls.open(admitted, self._context) as call:
                self._call, begun, finished, held = call, False, None, dict[int, int]()
                while finished is None:
                    batch = await call.next()
                    finished, checked = batch.finished, True
                    if not begun:
                        begun, checked = True, False
                        yield wire.start(admitted.answer, call.relay.started)
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
                await self._calls.settle(call, finished)
                yield wire.end(admitted.answer, call.relay.started, finished, call.ledger_id)

    async def _admit(self) -> Admitted:
        if self._draining:
            raise Draining("this gateway is going down; send the request again", retry_after_s=1.0)
        try:
            self._admitted = await self._admission.admit(self._message, self._context, self._meet)
        except ProvenanceMismatch:
            self._counters.provenance_mismatches += 1
            raise
        return self._admitted

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
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
            self._recent.note(self._ended(outcome))

    def _meet(self, caller: Caller) -> None:
        self._caller = caller

    def _ended(self, outcome: str) -> EndedRequest:
        admitted, caller, call = self._admitted, self._caller, self._call
        started = call.relay.started if call is not None and call.relay.answers else None
        finished = None if call is None else call.relay.finished
        resolution = None if admitted is None else admitted.resolution
        return EndedRequest(
            request_id=(self._message.request_id if admitted is None else admitted.answer.request_id)[:NAME_MAX],
            tenant="" if caller is None else caller.tenant,
            tenant_name="" if caller is None else caller.tenant_name,
            model=self._message.model[:NAME_MAX],
            version="" if resolution is None else resolution.version_name,
            adapter_sha256="" if resolution is None else resolution.sha256,
            outcome=outcome,
            replica="" if started is None else started.provenance.replica,
            started_at=self._began,
            ended_at=self._now(),
            queue_s=None if started is None else started.queue_s,
            adapter_load_s=None if started is None else started.adapter_load_s,
            prefill_s=None if finished is None else finished.prefill_s,
            ttft_s=None if finished is None else finished.ttft_s,
            decode_s=None if finished is None else finished.decode_s,
            prompt_tokens=0 if admitted is None else admitted.answer.prompt_tokens,
            output_tokens=_output_of(call, finished),
        )


def _output_of(call: Call | None, finished: Finished | None) -> int:
    if finished is not None:
        return finished.output_tokens
    return 0 if call is None else call.handed


class Generations:
    """Begins generations, for all transports of one gateway. ``draining``: new ones are refused."""

    def __init__(
        self,
        admission: Admission,
        calls: Calls,
        counters: GatewayCounters,
        recent: RecentRequests | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``recent``: where what failed or took long is remembered."""
        self._recent = recent or RecentRequests(now)
        self._now = now
        self.admission = admission
        self._calls = calls
        self._counters = counters
        self.draining = False

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """What a transport refuses in the block, before it begins a generation, counts as the end of one."""
        try:
            yield
        except LorryError as error:
            self._counters.outcomes[error.reason] += 1
            raise

    def begin(self, message: pb.GenerateRequest, context: CallContext) -> Generation:
        """Nothing is checked before its answer is asked for."""
        return Generation(
            message,
            context,
            self.admission,
            self._calls,
            self._counters,
            self.draining,
            self._recent,
            self._now,
        )


__all__ = ["DELTA_TOKENS_MAX", "Event", "Generation", "Generations"]
