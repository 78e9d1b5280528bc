"""RPC handlers with something around them, for interceptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc


def rewrapped(handler: Any, behaviour: Callable[[Any, Any], Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """The handler of a method with one request, unary or streamed, with ``behaviour`` in place of its own."""
    streams = handler.response_streaming
    make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
    made: grpc.RpcMethodHandler[Any, Any] = make(
        behaviour,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
    return made


__all__ = ["rewrapped"]
