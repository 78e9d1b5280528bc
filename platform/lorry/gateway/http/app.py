"""Routes and handlers: read a request, ask the service layer, write what it says."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from lorry.api.v1 import generate_pb2 as pb
from lorry.config import GatewayConfig
from lorry.errors import (
    DeadlineExceeded,
    Draining,
    EmptyStream,
    InternalError,
    LorryError,
    ResourceNotFound,
)
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.generations import Generation, Generations
from lorry.gateway.http import errors, proof
from lorry.gateway.http.answers import ChatForm, CompletionForm, Form
from lorry.gateway.http.exchange import Exchange, Gone, Receive, Scope, Send, Stalled, dump
from lorry.gateway.http.listing import list_models, show_model
from lorry.gateway.http.logprobs import Spellings
from lorry.gateway.http.requests import Wanted, read_chat, read_completion
from lorry.gateway.models import Models

Handler = Callable[[Exchange], Awaitable[None]]
Ready = Callable[[], Awaitable[None]]
"""Raises the LorryError that says why nothing can be generated now."""
DONE = b"data: [DONE]\n\n"
MODELS = "/v1/models"
_DEADLINE_GRACE_S = 0.25
"""The engine keeps the deadline itself and says so; past this the gateway does."""
_log = logging.getLogger(__name__)


class OpenAiApp:
    """An ASGI application. Belongs to one event loop."""

    def __init__(
        self,
        generations: Generations,
        models: Models,
        counters: GatewayCounters,
        config: GatewayConfig,
        ready: Ready,
        stall_seconds: float,
    ) -> None:
        self._generations = generations
        self._models = models
        self._counters = counters
        self._config = config
        self._ready = ready
        self._stall_seconds = stall_seconds
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": lambda exchange: self._generate(exchange, read_chat, ChatForm)},
            "/v1/completions": {"POST": lambda exchange: self._generate(exchange, read_completion, CompletionForm)},
            MODELS: {"GET": self._list},
            "/healthz": {"GET": self._healthz},
            "/readyz": {"GET": self._readyz},
        }
        self.open: set[Exchange] = set()
        """Requests that have come and are not answered whole."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, uuid.uuid4().hex, self._stall_seconds)
        exchange.closing = self._generations.draining
        self.open.add(exchange)
        try:
            await self._serve(exchange)
        except Stalled:
            self._counters.stalls += 1
            exchange.drop()
        except (Gone, asyncio.CancelledError):  # nobody waits for this task, or for an answer
            exchange.drop()
        finally:
            exchange.finish()
            self.open.discard(exchange)
        if not exchange.answered:
            await asyncio.sleep(0)  # the server hears of the broken connection before it looks for the answer's end

    async def _serve(self, exchange: Exchange) -> None:
        try:
            exchange.read_head(self._config.http_head_bytes)
            await self._in_time(exchange, self._route(exchange))
        except LorryError as error:
            await exchange.fail(error)
        except (Gone, Stalled):
            raise
        except Exception as error:  # the last place: every error gets a status
            _log.error("%a failed, request id %s", exchange.path[:200], exchange.request_id, exc_info=error)
            text = f"internal error; the operator finds it in the log under request id {exchange.request_id}"
            await exchange.fail(InternalError(text, metadata={"request_id": exchange.request_id}))

    async def _in_time(self, exchange: Exchange, handler: Handler) -> None:
        if exchange.deadline is None:
            await handler(exchange)
            return
        try:
            async with asyncio.timeout_at(exchange.deadline + _DEADLINE_GRACE_S) as limit:
                await handler(exchange)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded("the deadline passed while the request ran; allow more time") from None

    def _route(self, exchange: Exchange) -> Handler:
        methods: Mapping[str, Handler] | None = self._routes.get(exchange.path)
        if methods is None and exchange.path.startswith(f"{MODELS}/"):
            methods = {"GET": self._show}
        if methods is None:
            raise ResourceNotFound(f"path: {exchange.path[:200]!r} is not served here; docs/http.md lists what is")
        found = methods.get(exchange.method)
        return self._wrong_method(methods) if found is None else found

    def _wrong_method(self, methods: Mapping[str, Handler]) -> Handler:
        allowed = ", ".join(methods)

        async def refuse(exchange: Exchange) -> None:
            error = errors.envelope(ResourceNotFound(f"method: {exchange.method[:20]} is not served; use {allowed}"))
            await exchange.answer(405, error, [(b"allow", allowed.encode()), (b"x-should-retry", b"false")])

        return refuse

    async def _generate(
        self,
        exchange: Exchange,
        read: Callable[[Mapping[str, Any], str], Wanted],
        form: Callable[[Wanted, Spellings | None], Form],
    ) -> None:
        with self._generations.refusals(exchange, exchange.request_id) as noted:
            if self._generations.draining:
                raise Draining("this gateway is going down; send the request again", retry_after_s=1.0)
            # Before anything of the body is read.
            _, _, noted.caller = await self._generations.admission.authenticate(exchange)
            found = await exchange.read_json(self._config.max_message_bytes, self._config.http_receive_seconds)
            wanted = read(found, exchange.request_id)
        generation = self._generations.begin(wanted.message, exchange)
        spellings = Spellings(lambda ids: self._generations.admission.spell(generation.admitted, ids))
        written = form(wanted, spellings if wanted.logprobs else None)
        try:
            if wanted.stream:
                await self._stream(exchange, generation, wanted, written, spellings)
            else:
                await self._whole(exchange, generation, wanted, written, spellings)
        except LorryError as error:
            raise wanted.names.told(error) from error

    async def _whole(
        self, exchange: Exchange, generation: Generation, wanted: Wanted, form: Form, spellings: Spellings
    ) -> None:
        answer = await generation.whole()
        if wanted.logprobs:
            await spellings.learn([one for choice in answer.choices for one in choice.logprobs])
            raw = await asyncio.to_thread(lambda: dump(form.whole(answer)))  # tens of thousands of entries, perhaps
        else:
            raw = dump(form.whole(answer))
        await exchange.answer(200, raw, proof.headers(answer.model))

    async def _stream(
        self, exchange: Exchange, generation: Generation, wanted: Wanted, form: Form, spellings: Spellings
    ) -> None:
        """The status waits for the engine's first event. ``[DONE]`` is sent after the end alone."""
        ended = False
        async with aclosing(generation.events()) as events:
            async for event in events:
                if isinstance(event, pb.Delta):
                    if wanted.logprobs:
                        await spellings.learn(event.logprobs)
                    await exchange.event(form.delta(event))
                elif isinstance(event, pb.StreamStart):
                    if wanted.logprobs:
                        await spellings.check()
                    await exchange.begin_stream(proof.headers(event.model))
                    await exchange.event(form.start(event))
                else:
                    for chunk in form.end(event):
                        await exchange.event(chunk)
                    ended = True
        if not ended:
            self._counters.blocked_empty_streams += 1
            raise EmptyStream("the stream would have ended OK without an end; try again, and report this")
        await exchange.end_stream(DONE)

    async def _list(self, exchange: Exchange) -> None:
        await exchange.answer(200, await list_models(self._models, exchange, exchange.query))

    async def _show(self, exchange: Exchange) -> None:
        await exchange.answer(200, await show_model(self._models, exchange, exchange.path.removeprefix(f"{MODELS}/")))

    async def _healthz(self, exchange: Exchange) -> None:
        """This process's loop turns."""
        await exchange.answer(200, {"status": "ok"})

    async def _readyz(self, exchange: Exchange) -> None:
        """An engine is warm and nothing drains."""
        await self._ready()
        await exchange.answer(200, {"status": "ready"})


__all__ = ["DONE", "MODELS", "OpenAiApp", "Ready"]
