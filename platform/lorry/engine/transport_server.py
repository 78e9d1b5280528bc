"""Serves any EngineClient as ``lorry.internal.v1.EngineService``."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc.aio

from lorry.api.status import abort_with
from lorry.engine.contract import EngineClient, EngineEvent, Finished
from lorry.engine.streams import closing
from lorry.engine.transport_codec import (
    add_event,
    error_to_proto,
    info_to_proto,
    key_from_proto,
    ref_from_proto,
    request_from_proto,
)
from lorry.engine.transport_credit import CALL_CREDIT
from lorry.engine.transport_metrics import metrics_to_proto
from lorry.engine.transport_views import copies_to_proto, memory_to_proto, queue_to_proto
from lorry.errors import EmptyStream, EngineUnavailable, InternalError, LorryError
from lorry.ids import AdapterScope
from lorry.internal.v1 import engine_pb2 as pb
from lorry.internal.v1 import engine_pb2_grpc

_log = logging.getLogger(__name__)
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]
_Context = grpc.aio.ServicerContext[Any, Any]


class _Flow:
    """One call's way out: what of its output waits, and how many outputs its reader will still take."""

    __slots__ = ("credit", "ended", "task", "waiting")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.credit = CALL_CREDIT
        self.waiting: pb.StepOutput | None = None
        self.ended = False
        """``waiting`` is the last output: it needs no credit."""


