"""What happened: changes, usage, audit; and what is derived from them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Float, ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from lorry.registry.db.base import Model, utcnow
from lorry.registry.db.tables.types import ID, NAME, SHA256


class RegistryEpoch(Model):
    __tablename__ = "registry_epoch"
    __table_args__ = (CheckConstraint("id = 1", name="single_row"),)
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    epoch: Mapped[int] = mapped_column(BigInteger)


class ChangeLog(Model):
    """One epoch per admin transaction, without gaps; ``ordinal`` counts the changes within it."""

    __tablename__ = "change_log"
    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    ordinal: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(20))
    subject: Mapped[str] = mapped_column(String(120))
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


class UsageEvent(Model):
    """Append-only; writing the same ``ledger_id`` again changes nothing."""

    __tablename__ = "usage_event"
    __table_args__ = (
        Index(None, "tenant_id", "ended_at"),
        CheckConstraint("prompt_tokens >= 0 AND output_tokens >= 0 AND cached_prompt_tokens >= 0", name="tokens"),
    )
    ledger_id: Mapped[str] = mapped_column(ID, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    key_id: Mapped[str] = mapped_column(ID)
    request_id: Mapped[str] = mapped_column(String(128))
    adapter_sha256: Mapped[str] = mapped_column(SHA256, default="")
    base_sha256: Mapped[str] = mapped_column(SHA256)
    adapter: Mapped[str] = mapped_column(String(200), default="")
    version: Mapped[int] = mapped_column(Integer, default=0)
    prompt_tokens: Mapped[int] = mapped_column(Integer)
    output_tokens: Mapped[int] = mapped_column(Integer)
    cached_prompt_tokens: Mapped[int] = mapped_column(Integer)
    outcome: Mapped[str] = mapped_column(String(40))
    started_at: Mapped[datetime] = mapped_column()
    ended_at: Mapped[datetime] = mapped_column()
    principal: Mapped[str | None] = mapped_column(NAME, default=None)
    alias: Mapped[str | None] = mapped_column(NAME, default=None)
    canary: Mapped[bool | None] = mapped_column(default=None)
    labels: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True), default=None)
    replica: Mapped[str | None] = mapped_column(String(64), default=None)
    queue_s: Mapped[float | None] = mapped_column(Float, default=None)
    ttft_s: Mapped[float | None] = mapped_column(Float, default=None)
    decode_s: Mapped[float | None] = mapped_column(Float, default=None)


class UsageRollup(Model):
    """Sums of usage events by hour (its beginning, UTC). Histograms are lists of counts over the bounds of
    ``lorry.registry.usage.buckets``, one more than those."""

    __tablename__ = "usage_rollup"
    __table_args__ = (Index(None, "tenant_id", "model", "hour"),)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(String(200), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    key_id: Mapped[str] = mapped_column(ID, primary_key=True)
    outcome: Mapped[str] = mapped_column(String(40), primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    ttft: Mapped[list[int]] = mapped_column(JSON)
    inter_token: Mapped[list[int]] = mapped_column(JSON)
    duration: Mapped[list[int]] = mapped_column(JSON)


class OutcomeRollup(Model):
    """Requests that no usage event is of, by hour (its beginning, UTC) and reason. ``writer``: the gateway's process
    that counted them; its count grows. ``adapter_id`` "": a base, or not known."""

    __tablename__ = "outcome_rollup"
    __table_args__ = (CheckConstraint("requests > 0", name="requests"),)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    adapter_id: Mapped[str] = mapped_column(ID, primary_key=True)
    reason: Mapped[str] = mapped_column(String(40), primary_key=True)
    writer: Mapped[str] = mapped_column(ID, primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)


class AuditEvent(Model):
    """Who did what; appended in the same transaction as the change. ``sequence`` counts a tenant's events from 1, and
    ``hash`` covers the event and the hash before it; both are null only in rows of releases before 0003."""

    __tablename__ = "audit_event"
    __table_args__ = (
        Index(None, "tenant_id", "created_at"),
        Index("uq_audit_event_sequence", "tenant_id", "sequence", unique=True),
    )
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    actor_key_id: Mapped[str] = mapped_column(ID)
    action: Mapped[str] = mapped_column(String(60))
    subject: Mapped[str] = mapped_column(String(256))
    details: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    sequence: Mapped[int | None] = mapped_column(BigInteger, default=None)
    hash: Mapped[str | None] = mapped_column(SHA256, default=None)


class AuditHead(Model):
    """The end of a tenant's chain; its lock orders the chain."""

    __tablename__ = "audit_head"
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    sequence: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[str] = mapped_column(SHA256)


class Idempotency(Model):
    """A request id that was answered: the same request is answered by the same resource again."""

    __tablename__ = "idempotency"
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    method: Mapped[str] = mapped_column(String(60), primary_key=True)
    request_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(SHA256)
    subject: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


__all__ = [
    "AuditEvent",
    "AuditHead",
    "ChangeLog",
    "Idempotency",
    "OutcomeRollup",
    "RegistryEpoch",
    "UsageEvent",
    "UsageRollup",
]
