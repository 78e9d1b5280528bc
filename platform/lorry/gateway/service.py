"""``lorry.api.v1.GenerateService``: the service layer as gRPC."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import grpc.aio

import lorry
from lorry.api.about import About, about_metadata
from lorry.api.status import abort_with, bearer_token
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.errors import InvalidRequest, LorryError
from lorry.gateway.generations import Generations
from lorry.gateway.models import Models
from lorry.gateway.observe.w3c import headers_of

PAGE_DEFAULT = 100
PAGE_MAX = 1000
Context = grpc.aio.ServicerContext[Any, Any]
_NO_DEADLINE_S = 365 * 24 * 3600.0
"""gRPC states "no deadline" as none, or as one centuries away."""


class GrpcContext:
    """An RPC as ``lorry.gateway.context.CallContext``. Made in the task that handles it."""

    transport = "grpc"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._task = asyncio.current_task()
        self._told: asyncio.Task[None] | None = None

    def api_key(self) -> str:
        return bearer_token(self._context)

    def trace_headers(self) -> tuple[str, str]:
        return headers_of(self._context.invocation_metadata() or ())

    def seconds_left(self) -> float | None:
        left = self._context.time_remaining()  # type: ignore[no-untyped-call, unused-ignore]  # by the stubs installed
        return None if left is None or left > _NO_DEADLINE_S else float(left)

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        self._context.add_done_callback(lambda _: callback())  # type: ignore[arg-type]  # the stubs name its argument

    def cancel(self, error: LorryError | None = None) -> None:
        if self._task is not None:
            self._task.cancel()
        if error is not None and self._told is None:
            # grpc ends an RPC by its status alone: of a handler that is cancelled its client would never hear.
            self._told = asyncio.create_task(self._tell(error))

    async def _tell(self, error: LorryError) -> None:
        """Returns when the client has read so far, or is gone."""
        with suppress(grpc.aio.AbortError, grpc.aio.UsageError, asyncio.InvalidStateError):
            await abort_with(self._context, error)


class GenerateServicer(generate_pb2_grpc.GenerateServiceServicer):
    """Handlers raise LorryErrors; ErrorInterceptor makes statuses of them. Nothing is sent before the engine's
    first token, so whatever is refused before is trailers alone and safe to send again."""

    def __init__(self, generations: Generations, models: Models) -> None:
        self._generations = generations
        self._models = models

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        return await self._generations.begin(request, GrpcContext(context)).whole()

    async def GenerateStream(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]  # the stubs know iterators alone
        """Writes its messages: a generator's would pass through one more for each interceptor."""
        generation = self._generations.begin(request, GrpcContext(context))
        seq = 0
        async with aclosing(generation.events()) as events:
            async for event in events:
                if isinstance(event, pb.Delta):
                    message = pb.GenerateStreamResponse(seq=seq, delta=event)
                elif isinstance(event, pb.StreamStart):
                    message = pb.GenerateStreamResponse(seq=seq, start=event)
                else:
                    message = pb.GenerateStreamResponse(seq=seq, end=event)
                await context.write(message)
                seq += 1

    async def CountTokens(self, request: pb.CountTokensRequest, context: Context) -> pb.CountTokensResponse:
        ids = await self._generations.admission.count(request, GrpcContext(context))
        return pb.CountTokensResponse(tokens=len(ids), token_ids=ids)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        catalog = await self._models.seen_by(GrpcContext(context))
        known = catalog.caller
        about = About(known.tenant_name, known.principal, known.role, lorry.__version__, time.time())
        context.set_trailing_metadata(about_metadata(about))
        if request.page_size < 0:
            raise InvalidRequest.field("page_size", f"{request.page_size}; send 0 (default) to {PAGE_MAX}")
        size = min(request.page_size or PAGE_DEFAULT, PAGE_MAX)
        page, more = catalog.page(_read_page_token(request.page_token), size)
        return pb.ListModelsResponse(models=page, next_page_token=_page_token(page[-1].name) if more else "")

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.Model:
        return (await self._models.seen_by(GrpcContext(context))).get(request.name, "name")


def _page_token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def _read_page_token(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:  # also what base64 raises for other alphabets
        raise InvalidRequest.field("page_token", "not a token of ListModels; send next_page_token as it came") from None


__all__ = ["PAGE_DEFAULT", "PAGE_MAX", "GenerateServicer", "GrpcContext"]
