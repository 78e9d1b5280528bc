"""A gateway's end of one Connect stream to an engine: the calls that it carries, and what waits for their readers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc.aio

from lorry.engine.contract import EngineEvent, EngineRequest, EventSink, Tokens
from lorry.engine.transport_codec import error_from_proto, events_from_proto, request_to_proto
from lorry.engine.transport_credit import Grants
from lorry.errors import EngineUnavailable, InternalError, LorryError, RequestCancelled
from lorry.internal.v1 import engine_pb2 as pb

UNREACHABLE = "the engine cannot be reached; try again"
"""What clients are told: where the engine listens is for the log."""
_CREDIT_S = 0.01
"""For which credits gather, since a message for each step's few would cost as much as the step's tokens. A call that is
given credit in halves of its window has as much left as covers it many times over."""
_log = logging.getLogger(__name__)


class Mailbox:
    """What has come for one call and has not been read. Fed and read on one loop.

    The engine sends no more than the call's credit before the reader takes some, and the last output, so that is what
    it holds at most.
    """

    def __init__(self, call: int, window: int, grant: Callable[[int, int], None]) -> None:
        self.call = call
        self.outputs = 0
        """Outputs that wait."""
        self._grants = Grants(window)
        self._grant = grant
        self._events: deque[tuple[EngineEvent, int]] = deque()
        """With each event the outputs that are taken with it: 1 for the last event of an output."""
        self._error: LorryError | None = None
        self._wake = asyncio.Event()
        self._since = 0.0

    def put(self, events: Sequence[EngineEvent], now: float) -> None:
        """The events of one output, one or more."""
        if not self._events:
            self._since = now
        last = len(events) - 1
        self._events.extend((event, int(i == last)) for i, event in enumerate(events))
        self.outputs += 1
        self._wake.set()

    def stalled(self, now: float, stall_s: float) -> bool:
        return bool(self._events) and now - self._since > stall_s

    def fail(self, error: LorryError, drop: bool = False) -> None:
        """The request ends so, after what waits has been read (``drop``: at once)."""
        if drop:
            self._events.clear()
            self.outputs = 0
        self._error = self._error or error
        self._wake.set()

    async def take(self) -> EngineEvent:
        """The next event; Tokens that wait are merged into one for each choice."""
        while not self._events:
            if self._error is not None:
                raise self._error
            self._wake.clear()
            await self._wake.wait()
        if len(self._events) > 1 and isinstance(self._events[0][0], Tokens):
            self._merge()
        event, taken = self._events.popleft()
        self._since = asyncio.get_running_loop().time()
        self.outputs -= taken
        if taken and (credit := self._grants.take(taken)):
            self._grant(self.call, credit)
        return event

    def _merge(self) -> None:
        runs: dict[int, list[Tokens]] = {}
        taken = 0
        while self._events and isinstance(event := self._events[0][0], Tokens):
            runs.setdefault(event.choice, []).append(event)
            taken += self._events.popleft()[1]
        merged = [(_joined(run), 0) for run in runs.values()]
        merged[-1] = (merged[-1][0], taken)  # all of them are taken when the last one is
        self._events.extendleft(reversed(merged))


class Outlet:
    """In place of a mailbox, for a reader that takes at once: what comes goes on, and is credited."""

    outputs = 0

    def __init__(self, call: int, window: int, grant: Callable[[int, int], None], sink: EventSink) -> None:
        self.call = call
        self.open = True
        self._grants = Grants(window)
        self._grant = grant
        self._sink = sink

    def put(self, events: Sequence[EngineEvent], now: float) -> None:
        for event in events:
            if self.open:
                self._sink.event(event)
        if credit := self._grants.take(1):
            self._grant(self.call, credit)

    def stalled(self, now: float, stall_s: float) -> bool:
        return False

    def fail(self, error: LorryError, drop: bool = False) -> None:
        if self.open:
            self.open = False
            self._sink.fail(error)


class LinkFeed:
    """``lorry.engine.contract.Feed`` of one call on a link."""

    def __init__(self, link: Link, outlet: Outlet) -> None:
        self._link = link
        self._outlet = outlet

    def stop(self) -> None:
        self._outlet.open = False
        self._link.release(self._outlet.call)

    async def closed(self) -> None:
        """At once: the engine is told by the link, in its order."""


def _joined(run: Sequence[Tokens]) -> Tokens:
    if len(run) == 1:
        return run[0]
    return Tokens(
        tuple(token for one in run for token in one.token_ids),
        "".join(one.text for one in run),
        run[0].choice,
        tuple(logprob for one in run for logprob in one.logprobs),
    )


class Link:
    """One Connect stream. Once broken it stays so; the client then opens another.

    Calls are numbered from 1 and everything is filed by that number: a request id that comes again is another call.
    Submissions and aborts leave in the order in which they were made.
    """

    def __init__(
        self, stub: Any, stall_s: float, window: int = 0, retry_after: Callable[[], float] = lambda: 1.0
    ) -> None:
        """``window`` is the engine's ``call_credit``, 0 where it is not known; ``retry_after`` what readers are told in
        seconds where the stream breaks."""
        self._call = stub.Connect()
        self._stall_s = stall_s
        self._window = window
        self._boxes: dict[int, Mailbox | Outlet] = {}
        self._count = 0
        self._due: list[pb.EngineRequest | int] = []
        self._credits: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._sweep: asyncio.TimerHandle | None = None
        self._retry_after = retry_after
        self.broken = False
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    def submit(self, request: EngineRequest) -> Mailbox:
        """Raises ValueError or TypeError for a request that has no encoding; nothing is sent then."""
        message = request_to_proto(request, self._count + 1)
        box = Mailbox(self._count + 1, self._window, self._give)
        self._open(message, box)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._stall_s / 2, self._end_stalled)
        return box

    def feed(self, request: EngineRequest, sink: EventSink) -> LinkFeed:
        """As ``submit``, pushed. The engine's answer comes in a later turn of the loop."""
        message = request_to_proto(request, self._count + 1)
        outlet = Outlet(self._count + 1, self._window, self._give, sink)
        self._open(message, outlet)
        return LinkFeed(self, outlet)

    def _open(self, message: pb.EngineRequest, box: Mailbox | Outlet) -> None:
        self._count += 1
        self._boxes[self._count] = box
        self._due.append(message)
        self._wake.set()

    @property
    def held(self) -> tuple[int, int]:
        """Calls that have not ended, and their outputs that wait for a reader."""
        return len(self._boxes), sum(box.outputs for box in self._boxes.values())

    def release(self, call: int) -> None:
        """The reader is gone: the engine is told, unless the call had ended."""
        self._credits.pop(call, None)
        if self._boxes.pop(call, None) is not None and not self.broken:
            self._due.append(call)
            self._wake.set()

    def _give(self, call: int, outputs: int) -> None:
        """The reader took so many: they leave with the next message, unless the call has ended."""
        if call in self._boxes:
            if not self._credits:
                asyncio.get_running_loop().call_later(_CREDIT_S, self._wake.set)
            self._credits[call] = self._credits.get(call, 0) + outputs

    def _end_stalled(self) -> None:
        """Readers that take nothing for ``stall_s`` while something waits for them. Their credit bounds what they
        hold; this frees it, and what the engine spends on them."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for box in [box for box in self._boxes.values() if box.stalled(now, self._stall_s)]:
            box.fail(RequestCancelled(f"nothing was read for {self._stall_s:g} s; read the stream faster"), drop=True)
            self.release(box.call)
        self._sweep = loop.call_later(self._stall_s / 2, self._end_stalled) if self._boxes else None

    def snap(self, why: str, drop: bool = False) -> None:
        """Ends every call that the stream carried, and the stream. Idempotent."""
        if self.broken:
            return
        self.broken = True
        boxes, self._boxes = self._boxes, {}
        if self._sweep is not None:
            self._sweep.cancel()
        for box in boxes.values():
            box.fail(EngineUnavailable(why, retry_after_s=self._retry_after()), drop)
        self._call.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def close(self) -> None:
        self.snap("the connection to the engine was closed", drop=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        why = "the engine ended the connection; try again"
        try:
            async for response in self._call:
                now = asyncio.get_running_loop().time()
                for output in response.outputs:
                    self._dispatch(output, now)
        except grpc.aio.AioRpcError as error:
            _log.warning("the connection to the engine broke: %s: %s", error.code().name, error.details())
            why = UNREACHABLE
        except Exception:  # whatever could not be read, every call of this stream must be told
            _log.exception("an answer of the engine could not be read; its connection is ended")
            why = UNREACHABLE
        finally:
            self.snap(why)

    def _dispatch(self, output: pb.StepOutput, now: float) -> None:
        box = self._boxes.get(output.call)
        if box is None:
            return  # its reader has gone
        if events := events_from_proto(output):
            box.put(events, now)
        else:
            self._give(output.call, 1)
        if output.HasField("error"):
            box.fail(error_from_proto(output.error))
        if output.HasField("error") or output.HasField("finished"):
            self._boxes.pop(output.call, None)
            self._credits.pop(output.call, None)
        elif self._window and box.outputs > self._window:
            raise InternalError(f"call {output.call} was sent {box.outputs} outputs, its credit is {self._window}")

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(0)  # the rest of this turn's requests join the message
                due, self._due = self._due, []
                credits, self._credits = self._credits, {}
                for message in _messages(due, credits):
                    await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            _log.warning("the connection to the engine broke: %s", error)
        except Exception:  # the same: a writer that ends silently would leave its calls waiting for ever
            _log.exception("requests could not be sent to the engine; its connection is ended")
        finally:
            self.snap(UNREACHABLE)


def _messages(due: Sequence[pb.EngineRequest | int], credits: Mapping[int, int]) -> Iterator[pb.ConnectRequest]:
    """Requests, and the numbers of calls to abort, in as few messages as keep their order; then the calls' credit."""
    for aborts, run in itertools.groupby(due, lambda one: isinstance(one, int)):
        if aborts:
            yield pb.ConnectRequest(abort=pb.Abort(calls=[one for one in run if isinstance(one, int)]))
        else:
            requests = [one for one in run if not isinstance(one, int)]
            yield pb.ConnectRequest(submit=pb.SubmitBatch(requests=requests))
    if credits:
        calls = [pb.Credit(call=call, outputs=outputs) for call, outputs in credits.items()]
        yield pb.ConnectRequest(credits=pb.CreditBatch(calls=calls))


__all__ = ["UNREACHABLE", "Link", "LinkFeed", "Mailbox", "Outlet"]
