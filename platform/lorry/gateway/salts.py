"""Each tenant's own salt for the prefix cache, from a secret that never leaves the gateway."""

from __future__ import annotations

import hashlib
import hmac

from lorry.errors import InvalidRequest
from lorry.ids import TenantId

SECRET_BYTES_MIN = 32
_DOMAIN = b"lorry-tenant-kv-salt-v1"


class TenantSalts:
    """``of(tenant)`` is HMAC-SHA256 under the deployment's secret: equal for all gateways that share it, different for
    any two tenants, and nothing that an engine learns from one salt tells another tenant's.

    Neither the secret nor a salt may be logged or shown.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise InvalidRequest.field("kv_salt", f"{len(secret)} bytes; give a secret of at least {SECRET_BYTES_MIN}")
        self._secret = secret

    def of(self, tenant: TenantId) -> bytes:
        """32 bytes. ``tenant`` is the one that is charged, whoever owns the adapter."""
        name = tenant.encode()
        body = len(_DOMAIN).to_bytes(8, "big") + _DOMAIN + len(name).to_bytes(8, "big") + name
        return hmac.digest(self._secret, body, hashlib.sha256)


__all__ = ["SECRET_BYTES_MIN", "TenantSalts"]
