"""``lorry.api.v1.GenerateService``."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import chain

from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.errors import Draining, InvalidRequest, LorryError, ProvenanceMismatch
from lorry.gateway import wire
from lorry.gateway.admission import Admission, Admitted, Context
from lorry.gateway.calls import Calls
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.pieces import Merger
from lorry.registry.snapshot import Resolution

PAGE_DEFAULT = 100
PAGE_MAX = 1000
DELTA_TOKENS_MAX = 1024
"""Tokens of one message, so that what piled up for a slow reader fits what clients take."""


class GenerateServicer(generate_pb2_grpc.GenerateServiceServicer):
    """Handlers raise LorryErrors; ErrorInterceptor makes statuses of them. Nothing is sent before the engine's
    first token, so whatever is refused before is trailers alone and safe to send again."""

    def __init__(self, admission: Admission, calls: Calls, counters: GatewayCounters) -> None:
        self._admission = admission
        self._calls = calls
        self._counters = counters
        self.draining = False

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        async with self._counted():
            admitted = await self._admit(request, context)
            async with self._calls.open(admitted, context) as call, aclosing(call.batches()) as batches:
                whole = Merger()
                async for batch in batches:
                    for piece in batch.pieces:
                        whole.add(piece.choice, piece.token_ids, piece.text, piece.logprobs)
                    if batch.finished is not None:
                        await self._calls.settle(call, batch.finished)
                        return wire.response(
                            admitted.answer, call.relay.started, whole.take(), batch.finished, call.ledger_id
                        )
        raise AssertionError("batches end finished or raise")

    async def GenerateStream(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        async with self._counted():
            admitted = await self._admit(request, context)
            async with self._calls.open(admitted, context) as call, aclosing(call.batches()) as batches:
                seq = 0
                held: Counter[int] = Counter()
                async for batch in batches:
                    if seq == 0:
                        start = wire.start(admitted.answer, call.relay.started)
                        yield pb.GenerateStreamResponse(seq=seq, start=start)
                        seq += 1
                    for piece in chain.from_iterable(piece.split(DELTA_TOKENS_MAX) for piece in batch.pieces):
                        delta = wire.delta(admitted.answer, piece)
                        held[piece.choice] += len(piece.token_ids)
                        if delta is not None:
                            call.check()
                            call.handed += held.pop(piece.choice)
                            yield pb.GenerateStreamResponse(seq=seq, delta=delta)
                            seq += 1
                    if batch.finished is not None:
                        await self._calls.settle(call, batch.finished)
                        end = wire.end(admitted.answer, call.relay.started, batch.finished, call.ledger_id)
                        yield pb.GenerateStreamResponse(seq=seq, end=end)

    async def CountTokens(self, request: pb.CountTokensRequest, context: Context) -> pb.CountTokensResponse:
        ids = await self._admission.count(request, context)
        return pb.CountTokensResponse(tokens=len(ids), token_ids=ids)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        _, snapshot, caller = self._admission.authenticate(context)
        if request.page_size < 0:
            raise InvalidRequest.field("page_size", f"{request.page_size}; send 0 (default) to {PAGE_MAX}")
        size = min(request.page_size or PAGE_DEFAULT, PAGE_MAX)
        after = _read_page_token(request.page_token)
        rest = [found for found in snapshot.list_models(caller) if found.name > after]
        page = rest[:size]
        return pb.ListModelsResponse(
            models=[wire.model(found, found.name) for found in page],
            next_page_token=_page_token(page[-1]) if len(rest) > size else "",
        )

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.Model:
        _, snapshot, caller = self._admission.authenticate(context)
        return wire.model(self._admission.resolve(snapshot, caller, "name", request.name), request.name)

    async def _admit(self, request: pb.GenerateRequest, context: Context) -> Admitted:
        if self.draining:
            raise Draining("this gateway is going down; send the request again", retry_after_s=1.0)
        try:
            return await self._admission.admit(request, context)
        except ProvenanceMismatch:
            self._counters.provenance_mismatches += 1
            raise

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


def _page_token(last: Resolution) -> str:
    return base64.urlsafe_b64encode(last.name.encode()).decode()


def _read_page_token(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:  # also what base64 raises for other alphabets
        raise InvalidRequest.field("page_token", "not a token of ListModels; send next_page_token as it came") from None


__all__ = ["DELTA_TOKENS_MAX", "PAGE_DEFAULT", "PAGE_MAX", "GenerateServicer"]
