"""EngineClient over ``lorry.internal.v1``: one multiplexed stream, however many requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from lorry.adapters.manifest import AdapterRef
from lorry.api.status import DETAILS_KEY, error_from_rpc
from lorry.engine.contract import (
    EngineClient,
    EngineEvent,
    EngineInfo,
    EngineRequest,
    Finished,
    Forgotten,
    Tokens,
    Whereabouts,
)
from lorry.engine.transport_codec import (
    error_from_proto,
    events_from_proto,
    info_from_proto,
    ref_to_proto,
    request_to_proto,
)
from lorry.engine.transport_credit import Grants
from lorry.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    InternalError,
    LorryError,
    RequestCancelled,
    Unavailable,
)
from lorry.ids import AdapterDigest
from lorry.internal.v1 import engine_pb2 as pb
from lorry.internal.v1 import engine_pb2_grpc

STALL_S = 30.0
"""A reader that takes nothing for so long, while output waits for it, is aborted. Looked at every half of it."""
_RPC_S = 10.0
_FORGET_S = 120.0
"""A fetch that is under way is waited for, as long as the object store's timeouts let it take."""
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]


_UNREACHABLE = "the engine cannot be reached; try again"
"""What clients are told: where the engine listens is for the log."""
_log = logging.getLogger(__name__)


class _Mailbox:
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


def _joined(run: Sequence[Tokens]) -> Tokens:
    if len(run) == 1:
        return run[0]
    return Tokens(
        tuple(token for one in run for token in one.token_ids),
        "".join(one.text for one in run),
        run[0].choice,
        tuple(logprob for one in run for logprob in one.logprobs),
    )


class _Link:
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
        self._boxes: dict[int, _Mailbox] = {}
        self._count = 0
        self._due: list[pb.EngineRequest | int] = []
        self._credits: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._sweep: asyncio.TimerHandle | None = None
        self._retry_after = retry_after
        self.broken = False
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    def submit(self, request: EngineRequest) -> _Mailbox:
        """Raises ValueError or TypeError for a request that has no encoding; nothing is sent then."""
        self._count += 1
        message = request_to_proto(request, self._count)
        box = self._boxes[self._count] = _Mailbox(self._count, self._window, self._give)
        self._due.append(message)
        self._wake.set()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._stall_s / 2, self._end_stalled)
        return box

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
            self._credits[call] = self._credits.get(call, 0) + outputs
            self._wake.set()

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
            why = _UNREACHABLE
        except Exception:  # whatever could not be read, every call of this stream must be told
            _log.exception("an answer of the engine could not be read; its connection is ended")
            why = _UNREACHABLE
        finally:
            self.snap(why)

    def _dispatch(self, output: pb.StepOutput, now: float) -> None:
        box = self._boxes.get(output.call)
        if box is None:
            return  # its reader has gone
        if events := list(events_from_proto(output)):
            box.put(events, now)
        else:
            self._give(output.call, 1)
        if output.HasField("error"):
            box.fail(error_from_proto(output.error))
        if output.HasField("error") or output.HasField("finished"):
            del self._boxes[output.call]
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
            self.snap(_UNREACHABLE)


def _messages(due: Sequence[pb.EngineRequest | int], credits: Mapping[int, int]) -> Iterator[pb.ConnectRequest]:
    """Requests, and the numbers of calls to abort, in as few messages as keep their order; then the calls' credit."""
    for aborts, run in itertools.groupby(due, lambda one: isinstance(one, int)):
        if aborts:
            yield pb.ConnectRequest(abort=pb.Abort(calls=[one for one in run if isinstance(one, int)]))
        else:
            requests = [one for one in run if not isinstance(one, int)]
            yield pb.ConnectRequest(submit=pb.SubmitBatch(requests=requests))
    for call, outputs in credits.items():
        yield pb.ConnectRequest(credit=pb.Credit(call=call, outputs=outputs))


