"""Every table of the registry.

| kind | tables | may change |
|---|---|---|
| identity | tenant, principal, api_key | suspended, revoked_at |
| weights | base_model, adapter, adapter_version, adapter_file | a version's state alone |
| names | alias, alias_revision | alias.revision; revisions are immutable |
| rights | grant, pin | grant.revoked_at; a pin is replaced or deleted |
| logs | change_log, usage_event, audit_event, idempotency | nothing |
| counter | registry_epoch | one row; its lock orders the change log |
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from lorry.registry.db.base import Model, utcnow

ID = String(48)
NAME = String(63)
SHA256 = String(64)


class Tenant(Model):
    __tablename__ = "tenant"
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(NAME, unique=True)
    display_name: Mapped[str] = mapped_column(String(200), default="")
    suspended: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


class Principal(Model):
    __tablename__ = "principal"
    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        CheckConstraint("role IN ('platform_admin', 'owner', 'member')", name="role"),
    )
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str] = mapped_column(NAME)
    role: Mapped[str] = mapped_column(String(20))
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


class ApiKey(Model):
    __tablename__ = "api_key"
    __table_args__ = (CheckConstraint("length(mac) = 64", name="mac_length"),)
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), index=True)
    principal_id: Mapped[str] = mapped_column(ForeignKey("principal.id"), index=True)
    mac: Mapped[str] = mapped_column(SHA256)
    pepper_id: Mapped[str] = mapped_column(String(16))
    last_four: Mapped[str] = mapped_column(String(4))
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    expires_at: Mapped[datetime | None] = mapped_column(default=None)
    revoked_at: Mapped[datetime | None] = mapped_column(default=None)
    principal: Mapped[Principal] = relationship(lazy="raise")


class BaseModel(Model):
    __tablename__ = "base_model"
    __table_args__ = (
        CheckConstraint("length(base_sha256) = 64 AND length(tokenizer_sha256) = 64", name="digest_length"),
        CheckConstraint("context_tokens > 0", name="context_positive"),
    )
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(NAME, unique=True)
    base_sha256: Mapped[str] = mapped_column(SHA256)
    tokenizer_sha256: Mapped[str] = mapped_column(SHA256)
    context_tokens: Mapped[int] = mapped_column(Integer)
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


class Adapter(Model):
    __tablename__ = "adapter"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), CheckConstraint("last_version >= 0", name="last_version"))
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str] = mapped_column(NAME)
    display_name: Mapped[str] = mapped_column(String(200), default="")
    last_version: Mapped[int] = mapped_column(Integer, default=0)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    tenant: Mapped[Tenant] = relationship(lazy="raise")
    versions: Mapped[list[AdapterVersion]] = relationship(lazy="raise", back_populates="adapter")


class AdapterVersion(Model):
    """Only ``state`` and ``state_reason`` may change; triggers refuse the rest (see the migrations).

    ``vocabulary``: rows of its logits, null where they are the base's. The three after it are its own text side
    (``lorry.adapters.plan.TextPlan``), all null where it is the base's."""

    __tablename__ = "adapter_version"
    __table_args__ = (
        UniqueConstraint("adapter_id", "number"),
        CheckConstraint("number > 0", name="number_positive"),
        CheckConstraint("state IN ('READY', 'REJECTED', 'QUARANTINED')", name="state"),
        CheckConstraint("length(sha256) = 64", name="digest_length"),
    )
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    adapter_id: Mapped[str] = mapped_column(ForeignKey("adapter.id"))
    number: Mapped[int] = mapped_column(Integer)
    base_model_id: Mapped[str] = mapped_column(ForeignKey("base_model.id"), index=True)
    sha256: Mapped[str] = mapped_column(SHA256, index=True)
    prefix: Mapped[str] = mapped_column(String(200))
    rank: Mapped[int] = mapped_column(Integer)
    vocabulary: Mapped[int | None] = mapped_column(Integer, default=None)
    tokenizer_sha256: Mapped[str | None] = mapped_column(SHA256, default=None)
    tokenizer_vocabulary: Mapped[int | None] = mapped_column(Integer, default=None)
    end_ids: Mapped[list[int] | None] = mapped_column(JSON(none_as_null=True), default=None)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    report: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_by: Mapped[str] = mapped_column(ID)
    state: Mapped[str] = mapped_column(String(16))
    state_reason: Mapped[str] = mapped_column(Text, default="")
    adapter: Mapped[Adapter] = relationship(lazy="raise", back_populates="versions")
    files: Mapped[list[AdapterFileRow]] = relationship(lazy="raise", order_by="AdapterFileRow.path")
    base: Mapped[BaseModel] = relationship(lazy="raise")


