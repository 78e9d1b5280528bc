"""Bases, adapters and their versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from lorry.registry.db.base import Model, utcnow
from lorry.registry.db.tables.identity import Tenant
from lorry.registry.db.tables.types import ID, NAME, SHA256


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
    """``deleted_at``: it is hidden from everybody and may be undeleted; ``purge_at``: not after that; ``purged_at``:
    its bytes are gone, as ``purge_receipt`` says. The name stays taken."""

    __tablename__ = "adapter"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), CheckConstraint("last_version >= 0", name="last_version"))
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str] = mapped_column(NAME)
    display_name: Mapped[str] = mapped_column(String(200), default="")
    last_version: Mapped[int] = mapped_column(Integer, default=0)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    revision: Mapped[int] = mapped_column(Integer, default=1, server_default="1")
    deleted_at: Mapped[datetime | None] = mapped_column(default=None)
    purge_at: Mapped[datetime | None] = mapped_column(default=None)
    purged_at: Mapped[datetime | None] = mapped_column(default=None)
    purge_receipt: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), default=None)
    tenant: Mapped[Tenant] = relationship(lazy="raise")
    versions: Mapped[list[AdapterVersion]] = relationship(lazy="raise", back_populates="adapter")


class AdapterVersion(Model):
    """Only ``state``, ``state_reason``, ``deprecated_at`` and ``purged_at`` may change; triggers refuse the rest (see
    the migrations). A READY version with ``deprecated_at`` is what the API calls DEPRECATED, any with ``purged_at``
    PURGED; the latter's ``state`` is not READY.

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
    source_uri: Mapped[str | None] = mapped_column(String(1024), default=None)
    deprecated_at: Mapped[datetime | None] = mapped_column(default=None)
    purged_at: Mapped[datetime | None] = mapped_column(default=None)
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


__all__ = ["Adapter", "AdapterFileRow", "AdapterVersion", "BaseModel"]
