"""rollouts are read: an index of an adapter's, newest first, and the canary's part when each ended

Revision ID: 0006
Revises: 0005

THE RULE: the previous release runs against the schema that this migration leaves, and this release runs
against the one that it finds, for as long as a deployment rolls. So: add before use, stop using before
removal (one release between), no rename, no NOT NULL without a server default on a table with rows, no
rewrite of a large table, every CHECK and index named. SQLite needs op.batch_alter_table for changes,
which rebuilds the table: create its immutability triggers again.

Rollouts are few (one for each canary that was ever started), so the index is made in a moment. Of those that
ended before, revisions say the part: the newest of that canary that was made before the end.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

INDEX = "ix_rollout_adapter_id_id"
ENDED_BEFORE = """
UPDATE rollout SET canary_permille = (
    SELECT r.canary_permille FROM alias_revision r
    WHERE r.adapter_id = rollout.adapter_id AND r.name = rollout.name AND r.number = rollout.number
    AND r.canary_number = rollout.canary_number AND r.created_at <= rollout.ended_at
    ORDER BY r.revision DESC LIMIT 1
) WHERE ended_at IS NOT NULL
"""


def upgrade() -> None:
    op.add_column("rollout", sa.Column("canary_permille", sa.Integer(), nullable=True))
    op.execute(ENDED_BEFORE)
    op.create_index(INDEX, "rollout", ["adapter_id", "id"], unique=False)


def downgrade() -> None:
    op.drop_index(INDEX, table_name="rollout")
    op.drop_column("rollout", "canary_permille")
