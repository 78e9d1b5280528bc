"""Who may use what, and which version of it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from lorry.registry.db.base import Model, utcnow
from lorry.registry.db.tables.identity import Tenant
from lorry.registry.db.tables.types import ID
from lorry.registry.db.tables.weights import Adapter, BaseModel

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
    """Which version of an adapter a tenant gets: under its bare name (DEFAULT), or under any (HARD). That it is of this
    adapter is a foreign key's matter."""

    __tablename__ = "pin"
    __table_args__ = (
        ForeignKeyConstraint(["adapter_id", "number"], ["adapter_version.adapter_id", "adapter_version.number"]),
        CheckConstraint("mode IN ('HARD', 'DEFAULT')", name="mode"),
    )
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    adapter_id: Mapped[str] = mapped_column(ForeignKey("adapter.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer)
    mode: Mapped[str] = mapped_column(String(8), default="HARD", server_default="HARD")
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_by: Mapped[str] = mapped_column(ID)
    adapter: Mapped[Adapter] = relationship(lazy="raise", viewonly=True)


__all__ = ["Grant", "Pin"]
