"""Small parts of requests."""

from __future__ import annotations

import uuid
from datetime import datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from lorry.errors import InvalidRequest


def tenant_name(tenant: str) -> str:
    """``acme`` and ``tenants/acme`` are the same tenant."""
    return tenant if tenant.startswith("tenants/") else f"tenants/{tenant}"


def new_request_id() -> str:
    """One for each call: its tries are one request to the server."""
    return uuid.uuid4().hex


def timestamp(field: str, when: datetime | None) -> Timestamp | None:
    """Raises InvalidRequest for a time without a zone, which could mean any of 38."""
    if when is None:
        return None
    if when.tzinfo is None:
        raise InvalidRequest.field(field, f"{when.isoformat()} has no time zone; give one, as datetime.timezone.utc")
    made = Timestamp()
    made.FromDatetime(when)
    return made


def duration(seconds: float) -> Duration:
    made = Duration()
    made.FromMilliseconds(round(seconds * 1000))
    return made


__all__ = ["duration", "new_request_id", "tenant_name", "timestamp"]
