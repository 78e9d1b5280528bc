"""Errors on the wire: the one place where ``lorry.errors`` and gRPC statuses meet, in both directions.

A status carries ``google.rpc`` details in the trailer ``grpc-status-details-bin``: ErrorInfo (reason,
domain ``lorry``, metadata), BadRequest (field violations) and RetryInfo, and ``grpc-retry-pushback-ms``
where a client's own retries should wait (or, with -1, stop). Trailers are small by protocol (8 KiB), so
what does not fit is dropped from the end and its number is said.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from lorry import errors
from lorry.api.handlers import rewrapped
from lorry.errors import FieldViolation, InternalError, LorryError, TokenBudgetSpent, Unauthenticated, by_reason

DOMAIN = "lorry"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
MESSAGE_BYTES = 1024
"""Longest status message; it travels twice (percent-encoded, and inside the details)."""
DETAILS_BYTES = 4096
"""Longest serialised details."""

_log = logging.getLogger(__name__)

_BY_CODE: dict[str, type[LorryError]] = {
    "UNAUTHENTICATED": errors.Unauthenticated,
    "NOT_FOUND": errors.ResourceNotFound,
    "PERMISSION_DENIED": errors.PermissionDenied,
    "FAILED_PRECONDITION": errors.FailedPrecondition,
    "RESOURCE_EXHAUSTED": errors.QuotaExceeded,
    "UNAVAILABLE": errors.Unavailable,
    "INVALID_ARGUMENT": errors.InvalidRequest,
    "ALREADY_EXISTS": errors.AlreadyExists,
    "ABORTED": errors.StaleEtag,
    "DEADLINE_EXCEEDED": errors.DeadlineExceeded,
    "CANCELLED": errors.RequestCancelled,
    "UNIMPLEMENTED": errors.NotServedYet,
}
"""For statuses without details (another server, a proxy, the transport). Any other code is InternalError."""


def status_code(error: LorryError) -> grpc.StatusCode:
    """The code of the error's class."""
    code: grpc.StatusCode = grpc.StatusCode[error.grpc_code]
    return code


def status_proto(error: LorryError) -> status_pb2.Status:
    """The error as ``google.rpc.Status``, at most ``DETAILS_BYTES`` long."""
    status = status_pb2.Status(code=int(status_code(error).value[0]), message=_clip(error.message, MESSAGE_BYTES))
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for key, value in sorted(error.metadata.items()):
        info.metadata[key] = _clip(value, 256)
        if info.ByteSize() > DETAILS_BYTES // 4:
            del info.metadata[key]
            break
    _pack(status, info)
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(max(0, round(error.retry_after_s * 1000)))
        _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
    if error.violations:
        _pack(status, _bad_request(error.violations, DETAILS_BYTES - status.ByteSize() - 128))
    return status


def trailers(error: LorryError) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata of a call that ends with the error."""
    found: list[tuple[str, str | bytes]] = [(DETAILS_KEY, status_proto(error).SerializeToString())]
    if isinstance(error, TokenBudgetSpent):
        found.append((PUSHBACK_KEY, "-1"))
    elif error.retry_after_s is not None:
        found.append((PUSHBACK_KEY, str(max(0, round(error.retry_after_s * 1000)))))
    return tuple(found)


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: LorryError) -> NoReturn:
    """Ends the call with the error's code, message and details. Always raises ``grpc.aio.AbortError``."""
    await context.abort(status_code(error), _clip(error.message, MESSAGE_BYTES), trailers(error))
    raise AssertionError("abort returned")


