"""logins, web sessions, prices; the roles viewer and operator

Revision ID: 0004
Revises: 0003

THE RULE: the previous release runs against the schema that this migration leaves, and this release runs
against the one that it finds, for as long as a deployment rolls. So: add before use, stop using before
removal (one release between), no rename, no NOT NULL without a server default on a table with rows, no
rewrite of a large table, every CHECK and index named. SQLite needs op.batch_alter_table for changes,
which rebuilds the table: create its immutability triggers again.

The release before knows no viewers: it lets them generate. So make the first one when every gateway runs this one. A
downgrade makes members of operators; of viewers too, and revokes their keys, since a member may generate.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ROLE = "ck_principal_role"
OLD = "role IN ('platform_admin', 'owner', 'member')"
NEW = "role IN ('platform_admin', 'owner', 'operator', 'member', 'viewer')"


def set_roles(condition: str) -> None:
    with op.batch_alter_table("principal") as batch:
        batch.drop_constraint(op.f(ROLE), type_="check")
        batch.create_check_constraint(op.f(ROLE), condition)


def upgrade() -> None:
    set_roles(NEW)
    op.create_table(
        "login",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("principal_id", sa.String(length=48), nullable=False),
        sa.Column("password_hash", sa.String(length=255), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_login_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=48), nullable=False),
        sa.CheckConstraint("password_hash LIKE '$argon2id$%'", name=op.f("ck_login_argon2id")),
        sa.ForeignKeyConstraint(["principal_id"], ["principal.id"], name=op.f("fk_login_principal_id_principal")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login")),
        sa.UniqueConstraint("principal_id", name=op.f("uq_login_principal_id")),
    )
    op.create_index("ix_login_changed_at", "login", ["changed_at"], unique=False)
    op.create_table(
        "web_session",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("login_id", sa.String(length=48), nullable=False),
        sa.Column("mac", sa.String(length=64), nullable=False),
        sa.Column("pepper_id", sa.String(length=16), nullable=False),
        sa.Column("agent", sa.String(length=200), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("expires_at > created_at", name=op.f("ck_web_session_expiry")),
        sa.CheckConstraint("length(mac) = 64", name=op.f("ck_web_session_mac_length")),
        sa.ForeignKeyConstraint(["login_id"], ["login.id"], name=op.f("fk_web_session_login_id_login")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_web_session")),
    )
    op.create_index("ix_web_session_login_id", "web_session", ["login_id"], unique=False)
    op.create_index("ix_web_session_expires_at", "web_session", ["expires_at"], unique=False)
    op.create_index("ix_web_session_ended_at", "web_session", ["ended_at"], unique=False)
    op.create_table(
        "login_throttle",
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("locked_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("forget_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("failures >= 0", name=op.f("ck_login_throttle_failures")),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_login_throttle")),
    )
    op.create_index("ix_login_throttle_forget_at", "login_throttle", ["forget_at"], unique=False)
    op.create_table(
        "price",
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("effective_on", sa.Date(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("prompt_micros", sa.BigInteger(), nullable=False),
        sa.Column("cached_micros", sa.BigInteger(), nullable=False),
        sa.Column("output_micros", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=48), nullable=False),
        sa.CheckConstraint("length(currency) = 3 AND currency = upper(currency)", name=op.f("ck_price_currency")),
        sa.CheckConstraint(
            "prompt_micros >= 0 AND cached_micros >= 0 AND output_micros >= 0 AND prompt_micros <= 1000000000000 "
            "AND cached_micros <= 1000000000000 AND output_micros <= 1000000000000",
            name=op.f("ck_price_micros"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_price_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("tenant_id", "effective_on", name=op.f("pk_price")),
    )


def downgrade() -> None:
    for table in ("price", "login_throttle", "web_session", "login"):
        op.drop_table(table)
    op.execute(
        "UPDATE api_key SET revoked_at = CURRENT_TIMESTAMP WHERE revoked_at IS NULL "
        "AND principal_id IN (SELECT id FROM principal WHERE role = 'viewer')"
    )
    op.execute("UPDATE principal SET role = 'member' WHERE role IN ('viewer', 'operator')")
    set_roles(OLD)