class AdapterFileRow(Model):
    __tablename__ = "adapter_file"
    __table_args__ = (
        CheckConstraint("size_bytes >= 0", name="size"),
        CheckConstraint("length(sha256) = 64", name="digest_length"),
    )
    version_id: Mapped[str] = mapped_column(ForeignKey("adapter_version.id"), primary_key=True)
    path: Mapped[str] = mapped_column(String(128), primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(SHA256)


class Alias(Model):
    """A name's place; what it points at is its newest revision."""

    __tablename__ = "alias"
    adapter_id: Mapped[str] = mapped_column(ForeignKey("adapter.id"), primary_key=True)
    name: Mapped[str] = mapped_column(NAME, primary_key=True)
    revision: Mapped[int] = mapped_column(Integer)


class AliasRevision(Model):
    """One immutable row per revision; a single target each, today. Its keys hold the target to a version
    of the alias's own adapter."""

    __tablename__ = "alias_revision"
    __table_args__ = (
        ForeignKeyConstraint(["adapter_id", "name"], ["alias.adapter_id", "alias.name"]),
        ForeignKeyConstraint(["adapter_id", "number"], ["adapter_version.adapter_id", "adapter_version.number"]),
        CheckConstraint("revision > 0", name="revision_positive"),
    )
    adapter_id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(NAME, primary_key=True)
    revision: Mapped[int] = mapped_column(Integer, primary_key=True)
    number: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_by: Mapped[str] = mapped_column(ID)


_ONE_RESOURCE = "(adapter_id IS NULL) <> (base_model_id IS NULL)"


class Grant(Model):
    """A right of a tenant to generate with an adapter or a base. Revoked rows stay."""

    __tablename__ = "grant"
    __table_args__ = (
        CheckConstraint(_ONE_RESOURCE, name="one_resource"),
        Index(None, "tenant_id", "adapter_id", "base_model_id"),
        Index(
            "uq_grant_active_adapter",
            "tenant_id",
            "adapter_id",
            unique=True,
            sqlite_where=text("revoked_at IS NULL AND adapter_id IS NOT NULL"),
            postgresql_where=text("revoked_at IS NULL AND adapter_id IS NOT NULL"),
        ),
        Index(
            "uq_grant_active_base",
            "tenant_id",
            "base_model_id",
            unique=True,
            sqlite_where=text("revoked_at IS NULL AND base_model_id IS NOT NULL"),
            postgresql_where=text("revoked_at IS NULL AND base_model_id IS NOT NULL"),
        ),
    )
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    adapter_id: Mapped[str | None] = mapped_column(ForeignKey("adapter.id"), default=None)
    base_model_id: Mapped[str | None] = mapped_column(ForeignKey("base_model.id"), default=None)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_by: Mapped[str] = mapped_column(ID)
    revoked_at: Mapped[datetime | None] = mapped_column(default=None)
    tenant: Mapped[Tenant] = relationship(lazy="raise")
    adapter: Mapped[Adapter | None] = relationship(lazy="raise")
    base: Mapped[BaseModel | None] = relationship(lazy="raise")


class Pin(Model):
    """Holds a tenant to one version of an adapter; that it is of this adapter is a foreign key's matter."""

    __tablename__ = "pin"
    __table_args__ = (
        ForeignKeyConstraint(["adapter_id", "number"], ["adapter_version.adapter_id", "adapter_version.number"]),
    )
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    adapter_id: Mapped[str] = mapped_column(ForeignKey("adapter.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_by: Mapped[str] = mapped_column(ID)


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


class AuditEvent(Model):
    """Who did what; appended in the same transaction as the change."""

    __tablename__ = "audit_event"
    __table_args__ = (Index(None, "tenant_id", "created_at"),)
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    actor_key_id: Mapped[str] = mapped_column(ID)
    action: Mapped[str] = mapped_column(String(60))
    subject: Mapped[str] = mapped_column(String(200))
    details: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


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
    "Adapter",
    "AdapterFileRow",
    "AdapterVersion",
    "Alias",
    "AliasRevision",
    "ApiKey",
    "AuditEvent",
    "BaseModel",
    "ChangeLog",
    "Grant",
    "Idempotency",
    "Pin",
    "Principal",
    "RegistryEpoch",
    "Tenant",
    "UsageEvent",
]
