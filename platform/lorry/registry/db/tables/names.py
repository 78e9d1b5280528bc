"""Aliases and what they pointed at."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, Integer, String, false, text
from sqlalchemy.orm import Mapped, mapped_column

from lorry.registry.db.base import Model, utcnow
from lorry.registry.db.tables.types import ID, NAME


class Alias(Model):
    """A name's place; what it points at is its newest revision."""

    __tablename__ = "alias"
    adapter_id: Mapped[str] = mapped_column(ForeignKey("adapter.id"), primary_key=True)
    name: Mapped[str] = mapped_column(NAME, primary_key=True)
    revision: Mapped[int] = mapped_column(Integer)


class AliasRevision(Model):
    """One immutable row per revision: ``number`` gets what the canary does not. Keys hold both to versions of the
    alias's own adapter. A ``deleted`` one resolves to nothing and repeats the number before it.

    ``origin`` is the revision that set ``number``, where this one did not: it changed a canary or went back. Null: this
    one did. What the alias pointed at before is the row before its origin."""

    __tablename__ = "alias_revision"
    __table_args__ = (
        ForeignKeyConstraint(["adapter_id", "name"], ["alias.adapter_id", "alias.name"]),
        ForeignKeyConstraint(["adapter_id", "number"], ["adapter_version.adapter_id", "adapter_version.number"]),
        ForeignKeyConstraint(["adapter_id", "canary_number"], ["adapter_version.adapter_id", "adapter_version.number"]),
        ForeignKeyConstraint(
            ["adapter_id", "name", "origin"],
            ["alias_revision.adapter_id", "alias_revision.name", "alias_revision.revision"],
        ),
        CheckConstraint("revision > 0", name="revision_positive"),
        CheckConstraint("origin < revision", name="origin_before"),
        CheckConstraint(
            "(canary_number IS NULL AND canary_permille = 0) OR (canary_number IS NOT NULL AND canary_number <> number "
            "AND canary_permille > 0 AND canary_permille < 1000)",
            name="canary",
        ),
    )
    adapter_id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(NAME, primary_key=True)
    revision: Mapped[int] = mapped_column(Integer, primary_key=True)
    number: Mapped[int] = mapped_column(Integer)
    canary_number: Mapped[int | None] = mapped_column(Integer, default=None)
    canary_permille: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    deleted: Mapped[bool] = mapped_column(default=False, server_default=false())
    origin: Mapped[int | None] = mapped_column(Integer, default=None)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_by: Mapped[str] = mapped_column(ID)


class Rollout(Model):
    """A canary from its start to its end; at most one of an alias runs. ``canary_permille`` is its part when it ended:
    null while it runs, when the alias says it, and where the release before 0006 ended it."""

    __tablename__ = "rollout"
    __table_args__ = (
        ForeignKeyConstraint(["adapter_id", "name"], ["alias.adapter_id", "alias.name"]),
        CheckConstraint("state IN ('RUNNING', 'PROMOTED', 'ROLLED_BACK', 'REPLACED')", name="state"),
        CheckConstraint("(ended_at IS NULL) = (state = 'RUNNING')", name="ended"),
        Index(
            "uq_rollout_running",
            "adapter_id",
            "name",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
        Index("ix_rollout_adapter_id_id", "adapter_id", "id"),
    )
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    adapter_id: Mapped[str] = mapped_column(ID)
    name: Mapped[str] = mapped_column(NAME)
    number: Mapped[int] = mapped_column(Integer)
    canary_number: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(16))
    started_at: Mapped[datetime] = mapped_column(default=utcnow)
    ended_at: Mapped[datetime | None] = mapped_column(default=None)
    created_by: Mapped[str] = mapped_column(ID)
    canary_permille: Mapped[int | None] = mapped_column(Integer, default=None)


__all__ = ["Alias", "AliasRevision", "Rollout"]
