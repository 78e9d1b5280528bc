"""Serves any EngineClient as ``lorry.internal.v1.EngineService``."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc.aio

from lorry.api.status import abort_with
from lorry.engine.contract import EngineClient, EngineRequest, Finished
from lorry.engine.streams import closing
from lorry.engine.transport_codec import add_event, error_to_proto, info_to_proto, request_from_proto
from lorry.errors import EmptyStream, EngineUnavailable, InternalError, LorryError
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


class _Session:
    """One gateway's stream: its requests, and what of their output has not been sent yet.

    Output of one request is merged while the stream is busy, so what waits is bounded by max_tokens of the
    requests that live, and a step's outputs for all requests leave as one message.
    """

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._outbox: dict[int, pb.StepOutput] = {}
        self._last = 0
        self._wake = asyncio.Event()

    async def receive(self, requests: AsyncIterator[pb.ConnectRequest]) -> None:
        """Returns when the stream ends, or at a call whose number was used: its output could reach the wrong reader."""
        async for message in requests:
            for submitted in message.submit.requests:
                call = submitted.call
                if call <= self._last:
                    _log.error("call %d came after call %d; this gateway's stream is ended", call, self._last)
                    return
                self._last = call
                self._tasks[call] = asyncio.create_task(self._run(call, request_from_proto(submitted)))
            for call in message.abort.calls:
                if task := self._tasks.get(call):
                    task.cancel()

    async def send(self, context: _Context) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(0)  # the rest of this turn's outputs join the message
            outputs, self._outbox = self._outbox, {}
            if outputs:
                await context.write(pb.ConnectResponse(outputs=outputs.values()))

    async def close(self) -> None:
        """Aborts what still runs, and returns when the engine has been told."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, call: int, request: EngineRequest) -> None:
        request_id, finished = request.request_id, False
        try:
            async with closing(self._engine.generate(request)) as events:
                async for event in events:
                    add_event(self._output(call), event)
                    finished = isinstance(event, Finished)
            if not finished:
                raise EmptyStream(f"the engine ended request {request_id} without Finished; report this as a bug")
        except LorryError as error:
            self._fail(call, error)
        except Exception:
            _log.exception("request %s failed in the engine", request_id)
            self._fail(call, InternalError(f"the engine failed on request {request_id}; its log says how"))
        finally:
            self._tasks.pop(call, None)

    def _output(self, call: int) -> pb.StepOutput:
        output = self._outbox.get(call)
        if output is None:
            output = self._outbox[call] = pb.StepOutput(call=call)
        self._wake.set()
        return output

    def _fail(self, call: int, error: LorryError) -> None:
        self._output(call).error.CopyFrom(error_to_proto(error))


class _Servicer(engine_pb2_grpc.EngineServiceServicer):
    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self.sessions = 0
        """Streams opened so far."""

    async def Connect(  # type: ignore[override]  # the stubs know generators alone; this one writes to the context
        self, request_iterator: AsyncIterator[pb.ConnectRequest], context: _Context
    ) -> None:
        self.sessions += 1
        session = _Session(self._engine)
        sender = asyncio.create_task(session.send(context))
        receiver = asyncio.create_task(session.receive(request_iterator))
        try:
            await asyncio.wait([sender, receiver], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sender, receiver):
                task.cancel()
            await session.close()
            await asyncio.gather(sender, receiver, return_exceptions=True)

    async def GetInfo(self, request: pb.GetInfoRequest, context: _Context) -> pb.GetInfoResponse:
        try:
            return info_to_proto(await self._engine.info())
        except LorryError as error:
            await abort_with(context, error)

    async def GetState(self, request: pb.GetStateRequest, context: _Context) -> pb.GetStateResponse:
        try:
            return pb.GetStateResponse(json=json.dumps(await self._engine.state()))
        except LorryError as error:
            await abort_with(context, error)


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

    async def stop(self, grace: float | None = None) -> None:
        """Ends every stream (after ``grace`` seconds), which aborts their requests. Does not close the engine."""
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
