"""How much a tenant may use."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from lorry.registry.db.base import Model, utcnow
from lorry.registry.db.tables.types import ID
from lorry.registry.db.tables.weights import Adapter


class Quota(Model):
    """Limits of a tenant (``adapter_id`` null), or of its use of one adapter. A null limit limits nothing."""

    __tablename__ = "quota"
    __table_args__ = (
        CheckConstraint(
            "requests_per_minute > 0 AND concurrency > 0 AND queue_length >= 0 AND tokens_per_month >= 0 "
            "AND max_tokens_cap > 0",
            name="limits",
        ),
        Index(
            "uq_quota_tenant",
            "tenant_id",
            unique=True,
            sqlite_where=text("adapter_id IS NULL"),
            postgresql_where=text("adapter_id IS NULL"),
        ),
        UniqueConstraint("tenant_id", "adapter_id"),
    )
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    adapter_id: Mapped[str | None] = mapped_column(ForeignKey("adapter.id"), default=None)
    requests_per_minute: Mapped[int | None] = mapped_column(Integer, default=None)
    concurrency: Mapped[int | None] = mapped_column(Integer, default=None)
    queue_length: Mapped[int | None] = mapped_column(Integer, default=None)
    tokens_per_month: Mapped[int | None] = mapped_column(BigInteger, default=None)
    max_tokens_cap: Mapped[int | None] = mapped_column(Integer, default=None)
    revision: Mapped[int] = mapped_column(Integer, default=1)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_by: Mapped[str] = mapped_column(ID)
    adapter: Mapped[Adapter | None] = relationship(lazy="raise")


class QuotaPeriod(Model):
    """Tokens of a month (``2026-11``, UTC) that the ledger's requests spent, but for those of leases that live. Made
    when the first lease is taken, with what the ledger has of the month then."""

    __tablename__ = "quota_period"
    __table_args__ = (CheckConstraint("spent >= 0", name="spent"),)
    quota_id: Mapped[str] = mapped_column(ForeignKey("quota.id"), primary_key=True)
    period: Mapped[str] = mapped_column(String(7), primary_key=True)
    spent: Mapped[int] = mapped_column(BigInteger, default=0)


class QuotaLease(Model):
    """Tokens that one gateway may hand out by itself. ``spent``: those of the ledger's requests that stood on it, added
    in the transaction that appended their rows. One that has expired is folded into its period by whoever comes by,
    with what was spent and not with what was granted; rows that come later are charged to the period."""

    __tablename__ = "quota_lease"
    __table_args__ = (
        CheckConstraint("granted >= 0 AND spent >= 0", name="tokens"),
        Index(None, "quota_id", "period"),
    )
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    quota_id: Mapped[str] = mapped_column(ForeignKey("quota.id"))
    period: Mapped[str] = mapped_column(String(7))
    holder: Mapped[str] = mapped_column(String(64))
    granted: Mapped[int] = mapped_column(BigInteger)
    spent: Mapped[int] = mapped_column(BigInteger, default=0)
    expires_at: Mapped[datetime] = mapped_column()


__all__ = ["Quota", "QuotaLease", "QuotaPeriod"]
