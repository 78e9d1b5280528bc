"""One HTTP request and its answer: a ``CallContext``, and what writes to the client."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from lorry.api.status import bearer_token_of
from lorry.errors import InvalidRequest, LorryError
from lorry.gateway.http import body, errors
from lorry.gateway.observe.w3c import headers_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

TRANSPORT = "lorry.transport"
"""The connection's asyncio transport in the scope's ``extensions``."""
_TIMEOUT_HEADER = b"lorry-timeout-seconds"
_TIMEOUT_MAX_S = 24 * 3600.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Gone(Exception):
    """The client is not there any more: there is nobody to tell."""


class Stalled(Exception):
    """The client does not read."""


class Exchange:
    """Made in the task that handles the request. ``request_id`` is the client's ``x-request-id`` or minted; every
    answer carries it. ``stall_seconds``: how long one write may wait for its reader."""

    transport = "http"

    def __init__(self, scope: Scope, receive: Receive, send: Send, minted: str, stall_seconds: float) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: Headers = scope["headers"]
        self.started = False
        """A status has been sent."""
        self.answered = False
        """All of the answer has been sent."""
        self.closing = False
        """The connection is to end with this answer."""
        self._transport: Any = scope.get("extensions", {}).get(TRANSPORT)
        self._receive = receive
        self._send = send
        self._stall_seconds = stall_seconds
        self._loop = asyncio.get_running_loop()
        self._arrived = self._loop.time()
        self._task = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = None
        self._done: list[Callable[[], object]] = []
        self._deadline: float | None = None
        self._bad: InvalidRequest | None = None
        given = self._header(b"x-request-id")
        self.request_id = minted if given is None or not _REQUEST_ID.fullmatch(given) else given
        if given is not None and given != self.request_id:
            self._bad = InvalidRequest.field("x-request-id", f"{given[:80]!r}; use 1 to 128 of A-Z a-z 0-9 . _ : -")

    # A CallContext.

    def api_key(self) -> str:
        return bearer_token_of((name.decode("latin-1"), value.decode("latin-1")) for name, value in self.headers)

    def trace_headers(self) -> tuple[str, str]:
        return headers_of((name.decode("latin-1"), value.decode("latin-1")) for name, value in self.headers)

    def seconds_left(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._loop.time()

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        self._done.append(callback)

    def cancel(self, error: LorryError | None = None) -> None:
        self.drop()
        if self._task is not None:
            self._task.cancel()

    # What comes.

    @property
    def deadline(self) -> float | None:
        """Of the loop's clock, from ``read_head`` on."""
        return self._deadline

    def read_head(self, most_bytes: int) -> None:
        """Raises InvalidRequest for a header of Lorry's own that is wrong, and for more than ``most_bytes``, which the
        server's parser lets pass where they come at once."""
        size = len(self.path) + len(self.query) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > most_bytes:
            raise InvalidRequest.field("head", f"{size} bytes; send at most {most_bytes}")
        if self._header(b"transfer-encoding") is not None and self._header(b"content-length") is not None:
            self.closing = True  # what a proxy in front and this server take for the next request may differ
            raise InvalidRequest.field("content-length", "beside transfer-encoding; send one of the two")
        if self._bad is not None:
            raise self._bad
        given = self._header(_TIMEOUT_HEADER)
        if given is None:
            return
        seconds = float(given) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", given) else 0.0
        if not 0 < seconds <= _TIMEOUT_MAX_S:
            raise InvalidRequest.field(
                _TIMEOUT_HEADER.decode(), f"{given[:80]!r}; send more than 0 and at most {_TIMEOUT_MAX_S:g} seconds"
            )
        self._deadline = self._arrived + seconds

    async def read_json(self, most_bytes: int, seconds: float) -> dict[str, Any]:
        """The body. From then on, the client's leaving ends the request. Raises InvalidRequest."""
        body.check_headers(self.headers, most_bytes)
        raw = bytearray()
        more = True
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    raw += message.get("body", b"")
                    if len(raw) > most_bytes:
                        raise body.too_large(most_bytes)
                    more = message.get("more_body", False)
        except TimeoutError:
            self.closing = True
            raise InvalidRequest.field("body", f"did not arrive within {seconds:g} s; send it faster") from None
        self._watch = asyncio.create_task(self._watch_client())
        return body.read_object(bytes(raw))

    # What goes.

    async def answer(self, status: int, found: Any, headers: Headers | None = None) -> None:
        """All of it, as JSON."""
        raw = found if isinstance(found, bytes) else dump(found)
        await self._begin(
            status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(raw)), *(headers or ())]
        )
        self.answered = True
        await self._write({"type": "http.response.body", "body": raw})

    async def begin_stream(self, headers: Headers) -> None:
        await self._begin(200, [*_STREAM_HEADERS, *headers])

    async def event(self, found: Any) -> None:
        await self._write({"type": "http.response.body", "body": b"data: %b\n\n" % dump(found), "more_body": True})

    async def end_stream(self, last: bytes) -> None:
        """``last``: what says how it ended."""
        self.answered = True
        await self._write({"type": "http.response.body", "body": last})

    async def fail(self, error: LorryError) -> None:
        """Tells the client, in whatever state the answer is: a status, or an SSE error event and no ``[DONE]``."""
        found = errors.encode(errors.envelope(error))
        if not self.started:
            await self.answer(error.http_status, found, errors.headers_of(error))
        elif not self.answered:
            await self.end_stream(b"event: error\ndata: %b\n\n" % found)

    def drop(self) -> None:
        """Breaks the connection off at once, so that nothing that was sent looks whole."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Whatever happened: the call has ended."""
        if self._watch is not None:
            self._watch.cancel()
        done, self._done = self._done, []
        for callback in done:
            callback()

    async def _begin(self, status: int, headers: Headers) -> None:
        self.started = True
        headers = [*headers, (b"x-request-id", self.request_id.encode())]
        if self.closing:
            headers.append((b"connection", b"close"))
        await self._write({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, message: MutableMapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._send(message)
        except TimeoutError:
            raise Stalled from None

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.answered:
            self.finish()
            if self._task is not None:
                self._task.cancel()

    def _header(self, name: bytes) -> str | None:
        found = [value for key, value in self.headers if key == name]
        return found[0].decode("latin-1") if found else None


def dump(found: Any) -> bytes:
    """ASCII alone: some readers of events take U+2028 or U+0085 for the end of a line."""
    return json.dumps(found, separators=(",", ":"), allow_nan=False).encode()


__all__ = ["TRANSPORT", "Exchange", "Gone", "Headers", "Receive", "Scope", "Send", "Stalled", "dump"]