class _Session:
    """One gateway's stream: its requests, and what of their output has not been sent yet.

    A step's outputs for all requests leave as one message. While a call has no credit, or the stream is busy, its
    output is merged into the one that waits: a reader that does not read holds at most its credit on the other side and
    one output here, and holds up no other call.
    """

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._flows: dict[int, _Flow] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: dict[int, None] = {}
        """Calls whose waiting output may leave, in order."""
        self._last = 0
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def held(self) -> int:
        """Outputs that wait here."""
        return sum(flow.waiting is not None for flow in self._flows.values())

    async def receive(self, requests: AsyncIterator[pb.ConnectRequest]) -> None:
        """Returns when the stream ends, or at a call whose number was used: its output could reach the wrong reader."""
        async for message in requests:
            for submitted in message.submit.requests:
                call = submitted.call
                if call <= self._last:
                    _log.error("call %d came after call %d; this gateway's stream is ended", call, self._last)
                    return
                self._last = call
                flow = self._flows[call] = _Flow()
                self._empty.clear()
                flow.task = asyncio.create_task(self._run(call, flow, submitted))
                self._tasks.add(flow.task)
                flow.task.add_done_callback(self._tasks.discard)
            for call in message.abort.calls:
                if aborted := self._flows.get(call):
                    self._drop(call)
                    self._note_empty()
                    aborted.task.cancel()
            for credit in message.credits.calls:
                self._give(credit.call, credit.outputs)

    async def send(self, context: _Context) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(0)  # the rest of this turn's outputs join the message
            outputs = self._take()
            if outputs:
                await context.write(pb.ConnectResponse(outputs=outputs))
                self._note_empty()

    async def drained(self) -> None:
        """Returns when no call is left and the last output of each has been written."""
        await self._empty.wait()

    async def close(self) -> None:
        """Aborts what still runs, and returns when the engine has been told."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, call: int, flow: _Flow, submitted: pb.EngineRequest) -> None:
        request_id, finished = submitted.request_id, False
        try:
            async with closing(self._engine.generate(request_from_proto(submitted))) as events:
                async for event in events:
                    finished = isinstance(event, Finished)
                    self._put(call, flow, event)
            if not finished:
                raise EmptyStream(f"the engine ended request {request_id} without Finished; report this as a bug")
        except LorryError as error:
            self._fail(call, flow, error)
        except Exception:  # one request's fault ends that request, with an answer, and no other
            _log.exception("request %s failed in the engine", request_id)
            self._fail(call, flow, InternalError(f"the engine failed on request {request_id}; its log says how"))

    def _put(self, call: int, flow: _Flow, event: EngineEvent) -> None:
        if flow.waiting is None:
            flow.waiting = pb.StepOutput(call=call)
        add_event(flow.waiting, event)
        flow.ended = isinstance(event, Finished)
        self._offer(call, flow)

    def _fail(self, call: int, flow: _Flow, error: LorryError) -> None:
        if flow.waiting is None:
            flow.waiting = pb.StepOutput(call=call)
        flow.waiting.error.CopyFrom(error_to_proto(error))
        flow.ended = True
        self._offer(call, flow)

    def _offer(self, call: int, flow: _Flow) -> None:
        if self._flows.get(call) is flow and (flow.credit > 0 or flow.ended):
            self._ready[call] = None
            self._wake.set()

    def _give(self, call: int, outputs: int) -> None:
        flow = self._flows.get(call)
        if flow is None:
            return  # its last output is on its way
        flow.credit = min(CALL_CREDIT, flow.credit + outputs)
        if flow.waiting is not None:
            self._offer(call, flow)

    def _take(self) -> list[pb.StepOutput]:
        """What may leave now."""
        outputs: list[pb.StepOutput] = []
        ready, self._ready = self._ready, {}
        for call in ready:
            flow = self._flows[call]
            if flow.waiting is None:
                continue
            outputs.append(flow.waiting)
            flow.waiting = None
            flow.credit -= 1
            if flow.ended:
                self._drop(call)
        return outputs

    def _drop(self, call: int) -> None:
        del self._flows[call]
        self._ready.pop(call, None)

    def _note_empty(self) -> None:
        if not self._flows:
            self._empty.set()


class _Servicer(engine_pb2_grpc.EngineServiceServicer):
    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._sessions: set[_Session] = set()
        self._closing = asyncio.Event()
        self.sessions = 0
        """Streams opened so far."""

    @property
    def held(self) -> int:
        """Outputs that wait for credit, or for a busy stream."""
        return sum(session.held for session in self._sessions)

    def close(self) -> None:
        """Streams end as soon as they carry no call."""
        self._closing.set()

    async def Connect(  # type: ignore[override]  # the stubs know generators alone; this one writes to the context
        self, request_iterator: AsyncIterator[pb.ConnectRequest], context: _Context
    ) -> None:
        self.sessions += 1
        session = _Session(self._engine)
        self._sessions.add(session)
        tasks = [
            asyncio.create_task(session.send(context)),
            asyncio.create_task(session.receive(request_iterator)),
            asyncio.create_task(self._closed(session)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await session.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._sessions.discard(session)

    async def _closed(self, session: _Session) -> None:
        await self._closing.wait()
        await session.drained()

    async def GetInfo(self, request: pb.GetInfoRequest, context: _Context) -> pb.GetInfoResponse:
        try:
            info = info_to_proto(await self._engine.info())
            info.call_credit = CALL_CREDIT
            return info
        except LorryError as error:
            await abort_with(context, error)

    async def GetState(self, request: pb.GetStateRequest, context: _Context) -> pb.GetStateResponse:
        try:
            return pb.GetStateResponse(json=json.dumps(await self._engine.state()))
        except LorryError as error:
            await abort_with(context, error)

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: _Context) -> pb.GetMetricsResponse:
        try:
            return metrics_to_proto(await self._engine.metrics())
        except LorryError as error:
            await abort_with(context, error)

    async def GetMemory(self, request: pb.GetMemoryRequest, context: _Context) -> pb.GetMemoryResponse:
        try:
            return memory_to_proto(await self._engine.memory())
        except LorryError as error:
            await abort_with(context, error)

    async def GetCopies(self, request: pb.GetCopiesRequest, context: _Context) -> pb.GetCopiesResponse:
        try:
            found = await self._engine.copies([AdapterScope(scope) for scope in request.scopes])
        except LorryError as error:
            await abort_with(context, error)
        return pb.GetCopiesResponse(copies=copies_to_proto(found))

    async def GetQueue(self, request: pb.GetQueueRequest, context: _Context) -> pb.GetQueueResponse:
        try:
            return queue_to_proto(await self._engine.queue())
        except LorryError as error:
            await abort_with(context, error)

    async def GetWhereabouts(self, request: pb.GetWhereaboutsRequest, context: _Context) -> pb.GetWhereaboutsResponse:
        try:
            found = await self._engine.whereabouts(key_from_proto(request))
        except LorryError as error:
            await abort_with(context, error)
        return pb.GetWhereaboutsResponse(device=found.device, host=found.host, disk=found.disk, live=found.live)

    async def Preload(self, request: pb.PreloadRequest, context: _Context) -> pb.PreloadResponse:
        try:
            await self._engine.preload(ref_from_proto(request.adapter), request.wait_seconds)
        except LorryError as error:
            await abort_with(context, error)
        return pb.PreloadResponse()

    async def Evict(self, request: pb.EvictRequest, context: _Context) -> pb.EvictResponse:
        try:
            return pb.EvictResponse(evicted=await self._engine.evict(key_from_proto(request)))
        except LorryError as error:
            await abort_with(context, error)

    async def Forget(self, request: pb.ForgetRequest, context: _Context) -> pb.ForgetResponse:
        try:
            found = await self._engine.forget(key_from_proto(request))
        except LorryError as error:
            await abort_with(context, error)
        return pb.ForgetResponse(**dataclasses.asdict(found))


class EngineServer:
    """A running server. ``address`` is what GrpcEngineClient takes (a TCP port of 0 is resolved)."""

    def __init__(self, server: grpc.aio.Server, servicer: _Servicer, address: str) -> None:
        self._server = server
        self._servicer = servicer
        self.address = address

    @property
    def sessions(self) -> int:
        """Gateway streams opened so far."""
        return self._servicer.sessions

    @property
    def held(self) -> int:
        """Outputs of all calls that wait for their reader's credit or for a busy stream; one a call at most."""
        return self._servicer.held

    async def stop(self, grace: float | None = None) -> None:
        """Ends every stream: those that carry no call at once, the others after ``grace`` seconds, which aborts their
        requests. Does not close the engine."""
        self._servicer.close()
        await self._server.stop(grace)
        if self.address.startswith("unix:"):
            with suppress(FileNotFoundError):
                os.unlink(self.address.removeprefix("unix:"))

    async def wait(self) -> None:
        """Returns when the server has been stopped."""
        await self._server.wait_for_termination()


async def serve_engine(engine: EngineClient, address: str) -> EngineServer:
    """Serves at ``unix:/path`` (the socket is made 0600) or ``host:port``. There is no authentication: a TCP
    address must be reachable by gateways alone.

    Raises EngineUnavailable where the address cannot be bound.
    """
    server = grpc.aio.server(options=_OPTIONS)
    servicer = _Servicer(engine)
    engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise EngineUnavailable(f"address: {address} cannot be bound: {error}; choose another") from error
    await server.start()
    if address.startswith("unix:"):
        os.chmod(address.removeprefix("unix:"), stat.S_IRUSR | stat.S_IWUSR)
    else:
        address = f"{address.rpartition(':')[0]}:{port}"
    return EngineServer(server, servicer, address)


__all__ = ["EngineServer", "serve_engine"]