class GrpcEngineClient(EngineClient):
    """The engine at ``address`` (``unix:/path`` or ``host:port``). Connects at first use and again after a break.

    Whoever knows that the engine is down says so with ``suspend``: every call is refused from then on, at once and
    without the wire, until ``resume``.
    """

    def __init__(self, address: str, stall_s: float = STALL_S) -> None:
        self.address = address
        self._stall_s = stall_s
        self._window = 0
        self._channel: grpc.aio.Channel | None = None
        self._link: _Link | None = None
        self._down: Callable[[], LorryError] | None = None
        self._closed = False
        self._answered = False
        self.retry_after_s = 1.0
        """What readers are told when the connection breaks."""

    @property
    def held(self) -> tuple[int, int]:
        """Calls that have not ended, and their outputs that wait here for a reader."""
        return self._link.held if self._link is not None else (0, 0)

    def suspend(self, down: Callable[[], LorryError]) -> None:
        """Ends every open iterator with the error that ``down`` makes, and refuses new calls with it."""
        self._down = down
        if self._link is not None:
            self._link.snap(down().message)

    def resume(self) -> None:
        self._down = None

    async def info(self) -> EngineInfo:
        self._check()
        return await self.probe()

    async def probe(self, timeout_s: float = _RPC_S) -> EngineInfo:
        """As ``info``, of a suspended engine too."""
        found = await self._unary("GetInfo", pb.GetInfoRequest(), timeout_s)
        self._window = found.call_credit
        return info_from_proto(found)

    async def state(self) -> dict[str, Any]:
        self._check()
        found: dict[str, Any] = json.loads((await self._unary("GetState", pb.GetStateRequest())).json)
        return found

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        self._check()
        if request.deadline_s is not None and request.deadline_s <= 0:
            raise DeadlineExceeded("the deadline had passed before the request reached the engine; allow more time")
        link = self._connected()
        box = link.submit(request)
        try:
            while True:
                event = await box.take()
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            link.release(box.call)

    async def whereabouts(self, digest: AdapterDigest) -> Whereabouts:
        self._check()
        found = await self._unary("GetWhereabouts", pb.GetWhereaboutsRequest(sha256=digest))
        return Whereabouts(found.device, found.host, found.disk, found.live)

    async def preload(self, ref: AdapterRef, wait_s: float) -> None:
        self._check()
        request = pb.PreloadRequest(adapter=ref_to_proto(ref), wait_seconds=wait_s)
        await self._unary("Preload", request, wait_s + _RPC_S)

    async def evict(self, digest: AdapterDigest) -> bool:
        self._check()
        return bool((await self._unary("Evict", pb.EvictRequest(sha256=digest))).evicted)

    async def forget(self, digest: AdapterDigest, shared: bool = False) -> Forgotten:
        self._check()
        found = await self._unary("Forget", pb.ForgetRequest(sha256=digest, shared=shared), _FORGET_S)
        return Forgotten(found.disk_bytes, found.host_bytes, found.device_slots, found.kv_pages)

    async def close(self) -> None:
        self._closed = True
        if self._link is not None:
            await self._link.close()
        if self._channel is not None:
            await self._channel.close(None)

    def _check(self) -> None:
        if self._down is not None and not self._closed:
            raise self._down()

    def _stub(self) -> Any:
        if self._closed:
            raise EngineUnavailable("this engine client was closed; make a new one")
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        return engine_pb2_grpc.EngineServiceStub(self._channel)

    def _connected(self) -> _Link:
        stub = self._stub()
        if self._link is None or self._link.broken:
            self._link = _Link(stub, self._stall_s, self._window, lambda: self.retry_after_s)
        return self._link

    async def _unary(self, method: str, request: Any, timeout_s: float = _RPC_S) -> Any:
        try:
            answer = await getattr(self._stub(), method)(request, timeout=timeout_s)
            self._answered = True
            return answer
        except grpc.aio.AioRpcError as error:
            found = error_from_rpc(error)
            trailers: Any = error.trailing_metadata() or ()
            told = any(key == DETAILS_KEY for key, _ in trailers)
            if type(found) is Unavailable or (not told and isinstance(found, DeadlineExceeded | RequestCancelled)):
                # The transport's own status: nobody is there to give a reason.
                level = logging.WARNING if self._answered else logging.DEBUG  # once, and not while it starts
                self._answered = False
                _log.log(level, "the engine at %s does not answer: %s", self.address, found.message)
                raise EngineUnavailable(_UNREACHABLE, retry_after_s=self.retry_after_s) from error
            raise found from error


__all__ = ["STALL_S", "GrpcEngineClient"]
