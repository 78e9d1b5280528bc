"""The one exception tree, and the one table from a case to its gRPC code and HTTP status.

::

    LorryError
    |-- Unauthenticated                     UNAUTHENTICATED      401
    |-- ModelNotFound                       NOT_FOUND            404   unknown, or never granted: equal words
    |-- ResourceNotFound                    NOT_FOUND            404   admin resources
    |-- PermissionDenied                    PERMISSION_DENIED    403
    |   |-- GrantRevoked
    |   |-- TenantSuspended
    |   `-- RoleTooLow
    |-- FailedPrecondition                  FAILED_PRECONDITION  409
    |   |-- PinMismatch
    |   |-- AdapterQuarantined
    |   |-- AdapterObjectMissing
    |   |-- AdapterDigestMismatch
    |   |-- AdapterLoadFailed
    |   `-- VersionNotReady
    |-- QuotaExceeded                       RESOURCE_EXHAUSTED   429   retry_after_s
    |-- TokenBudgetSpent                    RESOURCE_EXHAUSTED   429   no retry
    |-- TooManyLogins                       RESOURCE_EXHAUSTED   429   retry_after_s
    |-- Unavailable                         UNAVAILABLE          503   retry_after_s
    |   |-- Overloaded
    |   |-- QueueTimeout
    |   |-- TtftTimeout
    |   |-- Draining
    |   |-- EngineUnavailable
    |   |-- ObjectStoreUnavailable
    |   `-- AdapterCold
    |-- InvalidRequest                      INVALID_ARGUMENT     400   violations
    |   |-- AdapterRefused                                             carries the validation report
    |   `-- UnsupportedBase                                            refused at start, names the config field
    |-- AlreadyExists                       ALREADY_EXISTS       409
    |-- StaleEtag                           ABORTED              409
    |-- DeadlineExceeded                    DEADLINE_EXCEEDED    504
    |-- RequestCancelled                    CANCELLED            499
    |-- NotServedYet                        UNIMPLEMENTED        501   names the field
    `-- InternalError                       INTERNAL             502
        |-- ProvenanceMismatch
        |-- NonFiniteLogits
        |-- SlotIntegrity
        `-- EmptyStream

Every class has a stable ``reason`` (UPPER_SNAKE). ``str(error)`` is for people: it names the field, the
value and the remedy. ``metadata`` is for machines. Nothing here imports grpc: ``lorry.api.status`` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class FieldViolation:
    """One field of a request that is wrong: its path in the request, and what to do about it."""

    field: str
    description: str


class LorryError(Exception):
    """Root of the tree. Raise a leaf."""

    grpc_code: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 502
    reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s


class Unauthenticated(LorryError):
    grpc_code, http_status, reason = "UNAUTHENTICATED", 401, "UNAUTHENTICATED"


class ModelNotFound(LorryError):
    grpc_code, http_status, reason = "NOT_FOUND", 404, "MODEL_NOT_FOUND"


class ResourceNotFound(LorryError):
    grpc_code, http_status, reason = "NOT_FOUND", 404, "RESOURCE_NOT_FOUND"


class PermissionDenied(LorryError):
    grpc_code, http_status, reason = "PERMISSION_DENIED", 403, "PERMISSION_DENIED"


class GrantRevoked(PermissionDenied):
    reason = "GRANT_REVOKED"


class TenantSuspended(PermissionDenied):
    reason = "TENANT_SUSPENDED"


class RoleTooLow(PermissionDenied):
    reason = "ROLE_TOO_LOW"


class FailedPrecondition(LorryError):
    grpc_code, http_status, reason = "FAILED_PRECONDITION", 409, "FAILED_PRECONDITION"


class PinMismatch(FailedPrecondition):
    reason = "PIN_MISMATCH"


class AdapterQuarantined(FailedPrecondition):
    reason = "ADAPTER_QUARANTINED"


class AdapterObjectMissing(FailedPrecondition):
    reason = "ADAPTER_OBJECT_MISSING"


class AdapterDigestMismatch(FailedPrecondition):
    reason = "ADAPTER_DIGEST_MISMATCH"


class AdapterLoadFailed(FailedPrecondition):
    reason = "ADAPTER_LOAD_FAILED"


class VersionNotReady(FailedPrecondition):
    reason = "VERSION_NOT_READY"


class QuotaExceeded(LorryError):
    grpc_code, http_status, reason = "RESOURCE_EXHAUSTED", 429, "QUOTA_EXCEEDED"


class TokenBudgetSpent(LorryError):
    grpc_code, http_status, reason = "RESOURCE_EXHAUSTED", 429, "TOKEN_BUDGET_SPENT"


class TooManyLogins(LorryError):
    grpc_code, http_status, reason = "RESOURCE_EXHAUSTED", 429, "TOO_MANY_LOGINS"


class Unavailable(LorryError):
    grpc_code, http_status, reason = "UNAVAILABLE", 503, "UNAVAILABLE"


class Overloaded(Unavailable):
    reason = "OVERLOADED"


class QueueTimeout(Unavailable):
    reason = "QUEUE_TIMEOUT"


class TtftTimeout(Unavailable):
    reason = "TTFT_TIMEOUT"


class Draining(Unavailable):
    reason = "DRAINING"


class EngineUnavailable(Unavailable):
    reason = "ENGINE_UNAVAILABLE"


class ObjectStoreUnavailable(Unavailable):
    reason = "OBJECT_STORE_UNAVAILABLE"


class AdapterCold(Unavailable):
    reason = "ADAPTER_COLD"


class InvalidRequest(LorryError):
    grpc_code, http_status, reason = "INVALID_ARGUMENT", 400, "INVALID_REQUEST"

    @classmethod
    def field(cls, field: str, description: str) -> InvalidRequest:
        """The common case: one field is wrong; the message repeats its name and the remedy."""
        return cls(f"{field}: {description}", violations=[FieldViolation(field, description)])


class AdapterRefused(InvalidRequest):
    reason = "ADAPTER_REFUSED"


class UnsupportedBase(InvalidRequest):
    reason = "UNSUPPORTED_BASE"


class AlreadyExists(LorryError):
    grpc_code, http_status, reason = "ALREADY_EXISTS", 409, "ALREADY_EXISTS"


class StaleEtag(LorryError):
    grpc_code, http_status, reason = "ABORTED", 409, "STALE_ETAG"


class DeadlineExceeded(LorryError):
    grpc_code, http_status, reason = "DEADLINE_EXCEEDED", 504, "DEADLINE_EXCEEDED"


class RequestCancelled(LorryError):
    grpc_code, http_status, reason = "CANCELLED", 499, "CANCELLED"


class NotServedYet(LorryError):
    grpc_code, http_status, reason = "UNIMPLEMENTED", 501, "NOT_SERVED_YET"


class InternalError(LorryError):
    grpc_code, http_status, reason = "INTERNAL", 502, "INTERNAL"


class ProvenanceMismatch(InternalError):
    reason = "PROVENANCE_MISMATCH"


class NonFiniteLogits(InternalError):
    reason = "NON_FINITE_LOGITS"


class SlotIntegrity(InternalError):
    """The slot table and the bytes or generation behind it disagree."""

    reason = "SLOT_INTEGRITY"


class EmptyStream(InternalError):
    reason = "EMPTY_STREAM"


def _leaves(root: type[LorryError]) -> list[type[LorryError]]:
    found = [root]
    for child in root.__subclasses__():
        found.extend(_leaves(child))
    return found


def by_reason() -> dict[str, type[LorryError]]:
    """Every class of the tree by its reason; the first class that declares a reason owns it."""
    table: dict[str, type[LorryError]] = {}
    for cls in _leaves(LorryError):
        table.setdefault(cls.reason, cls)
    table["INTERNAL"] = InternalError
    return table


__all__ = [
    "AdapterCold",
    "AdapterDigestMismatch",
    "AdapterLoadFailed",
    "AdapterObjectMissing",
    "AdapterQuarantined",
    "AdapterRefused",
    "AlreadyExists",
    "DeadlineExceeded",
    "Draining",
    "EmptyStream",
    "EngineUnavailable",
    "FailedPrecondition",
    "FieldViolation",
    "GrantRevoked",
    "InternalError",
    "InvalidRequest",
    "LorryError",
    "ModelNotFound",
    "NonFiniteLogits",
    "NotServedYet",
    "ObjectStoreUnavailable",
    "Overloaded",
    "PermissionDenied",
    "PinMismatch",
    "ProvenanceMismatch",
    "QueueTimeout",
    "QuotaExceeded",
    "RequestCancelled",
    "ResourceNotFound",
    "RoleTooLow",
    "SlotIntegrity",
    "StaleEtag",
    "TenantSuspended",
    "TokenBudgetSpent",
    "TooManyLogins",
    "TtftTimeout",
    "Unauthenticated",
    "Unavailable",
    "UnsupportedBase",
    "VersionNotReady",
    "by_reason",
]
