"""Tenants, their principals and keys."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Integer, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from lorry.registry.db.base import Model, utcnow
from lorry.registry.db.tables.types import ID, NAME, SHA256


class Tenant(Model):
    __tablename__ = "tenant"
    __table_args__ = (CheckConstraint("weight >= 1 AND weight <= 100", name="weight"),)
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(NAME, unique=True)
    display_name: Mapped[str] = mapped_column(String(200), default="")
    suspended: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    revision: Mapped[int] = mapped_column(Integer, default=1, server_default="1")
    import_prefixes: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True), default=None)
    weight: Mapped[int] = mapped_column(Integer, default=1, server_default="1")


class Principal(Model):
    __tablename__ = "principal"
    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        CheckConstraint("role IN ('platform_admin', 'owner', 'operator', 'member', 'viewer')", name="role"),
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
    use: Mapped[KeyUse | None] = relationship(lazy="raise", viewonly=True)


class KeyUse(Model):
    """When a key was used last, as far as the ledger knows."""

    __tablename__ = "key_use"
    key_id: Mapped[str] = mapped_column(ForeignKey("api_key.id"), primary_key=True)
    used_at: Mapped[datetime] = mapped_column()


__all__ = ["ApiKey", "KeyUse", "Principal", "Tenant"]
