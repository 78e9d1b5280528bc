"""One line in the log for every call that would change something: who, what, how it ended. Never what a call brings or
answers: keys, passwords and files pass here."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
import grpc.aio

from lorry.api.handlers import rewrapped
from lorry.errors import LorryError
from lorry.logs import fields, level_of

LOGGER = "lorry.admin"
CALLER: ContextVar[tuple[str, str] | None] = ContextVar("lorry_admin_caller", default=None)
"""Tenant and principal of the call that this task handles; ``lorry_admin.access`` says."""
READS = ("Get", "List", "Watch", "Query", "Export", "Verify")
"""Methods that begin so change nothing."""
_GENERATE = "/lorry.api.v1.GenerateService/"
_OURS = "/lorry.api.v1."
_QUIET = frozenset({"PutChunk"})
"""Thousands of them make one upload: at DEBUG."""
_NAME = re.compile(r"(?:tenants|models|replicas)/[A-Za-z0-9._:/@-]{1,248}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_log = logging.getLogger(LOGGER)


class AdminLogInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Stands inside ErrorInterceptor, where errors are still the API's own."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        found: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if found is None or found.unary_unary is None or not changes(method):
            return found  # type: ignore[no-any-return]  # the stubs name no handler
        return rewrapped(found, _logged(found.unary_unary, method.rpartition("/")[2]))


def changes(method: str) -> bool:
    """Whether the method, by its full path, is one of the admin services' that change something."""
    if not method.startswith(_OURS) or method.startswith(_GENERATE):
        return False
    return not method.rpartition("/")[2].startswith(READS)


def _logged(behaviour: Callable[[Any, Any], Awaitable[Any]], name: str) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        began, code, reason = time.monotonic(), "CANCELLED", "CANCELLED"
        try:
            answer = await behaviour(request, context)
            code = reason = "OK"
            return answer
        except LorryError as error:
            code, reason = error.grpc_code, error.reason
            raise
        except asyncio.CancelledError:
            raise
        except Exception:  # told under its name, and raised on
            code = reason = "INTERNAL"
            raise
        finally:
            level = logging.DEBUG if name in _QUIET and code == "OK" else level_of(code)
            if _log.isEnabledFor(level):
                tenant, principal = CALLER.get() or ("", "")
                _log.log(
                    level,
                    "admin %s %s",
                    name,
                    reason,
                    extra=fields(
                        method=name,
                        resource=_resource(request),
                        request_id=_request_id(request),
                        tenant=tenant,
                        principal=principal,
                        outcome=reason,
                        code=code,
                        seconds=round(time.monotonic() - began, 6),
                    ),
                )

    return call


def _resource(request: Any) -> str:
    """What the call is about, where it says so in a name of the API's grammar; "" where not."""
    for field in ("name", "parent", "adapter", "upload", "version"):
        text = getattr(request, field, "")
        if isinstance(text, str) and text:
            return text if _NAME.fullmatch(text) else ""
    return ""


def _request_id(request: Any) -> str:
    text = getattr(request, "request_id", "")
    return text if isinstance(text, str) and _REQUEST_ID.fullmatch(text) else ""


__all__ = ["CALLER", "LOGGER", "READS", "AdminLogInterceptor", "changes"]
