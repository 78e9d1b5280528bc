"""What somebody before a browser can do about an error, beside what its message says."""

from __future__ import annotations

from collections.abc import Mapping

from lorry.errors import LorryError

_REMEDIES: Mapping[str, str] = {
    "UNAUTHENTICATED": "Log in again.",
    "ROLE_TOO_LOW": "Ask an owner of your tenant for a role that may do this.",
    "PERMISSION_DENIED": "Open the page again and send the form from there.",
    "TENANT_SUSPENDED": "Ask the platform's administrator.",
    "GRANT_REVOKED": "Ask the adapter's owner for a new grant.",
    "MODEL_NOT_FOUND": "Choose one of the models that the playground lists.",
    "STALE_ETAG": "Somebody changed it meanwhile. Open the page again, look, and decide again.",
    "TOKEN_BUDGET_SPENT": "The month's tokens are used up: see Quotas. An administrator can raise them.",
    "QUOTA_EXCEEDED": "See Quotas for the limits.",
    "PIN_MISMATCH": "See the adapter's page for the pin.",
    "ADAPTER_REFUSED": "Each row below says what to change; correct the folder and upload it again.",
    "ALREADY_EXISTS": "Choose another name.",
    "NOT_SERVED_YET": "This server leaves that out.",
}


def remedy_of(error: LorryError) -> str:
    """A sentence; "" where the message is all."""
    if error.retry_after_s is not None:
        return f"Try again in {max(1, round(error.retry_after_s))} s."
    if error.reason in _REMEDIES:
        return _REMEDIES[error.reason]
    return "Try again in a moment." if error.grpc_code == "UNAVAILABLE" else ""


__all__ = ["remedy_of"]
