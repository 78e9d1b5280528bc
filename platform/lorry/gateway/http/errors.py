"""OpenAI's error envelope, and the headers that tell clients whether to try again."""

from __future__ import annotations

import json
import math
from typing import Any

from lorry.errors import (
    LorryError,
    ModelNotFound,
    NotServedYet,
    QuotaExceeded,
    TokenBudgetSpent,
    Unauthenticated,
    Unavailable,
)

MESSAGE_CHARS = 4096
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    501: "not_served_error",
    503: "unavailable_error",
    504: "timeout_error",
}
INSUFFICIENT_QUOTA = "insufficient_quota"
"""OpenAI's code for a budget that is spent: its clients do not try again, and neither shall others."""


def envelope(error: LorryError) -> dict[str, Any]:
    """``code`` is the error's reason, but for a spent budget; ``lorry`` has it always, with what is for machines."""
    spent = isinstance(error, TokenBudgetSpent)
    own: dict[str, Any] = {"reason": error.reason}
    if error.violations:
        own["violations"] = [{"field": one.field, "description": one.description} for one in error.violations]
    if error.metadata:
        own["metadata"] = error.metadata
    if error.retry_after_s is not None and not spent:
        own["retry_after_seconds"] = error.retry_after_s
    return {
        "error": {
            "message": error.message[:MESSAGE_CHARS],
            "type": INSUFFICIENT_QUOTA if spent else _TYPES.get(error.http_status, "server_error"),
            "param": _param(error),
            "code": INSUFFICIENT_QUOTA if spent else error.reason,
            "lorry": own,
        }
    }


def headers_of(error: LorryError) -> list[tuple[bytes, bytes]]:
    """``Retry-After`` in whole seconds, at least 1, where the error says when; ``x-should-retry``, which OpenAI's
    clients follow rather than the status: 409 says no, and so does a spent budget."""
    found = [(b"x-should-retry", b"true" if retryable(error) else b"false")]
    if error.retry_after_s is not None and retryable(error):
        found.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    if isinstance(error, Unauthenticated):
        found.append((b"www-authenticate", b'Bearer realm="lorry"'))
    return found


def retryable(error: LorryError) -> bool:
    """Whether the same request may be served later: as gRPC's UNAVAILABLE and RetryInfo say."""
    return isinstance(error, Unavailable | QuotaExceeded)


def encode(envelope: dict[str, Any]) -> bytes:
    return json.dumps(envelope, separators=(",", ":")).encode()


def _param(error: LorryError) -> str | None:
    if error.violations:
        return error.violations[0].field
    if isinstance(error, NotServedYet):
        return error.metadata.get("fields", "").partition(", ")[0] or None
    return "model" if isinstance(error, ModelNotFound) else None


__all__ = ["INSUFFICIENT_QUOTA", "encode", "envelope", "headers_of", "retryable"]
