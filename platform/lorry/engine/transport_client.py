"""EngineClient over ``lorry.internal.v1``: one multiplexed stream, however many requests."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Collection
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
    EventSink,
    Feed,
    Finished,
    Forgotten,
    Whereabouts,
)
from lorry.engine.metrics import EngineMetrics
from lorry.engine.transport_codec import (
    info_from_proto,
    ref_to_proto,
)
from lorry.engine.transport_link import UNREACHABLE, Link
from lorry.engine.transport_metrics import metrics_from_proto
from lorry.engine.transport_views import copies_from_proto, memory_from_proto, queue_from_proto
from lorry.engine.views import MemoryView, QueueView, VersionCopies
from lorry.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    LorryError,
    RequestCancelled,
    Unavailable,
)
from lorry.ids import AdapterKey, AdapterScope
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
    # A gateway that cannot keep up must not have seconds of tokens in its transport's buffers: with small windows they
    # wait in the engine, which merges them.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 16 << 10),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]


_log = logging.getLogger(__name__)


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
        self._link: Link | None = None
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

    async def metrics(self) -> EngineMetrics:
        self._check()
        return metrics_from_proto(await self._unary("GetMetrics", pb.GetMetricsRequest()))

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        link = self._link_for(request)
        box = link.submit(request)
        try:
            while True:
                event = await box.take()
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            link.release(box.call)

    def feed(self, request: EngineRequest, sink: EventSink) -> Feed:
        return self._link_for(request).feed(request, sink)

    async def whereabouts(self, adapter: AdapterKey) -> Whereabouts:
        self._check()
        found = await self._unary(
            "GetWhereabouts", pb.GetWhereaboutsRequest(sha256=adapter.digest, scope=adapter.scope)
        )
        return Whereabouts(found.device, found.host, found.disk, found.live)

    async def memory(self) -> MemoryView:
        self._check()
        return memory_from_proto(await self._unary("GetMemory", pb.GetMemoryRequest()))

    async def copies(self, scopes: Collection[AdapterScope]) -> tuple[VersionCopies, ...]:
        self._check()
        return copies_from_proto((await self._unary("GetCopies", pb.GetCopiesRequest(scopes=scopes))).copies)

    async def queue(self) -> QueueView:
        self._check()
        return queue_from_proto(await self._unary("GetQueue", pb.GetQueueRequest()))

    async def preload(self, ref: AdapterRef, wait_s: float) -> None:
        self._check()
        request = pb.PreloadRequest(adapter=ref_to_proto(ref), wait_seconds=wait_s)
        await self._unary("Preload", request, wait_s + _RPC_S)

    async def evict(self, adapter: AdapterKey) -> bool:
        self._check()
        request = pb.EvictRequest(sha256=adapter.digest, scope=adapter.scope)
        return bool((await self._unary("Evict", request)).evicted)

    async def forget(self, adapter: AdapterKey) -> Forgotten:
        self._check()
        request = pb.ForgetRequest(sha256=adapter.digest, scope=adapter.scope)
        found = await self._unary("Forget", request, _FORGET_S)
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

    def _link_for(self, request: EngineRequest) -> Link:
        self._check()
        if request.deadline_s is not None and request.deadline_s <= 0:
            raise DeadlineExceeded("the deadline had passed before the request reached the engine; allow more time")
        return self._connected()

    def _stub(self) -> Any:
        if self._closed:
            raise EngineUnavailable("this engine client was closed; make a new one")
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        return engine_pb2_grpc.EngineServiceStub(self._channel)

    def _connected(self) -> Link:
        if self._link is None or self._link.broken or self._closed:
            self._link = Link(self._stub(), self._stall_s, self._window, lambda: self.retry_after_s)
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
                raise EngineUnavailable(UNREACHABLE, retry_after_s=self.retry_after_s) from error
            raise found from error


__all__ = ["STALL_S", "GrpcEngineClient"]
