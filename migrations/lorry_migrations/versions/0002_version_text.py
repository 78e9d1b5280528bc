"""what validation found of a version's own text side

Revision ID: 0002
Revises: 0001

THE RULE: the previous release runs against the schema that this migration leaves, and this release runs
against the one that it finds, for as long as a deployment rolls. So: add before use, stop using before
removal (one release between), no rename, no NOT NULL without a server default on a table with rows, no
rewrite of a large table, every CHECK and index named. SQLite needs op.batch_alter_table for changes,
which rebuilds the table: create its immutability triggers again.

Columns that may be null are added in place on both databases, so the triggers of 0001 stay; what they do not name yet
has one of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = ("vocabulary", "tokenizer_sha256", "tokenizer_vocabulary", "end_ids")
TRIGGER = "tr_adapter_version_update_text"


def upgrade() -> None:
    op.add_column("adapter_version", sa.Column("vocabulary", sa.Integer(), nullable=True))
    op.add_column("adapter_version", sa.Column("tokenizer_sha256", sa.String(length=64), nullable=True))
    op.add_column("adapter_version", sa.Column("tokenizer_vocabulary", sa.Integer(), nullable=True))
    op.add_column("adapter_version", sa.Column("end_ids", sa.JSON(), nullable=True))
    if op.get_context().dialect.name == "postgresql":
        changed = " OR ".join(f"NEW.{column}::text IS DISTINCT FROM OLD.{column}::text" for column in COLUMNS)
        op.execute(
            f"CREATE TRIGGER {TRIGGER} BEFORE UPDATE ON adapter_version FOR EACH ROW WHEN ({changed}) "
            "EXECUTE FUNCTION lorry_immutable()"
        )
    else:
        changed = " OR ".join(f"NEW.{column} IS NOT OLD.{column}" for column in COLUMNS)
        op.execute(
            f"CREATE TRIGGER {TRIGGER} BEFORE UPDATE ON adapter_version WHEN {changed} "
            "BEGIN SELECT RAISE(ABORT, 'adapter_version is immutable'); END"
        )


def downgrade() -> None:
    on_table = " ON adapter_version" if op.get_context().dialect.name == "postgresql" else ""
    op.execute(f"DROP TRIGGER {TRIGGER}{on_table}")
    for column in reversed(COLUMNS):
        op.drop_column("adapter_version", column)
