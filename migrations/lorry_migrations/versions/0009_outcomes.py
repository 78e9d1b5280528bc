"""counts of requests that have no row in the ledger, by hour and reason

Revision ID: 0009
Revises: 0008

THE RULE: the previous release runs against the schema that this migration leaves, and this release runs
against the one that it finds, for as long as a deployment rolls. So: add before use, stop using before
removal (one release between), no rename, no NOT NULL without a server default on a table with rows, no
rewrite of a large table, every CHECK and index named. SQLite needs op.batch_alter_table for changes,
which rebuilds the table: create its immutability triggers again.

Gateways of the release before count nothing here: what they refuse while a deployment rolls is in no sum.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "outcome_rollup",
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("adapter_id", sa.String(length=48), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=False),
        sa.Column("writer", sa.String(length=48), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("requests > 0", name=op.f("ck_outcome_rollup_requests")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_outcome_rollup_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("tenant_id", "hour", "adapter_id", "reason", "writer", name=op.f("pk_outcome_rollup")),
    )


def downgrade() -> None:
    op.drop_table("outcome_rollup")
