"""an index of sums by model: when it was used last, and what of one model adds up to

Revision ID: 0005
Revises: 0004

THE RULE: the previous release runs against the schema that this migration leaves, and this release runs
against the one that it finds, for as long as a deployment rolls. So: add before use, stop using before
removal (one release between), no rename, no NOT NULL without a server default on a table with rows, no
rewrite of a large table, every CHECK and index named. SQLite needs op.batch_alter_table for changes,
which rebuilds the table: create its immutability triggers again.

The sums are few beside the ledger (a row for each hour, model, version, key and outcome that had requests), so the
index is made in a moment; the ledger's writers wait for it.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

INDEX = "ix_usage_rollup_tenant_id_model_hour"


def upgrade() -> None:
    op.create_index(INDEX, "usage_rollup", ["tenant_id", "model", "hour"], unique=False)


def downgrade() -> None:
    op.drop_index(INDEX, table_name="usage_rollup")
