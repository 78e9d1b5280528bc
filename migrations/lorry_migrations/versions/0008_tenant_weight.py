"""the weight of a tenant's turns

Revision ID: 0008
Revises: 0007

THE RULE: the previous release runs against the schema that this migration leaves, and this release runs
against the one that it finds, for as long as a deployment rolls. So: add before use, stop using before
removal (one release between), no rename, no NOT NULL without a server default on a table with rows, no
rewrite of a large table, every CHECK and index named. SQLite needs op.batch_alter_table for changes,
which rebuilds the table: create its immutability triggers again.

The table of tenants is a small one and has no triggers. The release before gives everybody equal turns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

CHECK = "ck_tenant_weight"


def upgrade() -> None:
    with op.batch_alter_table("tenant") as batch:
        batch.add_column(sa.Column("weight", sa.Integer(), server_default="1", nullable=False))
        batch.create_check_constraint(op.f(CHECK), "weight >= 1 AND weight <= 100")


def downgrade() -> None:
    with op.batch_alter_table("tenant") as batch:
        batch.drop_constraint(op.f(CHECK), type_="check")
        batch.drop_column("weight")
