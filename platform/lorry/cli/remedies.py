"""Errors on the command line: one line with code, reason, message and what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from lorry.cli.output import printable
from lorry.errors import LorryError

_REMEDIES: Mapping[str, str] = {
    "UNAUTHENTICATED": "lorry login stores a key, lorry doctor says what is wrong with one",
    "ROLE_TOO_LOW": "use the key of somebody whose role may; lorry whoami says which this one has",
    "TENANT_SUSPENDED": "ask the platform's administrator",
    "GRANT_REVOKED": "ask the adapter's owner",
    "MODEL_NOT_FOUND": "lorry models lists what this key may use",
    "STALE_ETAG": "somebody changed it meanwhile: look at it again, and send its new etag",
    "TOKEN_BUDGET_SPENT": "lorry quota list shows it; an administrator can raise it",
    "PIN_MISMATCH": "lorry pin list shows the tenant's pins",
    "DEADLINE_EXCEEDED": "give more time with --timeout",
    "UNAVAILABLE": "lorry doctor says what of it is not there",
    "NOT_SERVED_YET": "the server is older than this command, or leaves that out",
}


def remedy_of(error: LorryError) -> str:
    """What to do beside what the message says; "" where that is all."""
    if error.retry_after_s is not None:
        return f"try again in {error.retry_after_s:g} s"
    return _REMEDIES.get(error.reason, "")


def print_error(error: LorryError, as_json: bool) -> None:
    """To standard error."""
    remedy = remedy_of(error)
    if as_json:
        found = {
            "code": error.grpc_code,
            "reason": error.reason,
            "message": error.message,
            "remedy": remedy,
            "retryAfterSeconds": error.retry_after_s,
            "metadata": error.metadata,
            "fieldViolations": [{"field": one.field, "description": one.description} for one in error.violations],
        }
        print(json.dumps({"error": found}, ensure_ascii=False), file=sys.stderr)
        return
    message = printable(" ".join(error.message.split()))
    print(f"lorry: {error.grpc_code} {error.reason}: {message}{f'; {remedy}' if remedy else ''}", file=sys.stderr)


__all__ = ["print_error", "remedy_of"]
