"""EngineClient over ``lorry.internal.v1``: one multiplexed stream, however many requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio

from lorry.api.status import error_from_rpc
from lorry.engine.contract import EngineClient, EngineEvent, EngineInfo, EngineRequest, Finished, Tokens
from lorry.engine.transport_codec import error_from_proto, events_from_proto, info_from_proto, request_to_proto
from lorry.errors import DeadlineExceeded, EngineUnavailable, LorryError, RequestCancelled, Unavailable
from lorry.internal.v1 import engine_pb2 as pb
from lorry.internal.v1 import engine_pb2_grpc

STALL_S = 30.0
"""A reader that takes nothing for this long, while output waits for it, is aborted."""
PENDING_EVENTS = 8192
"""And so is one that lets this many events wait."""
_RPC_S = 10.0
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
    """What has come for one call and has not been read. Fed and read on one loop."""

    def __init__(self, call: int) -> None:
        self.call = call
        self._events: deque[EngineEvent] = deque()
        self._error: LorryError | None = None
        self._wake = asyncio.Event()
        self._since = 0.0

    def put(self, event: EngineEvent, now: float) -> None:
        if not self._events:
            self._since = now
        self._events.append(event)
        self._wake.set()

    def stalled(self, now: float, stall_s: float) -> bool:
        return bool(self._events) and (now - self._since > stall_s or len(self._events) > PENDING_EVENTS)

    def fail(self, error: LorryError, drop: bool = False) -> None:
        """The request ends so, after what waits has been read (``drop``: at once)."""
        if drop:
            self._events.clear()
        self._error = self._error or error
        self._wake.set()

    async def take(self) -> EngineEvent:
        """The next event; Tokens that wait are merged into one."""
        while not self._events:
            if self._error is not None:
                raise self._error
            self._wake.clear()
            await self._wake.wait()
        event = self._events.popleft()
        if isinstance(event, Tokens) and self._events and isinstance(self._events[0], Tokens):
            ids, text = list(event.token_ids), [event.text]
            while self._events and isinstance(more := self._events[0], Tokens):
                self._events.popleft()
                ids.extend(more.token_ids)
                text.append(more.text)
            event = Tokens(tuple(ids), "".join(text))
        self._since = asyncio.get_running_loop().time()
        return event


class _Link:
    """One Connect stream. Once broken it stays so; the client then opens another.

    Calls are numbered from 1 and everything is filed by that number: a request id that comes again is another call.
    Submissions and aborts leave in the order in which they were made.
    """

    def __init__(self, stub: Any, stall_s: float) -> None:
        self._call = stub.Connect()
        self._stall_s = stall_s
        self._boxes: dict[int, _Mailbox] = {}
        self._count = 0
        self._due: list[pb.EngineRequest | int] = []
        self._wake = asyncio.Event()
        self.broken = False
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    def submit(self, request: EngineRequest) -> _Mailbox:
        """Raises ValueError or TypeError for a request that has no encoding; nothing is sent then."""
        self._count += 1
        message = request_to_proto(request, self._count)
        box = self._boxes[self._count] = _Mailbox(self._count)
        self._due.append(message)
        self._wake.set()
        return box

    def release(self, call: int) -> None:
        """The reader is gone: the engine is told, unless the call had ended."""
        if self._boxes.pop(call, None) is not None and not self.broken:
            self._due.append(call)
            self._wake.set()

    def snap(self, why: str, drop: bool = False) -> None:
        """Ends every call that the stream carried, and the stream. Idempotent."""
        if self.broken:
            return
        self.broken = True
        boxes, self._boxes = self._boxes, {}
        for box in boxes.values():
            box.fail(EngineUnavailable(why, retry_after_s=1.0), drop)
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
        except Exception:
            _log.exception("an answer of the engine could not be read; its connection is ended")
            why = _UNREACHABLE
        finally:
            self.snap(why)

    def _dispatch(self, output: pb.StepOutput, now: float) -> None:
        box = self._boxes.get(output.call)
        if box is None:
            return  # its reader has gone
        for event in events_from_proto(output):
            box.put(event, now)
        if output.HasField("error"):
            box.fail(error_from_proto(output.error))
        if output.HasField("error") or output.HasField("finished"):
            del self._boxes[output.call]
        elif box.stalled(now, self._stall_s):
            box.fail(RequestCancelled(f"nothing was read for {self._stall_s:g} s; read the stream faster"), drop=True)
            self.release(output.call)

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(0)  # the rest of this turn's requests join the message
                due, self._due = self._due, []
                for message in _messages(due):
                    await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            _log.warning("the connection to the engine broke: %s", error)
        except Exception:
            _log.exception("requests could not be sent to the engine; its connection is ended")
        finally:
            self.snap(_UNREACHABLE)


def _messages(due: Sequence[pb.EngineRequest | int]) -> Iterator[pb.ConnectRequest]:
    """Requests, and the numbers of calls to abort, in as few messages as keep their order."""
    for aborts, run in itertools.groupby(due, lambda one: isinstance(one, int)):
        if aborts:
            yield pb.ConnectRequest(abort=pb.Abort(calls=[one for one in run if isinstance(one, int)]))
        else:
            requests = [one for one in run if not isinstance(one, int)]
            yield pb.ConnectRequest(submit=pb.SubmitBatch(requests=requests))


class GrpcEngineClient(EngineClient):
    """The engine at ``address`` (``unix:/path`` or ``host:port``). Connects at first use and again after a break."""

    def __init__(self, address: str, stall_s: float = STALL_S) -> None:
        self._address = address
        self._stall_s = stall_s
        self._channel: grpc.aio.Channel | None = None
        self._link: _Link | None = None
        self._closed = False
        self._answered = False

    async def info(self) -> EngineInfo:
        return info_from_proto(await self._unary("GetInfo", pb.GetInfoRequest()))

    async def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((await self._unary("GetState", pb.GetStateRequest())).json)
        return found

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
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

    async def close(self) -> None:
        self._closed = True
        if self._link is not None:
            await self._link.close()
        if self._channel is not None:
            await self._channel.close(None)

    def _stub(self) -> Any:
        if self._closed:
            raise EngineUnavailable("this engine client was closed; make a new one")
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        return engine_pb2_grpc.EngineServiceStub(self._channel)

    def _connected(self) -> _Link:
        stub = self._stub()
        if self._link is None or self._link.broken:
            self._link = _Link(stub, self._stall_s)
        return self._link

    async def _unary(self, method: str, request: Any) -> Any:
        try:
            answer = await getattr(self._stub(), method)(request, timeout=_RPC_S)
            self._answered = True
            return answer
        except grpc.aio.AioRpcError as error:
            found = error_from_rpc(error)
            if type(found) is Unavailable or isinstance(found, DeadlineExceeded | RequestCancelled):
                # The transport's own status: nobody is there to give a reason.
                level = logging.WARNING if self._answered else logging.DEBUG  # once, and not while it starts
                self._answered = False
                _log.log(level, "the engine at %s does not answer: %s", self._address, found.message)
                raise EngineUnavailable(_UNREACHABLE, retry_after_s=1.0) from error
            raise found from error


__all__ = ["PENDING_EVENTS", "STALL_S", "GrpcEngineClient"]
