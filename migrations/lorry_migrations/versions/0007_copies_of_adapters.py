"""which adapter's copy an engine has, and when it told so

Revision ID: 0007
Revises: 0006

THE RULE: the previous release runs against the schema that this migration leaves, and this release runs
against the one that it finds, for as long as a deployment rolls. So: add before use, stop using before
removal (one release between), no rename, no NOT NULL without a server default on a table with rows, no
rewrite of a large table, every CHECK and index named. SQLite needs op.batch_alter_table for changes,
which rebuilds the table: create its immutability triggers again.

No release wrote ``residency``, and the one before only deletes from it by replica: it is made anew, with the adapter
in its key. What it holds are observations; a downgrade drops them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("residency")
    op.add_column("replica_state", sa.Column("copies_seen_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "residency",
        sa.Column("replica", sa.String(length=63), nullable=False),
        sa.Column("adapter_id", sa.String(length=48), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("device", sa.Boolean(), nullable=False),
        sa.Column("host", sa.Boolean(), nullable=False),
        sa.Column("disk", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["replica"], ["replica_state.name"], name=op.f("fk_residency_replica_replica_state")),
        sa.PrimaryKeyConstraint("replica", "adapter_id", "sha256", name=op.f("pk_residency")),
    )
    op.create_index("ix_residency_adapter_id", "residency", ["adapter_id"], unique=False)


def downgrade() -> None:
    op.drop_table("residency")
    with op.batch_alter_table("replica_state") as batch:
        batch.drop_column("copies_seen_at")
    op.create_table(
        "residency",
        sa.Column("replica", sa.String(length=63), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("device", sa.Boolean(), nullable=False),
        sa.Column("host", sa.Boolean(), nullable=False),
        sa.Column("disk", sa.Boolean(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["replica"], ["replica_state.name"], name=op.f("fk_residency_replica_replica_state")),
        sa.PrimaryKeyConstraint("replica", "sha256", name=op.f("pk_residency")),
    )
