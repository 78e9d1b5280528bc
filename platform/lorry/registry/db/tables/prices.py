"""What tokens cost."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import BigInteger, CheckConstraint, Date, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from lorry.registry.db.base import Model, utcnow
from lorry.registry.db.tables.types import ID


class Price(Model):
    """From a UTC day on until the next one. In millionths of the currency's unit for a million tokens: whole numbers,
    since SQLite has no decimals."""

    __tablename__ = "price"
    __table_args__ = (
        CheckConstraint(
            "prompt_micros >= 0 AND cached_micros >= 0 AND output_micros >= 0 AND prompt_micros <= 1000000000000 "
            "AND cached_micros <= 1000000000000 AND output_micros <= 1000000000000",
            name="micros",
        ),
        CheckConstraint("length(currency) = 3 AND currency = upper(currency)", name="currency"),
    )
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    effective_on: Mapped[date] = mapped_column(Date, primary_key=True)
    currency: Mapped[str] = mapped_column(String(3))
    prompt_micros: Mapped[int] = mapped_column(BigInteger)
    cached_micros: Mapped[int] = mapped_column(BigInteger)
    output_micros: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_by: Mapped[str] = mapped_column(ID)


__all__ = ["Price"]