def error_from_rpc(rpc_error: grpc.RpcError) -> LorryError:
    """The inverse of ``abort_with`` for clients: the class by its reason, or by the code where no details came.

    Takes a ``grpc.RpcError`` that is a call's outcome (as raised by stubs) or a ``grpc.aio.AioRpcError``.
    """
    call: Any = rpc_error
    code: grpc.StatusCode = call.code()
    message = call.details() or code.name
    status = _status_of(call.trailing_metadata() or ())
    fallback = _BY_CODE.get(code.name, InternalError)
    if status is None:
        return fallback(message)
    info, bad_request, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    retry_after_s: float | None = None
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(bad_request.DESCRIPTOR):
            detail.Unpack(bad_request)
        elif detail.Is(retry.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
    cls = by_reason().get(info.reason, fallback) if info.domain == DOMAIN else fallback
    return cls(
        message,
        metadata=dict(info.metadata),
        violations=[FieldViolation(v.field, v.description) for v in bad_request.field_violations],
        retry_after_s=retry_after_s,
    )


def bearer_token(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The key of ``authorization: Bearer <key>``. Raises Unauthenticated where there is not exactly one."""
    return bearer_token_of(context.invocation_metadata() or ())


def bearer_token_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """As ``bearer_token``, from metadata pairs."""
    values = [value for key, value in metadata if key.lower() == "authorization"]
    if len(values) != 1 or not isinstance(values[0], str):
        raise Unauthenticated(
            f"authorization: {len(values)} values; send metadata `authorization: Bearer <api key>` exactly once"
        )
    scheme, _, token = values[0].partition(" ")
    if scheme.lower() != "bearer" or not token or " " in token:
        raise Unauthenticated("authorization: not of the form `Bearer <api key>`; send it so")
    return token


Behaviour = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Any]


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Makes every unary-unary and unary-stream handler end with a status of the table.

    A LorryError becomes its own status. Anything else is logged with its traceback under a minted id and
    answers INTERNAL with that id, never with the exception's text. A stream's generator is closed when the
    call ends for whatever reason, so that its ``finally`` blocks run at once.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        found: Any = handler  # the stubs do not know a handler's fields
        if found is None or found.request_streaming:
            return handler
        method = handler_call_details.method
        behaviour = found.unary_stream if found.response_streaming else found.unary_unary
        if found.response_streaming and inspect.isasyncgenfunction(behaviour):
            return rewrapped(found, _wrap_stream(behaviour, method))
        if inspect.iscoroutinefunction(behaviour):
            return rewrapped(found, _wrap_unary(behaviour, method))
        return handler


def _wrap_unary(behaviour: Behaviour, method: str) -> Behaviour:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(request, context)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # the last place: every error gets a status
            await abort_with(context, _as_lorry(error, method))

    return call


def _wrap_stream(behaviour: Behaviour, method: str) -> Behaviour:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async with aclosing(behaviour(request, context)) as stream:
                async for message in stream:
                    yield message
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # the last place: every error gets a status
            await abort_with(context, _as_lorry(error, method))

    return call


def _as_lorry(error: Exception, method: str) -> LorryError:
    if isinstance(error, LorryError):
        return error
    request_id = uuid.uuid4().hex
    _log.error("%s failed, request id %s", method, request_id, exc_info=error)
    return InternalError(
        f"internal error; the operator finds it in the log under request id {request_id}",
        metadata={"request_id": request_id},
    )


def _status_of(metadata: Iterable[tuple[str, str | bytes]]) -> status_pb2.Status | None:
    for key, value in metadata:
        if key == DETAILS_KEY and isinstance(value, bytes):
            status = status_pb2.Status()
            try:
                status.ParseFromString(value)
            except Exception:  # DecodeError's class differs between protobuf's implementations
                return None
            return status
    return None


def _pack(status: status_pb2.Status, message: Any) -> None:
    detail = any_pb2.Any()
    detail.Pack(message)
    status.details.append(detail)


def _bad_request(violations: Sequence[FieldViolation], room: int) -> error_details_pb2.BadRequest:
    found = error_details_pb2.BadRequest()
    for index, violation in enumerate(violations):
        found.field_violations.add(field=_clip(violation.field, 256), description=_clip(violation.description, 512))
        if found.ByteSize() > room:
            del found.field_violations[-1]
            found.field_violations.add(field="", description=f"{len(violations) - index} more violations")
            break
    return found


def _clip(text: str, size: int) -> str:
    raw = text.encode()
    return text if len(raw) <= size else raw[: size - 3].decode(errors="ignore") + "..."


__all__ = [
    "DETAILS_KEY",
    "DOMAIN",
    "PUSHBACK_KEY",
    "ErrorInterceptor",
    "abort_with",
    "bearer_token",
    "bearer_token_of",
    "error_from_rpc",
    "status_code",
    "status_proto",
    "trailers",
]
