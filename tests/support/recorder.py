"""A gRPC server on a real port that answers every method of the public API by a script, and writes down what came.

And a pipe in front of any server that can be cut, as a network would.
"""

from __future__ import annotations

import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from lorry.api.status import status_code, trailers
from lorry.api.v1 import adapter_admin_pb2, fleet_pb2, generate_pb2, tenant_admin_pb2, user_admin_pb2
from lorry.errors import LorryError

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True)
class Raw:
    """A status as another server, or a proxy, would send it."""

    code: grpc.StatusCode
    details: str = "scripted"
    trailing: Metadata = ()


@dataclass(frozen=True)
class Call:
    method: str
    request: Any
    metadata: dict[str, Any]
    left_s: float | None


Outcome = Message | LorryError | Raw | Sequence[Any] | Callable[[Any, grpc.ServicerContext], Any]


class Recorder:
    """``script(method, ...)`` queues outcomes; the last of them stays. Without one a method answers an empty message.
    A context manager."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.calls: list[Call] = []
        self.trailing: dict[str, Metadata] = {}
        self._scripts: dict[str, deque[Outcome]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        for file in (generate_pb2, adapter_admin_pb2, tenant_admin_pb2, user_admin_pb2, fleet_pb2):
            for service in file.DESCRIPTOR.services_by_name.values():
                handlers = {method.name: self._handler(method) for method in service.methods}
                self._server.add_generic_rpc_handlers(
                    (grpc.method_handlers_generic_handler(service.full_name, handlers),)
                )
        health = {"Check": grpc.unary_unary_rpc_method_handler(lambda request, context: self.health)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),))
        self.health = b"\x08\x01"
        """HealthCheckResponse, SERVING."""
        port = (
            self._server.add_insecure_port("127.0.0.1:0")
            if credentials is None
            else self._server.add_secure_port("127.0.0.1:0", credentials)
        )
        self.address = f"127.0.0.1:{port}"

    def script(self, method: str, *outcomes: Outcome) -> None:
        with self._lock:
            self._scripts[method] = deque(outcomes)

    def of(self, method: str) -> list[Any]:
        """The requests that came."""
        return [call.request for call in self.calls if call.method == method]

    def __enter__(self) -> Recorder:
        self._server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop(None).wait()

    def _handler(self, method: MethodDescriptor) -> Any:
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

        def take(message: Any, context: grpc.ServicerContext) -> Any:
            left = context.time_remaining()
            made = Call(method.name, message, dict(context.invocation_metadata()), left)
            with self._lock:
                self.calls.append(made)
                queued = self._scripts[method.name]
                found: Any = (queued.popleft() if len(queued) > 1 else queued[0]) if queued else answer()
            if callable(found):
                found = found(message, context)
            if method.name in self.trailing:
                context.set_trailing_metadata(self.trailing[method.name])
            if isinstance(found, LorryError | Raw):
                _abort(context, found)
            return found

        def unary(message: Any, context: grpc.ServicerContext) -> Any:
            return take(message, context)

        def stream(message: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            found = take(message, context)
            for one in found if isinstance(found, list | tuple) else [found]:
                if isinstance(one, LorryError | Raw):
                    _abort(context, one)
                yield one

        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        behaviour: Any = stream if method.server_streaming else unary
        return make(behaviour, request_deserializer=request.FromString, response_serializer=_serialised)


class Pipe:
    """Listens in front of ``target``; ``cut`` breaks every connection, and the next ones are taken as before. A
    context manager. ``cut_after``: bytes towards the server, all connections together, after which one cut happens."""

    def __init__(self, target: str, cut_after: int | None = None) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._left = cut_after
        self.cuts = 0

    def __enter__(self) -> Pipe:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close_all()

    def cut(self) -> None:
        self.cuts += 1
        self._close_all()

    def _close_all(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, set()
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                with self._lock:
                    self._ends |= {near, far}
                threading.Thread(target=self._copy, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._copy, args=(far, near, False), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                if counted and self._spent(len(data)):
                    self.cut()
                    return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def _spent(self, size: int) -> bool:
        with self._lock:
            if self._left is None:
                return False
            self._left -= size
            if self._left > 0:
                return False
            self._left = None
            return True


def _abort(context: grpc.ServicerContext, found: LorryError | Raw) -> NoReturn:
    if isinstance(found, Raw):
        context.set_trailing_metadata(found.trailing)
        context.abort(found.code, found.details)
    context.set_trailing_metadata(trailers(found))
    context.abort(status_code(found), found.message)
    raise AssertionError("abort returned")


def _serialised(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


__all__ = ["Call", "Outcome", "Pipe", "Raw", "Recorder"]
