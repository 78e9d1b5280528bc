"""an index of rollouts by adapter: canaries of one adapter's aliases, newest first

Revision ID: 0006
Revises: 0005

THE RULE: the previous release runs against the schema that this migration leaves, and this release runs
against the one that it finds, for as long as a deployment rolls. So: add before use, stop using before
removal (one release between), no rename, no NOT NULL without a server default on a table with rows, no
rewrite of a large table, every CHECK and index named. SQLite needs op.batch_alter_table for changes,
which rebuilds the table: create its immutability triggers again.

Rollouts are few (one for each canary that was ever started), so the index is made in a moment.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

INDEX = "ix_rollout_adapter_id_id"


def upgrade() -> None:
    op.create_index(INDEX, "rollout", ["adapter_id", "id"], unique=False)


def downgrade() -> None:
    op.drop_index(INDEX, table_name="rollout")
