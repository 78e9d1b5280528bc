"""One request between its engine and its client: provenance checked, tokens coalesced, cut at any moment."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lorry.engine.contract import EngineClient, EngineEvent, EngineRequest, Feed, Finished, Started, Tokens
from lorry.errors import InternalError, LorryError, RequestCancelled
from lorry.gateway.pieces import Merger, Piece
from lorry.gateway.provenance import Expected
from lorry.gateway.ticker import Ticker
from lorry.ids import RequestId
from lorry.logs import fields
from lorry.request import TokenLogprobs

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """The first tokens of a choice leave at once, and others where nothing has left for ``seconds``. Else they wait
    until some choice has ``tokens`` of them, or for the next beat of all streams, one every ``seconds``."""

    seconds: float
    tokens: int


class Batch(NamedTuple):
    """Tokens that leave together, at most one piece for each choice, by choice. ``finished`` is set on the last batch,
    whose provenance has been checked."""

    pieces: tuple[Piece, ...]
    finished: Finished | None


class Relay:
    """Takes what the engine sends when it comes, so a client that does not read holds up nothing but itself.

    ``start``, then ``next`` until a batch is finished or it raises, then ``close`` (whatever happened). No batch
    exists before the engine stated what it runs and that was what the name resolved to. What waits is bounded by
    the request's own limits (``lorry.gateway.sizes``).
    """

    def __init__(
        self, engine: EngineClient, request: EngineRequest, expected: Expected, tokens: int, ticker: Ticker
    ) -> None:
        """``tokens``: as of ``Pace``, and the ticker has its seconds."""
        self._engine = engine
        self._request = request
        self._expected = expected
        self._tokens = tokens
        self._ticker = ticker
        self._due = False
        """The ticker was asked."""
        self._left_at = -math.inf
        """When a batch was taken last."""
        self._loop = asyncio.get_running_loop()
        self._is_ready = False
        self._waiter: asyncio.Future[None] | None = None
        """Of ``next``: an Event makes more of it, and there is one for each message."""
        self._merger = Merger()
        self._begun: set[int] = set()
        self._started: Started | None = None
        self._finished: Finished | None = None
        self._error: LorryError | None = None
        self._ready_since: float | None = None
        self._feed: Feed | None = None
        self.submitted_at: float | None = None
        """Of the loop's clock: when the engine was asked; None before."""
        self.answered_at: float | None = None
        """And when it had stated what it runs, with its first token."""

    @property
    def started(self) -> Started:
        """Known once ``next`` has returned."""
        assert self._started is not None, "next() returns only after Started"
        return self._started

    @property
    def request_id(self) -> RequestId:
        """As the engine knows it."""
        return self._request.request_id

    @property
    def finished(self) -> Finished | None:
        """What the engine ended it with, checked; None until then."""
        return self._finished

    @property
    def answers(self) -> bool:
        """Its first token is there."""
        return self._started is not None

    def start(self) -> None:
        """Submits the request; how it went is what ``next`` tells."""
        self.submitted_at = self._loop.time()
        try:
            self._feed = self._engine.feed(self._request, self)
        except LorryError as error:
            self.fail(error)
        except Exception:  # it has no encoding, say
            self._break()

    async def next(self) -> Batch:
        """The next batch. Raises the error that ended the request; tokens that were not taken are then dropped."""
        while not self._is_ready:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._ready_since = None
        if self._error is not None:
            raise self._error
        if self._finished is None:
            self._is_ready = False
        self._left_at = self._loop.time()
        return Batch(self._merger.take(), self._finished)

    def raise_if_cut(self) -> None:
        """Raises the error that ended the request while a batch was being taken."""
        if self._error is not None:
            raise self._error

    def cut(self, error: LorryError) -> None:
        """Ends the request now, unless it has ended: the engine is told, what was not taken is dropped."""
        if self._error is None:
            self._error = error
            self._ready()
        self.abort()

    def stalled_for(self, now: float) -> float:
        """Seconds (of the loop's clock) for which something has been ready and was not taken."""
        return 0.0 if self._ready_since is None else now - self._ready_since

    def abort(self) -> None:
        """Tells the engine, without waiting. Idempotent."""
        if self._feed is not None:
            self._feed.stop()
        self.fail(RequestCancelled("the request was cancelled"))

    async def close(self) -> None:
        """As abort; returns when the engine has been told."""
        self.abort()
        if self._feed is not None:
            await self._feed.closed()

    # An EventSink.

    def event(self, event: EngineEvent) -> None:
        if self._error is not None or self._finished is not None:
            return
        try:
            if isinstance(event, Tokens):
                self._take(event)
            elif isinstance(event, Started):
                self._begin(event)
            else:
                self._finish(event)
        except LorryError as error:
            self._refuse(error)
        except Exception:  # its reader must be told, whatever it was
            self._break()

    def fail(self, error: LorryError) -> None:
        if self._finished is None:
            self._error = self._error or error
            self._ready()

    def _refuse(self, error: LorryError) -> None:
        """What the engine sends is not to be passed on, nor to be made."""
        self.fail(error)
        if self._feed is not None:
            self._feed.stop()

    def _break(self) -> None:
        request_id = self._request.request_id
        _log.exception(
            "request %s failed between gateway and engine", request_id, extra=fields(engine_request_id=request_id)
        )
        self._refuse(InternalError(f"request {self._request.request_id} failed; the gateway's log says how"))

    def _begin(self, event: Started) -> None:
        self._expected.check(event.provenance)
        wanted = self._request.output.prompt_logprobs is not None
        _check_logprobs(event.prompt_logprobs, self._request.prompt[1:] if wanted else (), "the prompt")
        self._started = event
        self.answered_at = self._loop.time()

    def _take(self, event: Tokens) -> None:
        if self._started is None:
            raise InternalError("the engine sent tokens before it said what it runs; the answer is withheld")
        if not 0 <= event.choice < self._request.n:
            raise InternalError(
                f"the engine sent tokens of choice {event.choice} of {self._request.n}; the answer is withheld"
            )
        wanted = self._request.output.top_logprobs is not None
        _check_logprobs(event.logprobs, event.token_ids if wanted else (), f"choice {event.choice}")
        waiting = self._merger.add(event.choice, event.token_ids, event.text, event.logprobs)
        if event.choice not in self._begun:
            self._begun.add(event.choice)
            self._ready()
        elif waiting >= self._tokens or self._loop.time() - self._left_at >= self._ticker.seconds:
            self._ready()
        elif not self._due:
            self._due = True
            self._ticker.soon(self._beat)

    def _finish(self, event: Finished) -> None:
        if self._started is None:
            raise InternalError("the engine finished before it said what it runs; the answer is withheld")
        self._expected.check(event.provenance)
        if len(event.choices) != self._request.n:
            raise InternalError(
                f"the engine ended {len(event.choices)} choices of {self._request.n}; the answer is withheld"
            )
        self._finished = event
        self._ready()

    def _beat(self) -> None:
        self._due = False
        if self._merger.waits:
            self._ready()

    def _ready(self) -> None:
        if self._ready_since is None:
            self._ready_since = self._loop.time()
        self._is_ready = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _check_logprobs(found: Sequence[TokenLogprobs], ids: tuple[int, ...], what: str) -> None:
    if len(found) != len(ids) or (ids and tuple(one.token_id for one in found) != ids):
        raise InternalError(f"the engine's logprobs of {what} are not of its tokens; the answer is withheld")


__all__ = ["Batch", "Pace", "Relay"]
