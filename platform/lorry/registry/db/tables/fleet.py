"""What was seen of gateways and engines."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from lorry.registry.db.base import Model
from lorry.registry.db.tables.types import ID, NAME, SHA256


class ReplicaState(Model):
    """A gateway or an engine as it was seen last. ``drain``: an operator wants it to take nothing new.
    ``copies_seen_at``: when an engine told last what ``Residency`` has of it."""

    __tablename__ = "replica_state"
    __table_args__ = (
        CheckConstraint("kind IN ('gateway', 'engine')", name="kind"),
        CheckConstraint("state IN ('SERVING', 'DRAINING', 'DOWN')", name="state"),
    )
    name: Mapped[str] = mapped_column(NAME, primary_key=True)
    kind: Mapped[str] = mapped_column(String(8))
    state: Mapped[str] = mapped_column(String(8))
    address: Mapped[str] = mapped_column(String(200), default="")
    build: Mapped[str] = mapped_column(String(80), default="")
    base_sha256: Mapped[str] = mapped_column(String(64), default="")
    registry_epoch: Mapped[int] = mapped_column(BigInteger, default=0)
    running: Mapped[int] = mapped_column(Integer, default=0)
    drain: Mapped[bool] = mapped_column(default=False)
    seen_at: Mapped[datetime] = mapped_column()
    copies_seen_at: Mapped[datetime | None] = mapped_column(default=None)


class Residency(Model):
    """Where an engine said an adapter's copy of a version's bytes was. ``adapter_id`` is what the engine knows, and may
    be of no adapter here."""

    __tablename__ = "residency"
    __table_args__ = (Index(None, "adapter_id"),)
    replica: Mapped[str] = mapped_column(ForeignKey("replica_state.name"), primary_key=True)
    adapter_id: Mapped[str] = mapped_column(ID, primary_key=True)
    sha256: Mapped[str] = mapped_column(SHA256, primary_key=True)
    device: Mapped[bool] = mapped_column()
    host: Mapped[bool] = mapped_column()
    disk: Mapped[bool] = mapped_column()


__all__ = ["ReplicaState", "Residency"]
