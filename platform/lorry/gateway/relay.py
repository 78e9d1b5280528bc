"""One request between its engine and its client: provenance checked, tokens coalesced, cut at any moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from lorry.engine.contract import EngineClient, EngineRequest, Finished, Started, Tokens
from lorry.engine.streams import closing
from lorry.errors import EmptyStream, InternalError, LorryError, RequestCancelled
from lorry.gateway.pieces import Merger, Piece
from lorry.gateway.provenance import Expected
from lorry.request import TokenLogprobs

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """The first tokens of a choice leave at once; later ones when some choice has ``tokens`` of them, or ``seconds``
    after the first that waits."""

    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens that leave together, at most one piece for each choice, by choice. ``finished`` is set on the last batch,
    whose provenance has been checked."""

    pieces: tuple[Piece, ...]
    finished: Finished | None


class Relay:
    """Reads the engine in a task of its own, so a client that does not read holds up nothing but itself.

    ``start``, then ``next`` until a batch is finished or it raises, then ``close`` (whatever happened). No batch
    exists before the engine stated what it runs and that was what the name resolved to. What waits is bounded by
    the request's own limits (``lorry.gateway.sizes``).
    """

    def __init__(self, engine: EngineClient, request: EngineRequest, expected: Expected, pace: Pace) -> None:
        self._engine = engine
        self._request = request
        self._expected = expected
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._merger = Merger()
        self._begun: set[int] = set()
        self._started: Started | None = None
        self._finished: Finished | None = None
        self._error: LorryError | None = None
        self._ready_since: float | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> Started:
        """Known once ``next`` has returned."""
        assert self._started is not None, "next() returns only after Started"
        return self._started

    @property
    def answers(self) -> bool:
        """Its first token is there."""
        return self._started is not None

    def start(self) -> None:
        self._task = asyncio.create_task(self._pump())

    async def next(self) -> Batch:
        """The next batch. Raises the error that ended the request; tokens that were not taken are then dropped."""
        await self._wake.wait()
        self._ready_since = None
        if self._error is not None:
            raise self._error
        if self._finished is None:
            self._wake.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """As abort; returns when the engine's iterator is closed."""
        self.abort()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _pump(self) -> None:
        try:
            async with closing(self._engine.generate(self._request)) as events:
                async for event in events:
                    if isinstance(event, Tokens):
                        self._take(event)
                    elif isinstance(event, Started):
                        self._begin(event)
                    else:
                        self._finish(event)
                        break
            if self._finished is None:
                raise EmptyStream("the engine ended the request without finishing it; try again, and report this")
        except LorryError as error:
            self._end(error)
        except asyncio.CancelledError:
            self._end(RequestCancelled("the request was cancelled"))
            raise
        except Exception:  # a task nobody awaits: its reader must be told, whatever it was
            _log.exception("request %s failed between gateway and engine", self._request.request_id)
            self._end(InternalError(f"request {self._request.request_id} failed; the gateway's log says how"))

    def _begin(self, event: Started) -> None:
        self._expected.check(event.provenance)
        wanted = self._request.output.prompt_logprobs is not None
        _check_logprobs(event.prompt_logprobs, self._request.prompt[1:] if wanted else (), "the prompt")
        self._started = event

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
        if event.choice not in self._begun or waiting >= self._pace.tokens:
            self._begun.add(event.choice)
            self._ready()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._pace.seconds, self._ready)

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

    def _end(self, error: LorryError) -> None:
        self._error = self._error or error
        self._ready()

    def _ready(self) -> None:
        if self._ready_since is None:
            self._ready_since = self._loop.time()
        self._wake.set()


def _check_logprobs(found: Sequence[TokenLogprobs], ids: tuple[int, ...], what: str) -> None:
    if tuple(one.token_id for one in found) != ids:
        raise InternalError(f"the engine's logprobs of {what} are not of its tokens; the answer is withheld")


__all__ = ["Batch", "Pace", "Relay"]
